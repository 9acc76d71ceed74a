"""From a configuration to the model that drafts: its weights, its pages, what its tokens cost."""

from collections.abc import Callable
from pathlib import Path

import torch

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import sizing
from slipstream_engine.batch import Batch, Chunk, Draw
from slipstream_engine.draftmodel import ModelDrafter
from slipstream_engine.group import Alone
from slipstream_engine.kvpool import KvPool
from slipstream_engine.layers import Builder
from slipstream_engine.model import Decoder
from slipstream_engine.request import SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.spec.chooser import Member
from slipstream_engine.split import Split
from slipstream_kernels.dispatch import Kernels
from slipstream_kvstore.layout import KvDtype
from slipstream_weights import source
from slipstream_weights.checkpoint import OpenCheckpoint, finite
from slipstream_weights.errors import CheckpointError

_FIELD = "speculator.draft"
_NUM_REPEATS = 3


def load(
    config: EngineConfig,
    target: OpenCheckpoint,
    kernels: Kernels,
    device: torch.device,
    *,
    is_packed: Callable[[OpenCheckpoint], bool],
    clock: Callable[[], float],
) -> Member | None:
    """None where the configuration names no draft model. Whole on one rank, however many there are.

    Raises ConfigError for a checkpoint that cannot be used, or whose tokens are others.
    """
    spec = config.speculator.draft
    if spec is None or not config.speculator.is_drafting:
        return None
    try:
        opened = source.open_checkpoint(Path(spec.path))
        _check_tokens(target, opened)
        max_context = min(config.model.max_context or 1 << 30, opened.checkpoint.max_positions)
        own = config.model_copy(
            update={
                "model": config.model.model_copy(
                    update={"path": spec.path, "max_context": max_context}
                ),
                "pages": config.pages.model_copy(update={"kv_bytes": spec.kv_bytes}),
            }
        )
        packed = is_packed(opened)
        kv_dtype: KvDtype = "bfloat16" if packed else config.dtype
        sizes = sizing.resolve(own, opened.checkpoint, Split(), kv_dtype)
        dtype = torch.float32 if config.dtype == "float32" else torch.bfloat16
        tensors = finite(opened.packed_tensors() if packed else opened.tensors(), spec.path)
        weights = Builder(opened.checkpoint, Split(), dtype, device).build(tensors)
    except CheckpointError as error:
        raise ConfigError(str(error), f"{_FIELD}.path") from error
    except ConfigError as error:
        # What the target's fields are called is not what these are.
        own_field = "kvBytes" if error.field == "pages.kvBytes" else "path"
        raise ConfigError(error.message, f"{_FIELD}.{own_field}") from error
    decoder = Decoder(opened.checkpoint, weights, Split(), Alone(), kernels, dtype, device)
    runner = Runner(decoder, KvPool(sizes.layout, sizes.num_pages, device))
    drafter = ModelDrafter(
        runner,
        sizes.num_pages,
        config.pages.page_tokens,
        max_context,
        config.limits.max_batch_tokens,
        is_drawing=config.speculator.sampling == "probabilistic",
    )
    return Member(drafter, cost=_token_s(runner, clock))


def _check_tokens(target: OpenCheckpoint, draft: OpenCheckpoint) -> None:
    """Raises ConfigError: a token's number must mean the same to both."""
    mine, others = (one.text_model().tokenizer.get_vocab() for one in (target, draft))
    if mine != others:
        different = len(dict(mine.items() ^ others.items()))
        raise ConfigError(f"its tokeniser is another one: {different} tokens differ", "path")


def _token_s(runner: Runner, clock: Callable[[], float]) -> float:
    """Seconds of one drafted token."""
    draw = Draw(0, 1, 0, SamplingParams(temperature=0.0))
    batch = Batch((Chunk(0, (0,), (0,), (draw,)),))
    found = []
    for _ in range(_NUM_REPEATS):
        began_s = clock()
        runner.logits(batch)
        found.append(clock() - began_s)
    return min(found)
