"""A settled shape becomes sessions. The only workload that asks the network is edit."""

from slipstream_bench import agent, chat, dataset, edit, packages
from slipstream_bench.edit import Edit
from slipstream_bench.errors import WorkloadError
from slipstream_bench.options import Plan
from slipstream_bench.session import Sessions
from slipstream_bench.shapes import AgentShape, ChatShape, DatasetShape, EditShape

WARM_UP = "warm-up"


def sessions_of(plan: Plan, part: str = "") -> Sessions:
    """Without end. Another `part` of a run (WARM_UP) gets other requests, where there are any.

    Raises WorkloadError.
    """
    seed = f"{plan.seed}/{part}" if part else str(plan.seed)
    match plan.shape:
        case ChatShape():
            return chat.sessions(seed, plan.shape.num_words)
        case AgentShape():
            return agent.sessions(seed, plan.shape)
        case EditShape():
            edits = edits_of(plan.shape)
            return edit.sessions(seed, edits, has_prediction=plan.shape.has_prediction)
        case DatasetShape():
            return dataset.sessions(dataset.load(plan.shape.path))


def edits_of(shape: EditShape) -> tuple[Edit, ...]:
    cache = packages.default_cache()
    found: list[Edit] = []
    for it in shape.releases:
        old = packages.files_of(it.package, it.old, cache)
        new = packages.files_of(it.package, it.new, cache)
        name = f"{it.package} {it.old}"
        found += edit.edits_between(name, old, new, shape.max_file_characters)
    if not found:
        raise WorkloadError(
            "no file of these packages changed and fits; raise --max-file-chars or name others"
        )
    return tuple(found)
