"""Records of public models, sample cards and boards for planner tests."""

from functools import cache
from pathlib import Path

import yaml

from slipstream_api.gpuclass import GPUClassSpec
from slipstream_api.modelfacts import ModelFacts
from slipstream_local import topology
from slipstream_operator.planner import cards
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.islands import Board, Island

HERE = Path(__file__).parent
SAMPLES = HERE.parents[2] / "crds/examples/gpuclasses"
CARD_NAMES = sorted(path.stem for path in SAMPLES.glob("*.yaml"))
MODEL_NAMES = sorted(path.stem for path in (HERE / "facts").glob("*.yaml"))


@cache
def gpu_class(name: str) -> GPUClassSpec:
    document = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return GPUClassSpec.model_validate(document["spec"])


def classes() -> dict[str, GPUClassSpec]:
    return {name: gpu_class(name) for name in CARD_NAMES}


def card(name: str) -> Card:
    return cards.of(name, gpu_class(name))


@cache
def facts(name: str) -> ModelFacts:
    text = (HERE / "facts" / f"{name}.yaml").read_text(encoding="utf-8")
    return ModelFacts.model_validate(yaml.safe_load(text))


def board(profile: str, card_name: str, num_nodes: int = 1) -> Board:
    """The profile's slots with another card in them."""
    roots = topology.profile_named(profile).roots
    islands = tuple(sorted(Island(root.numa_node, root.num_gpus) for root in roots))
    return Board(card_name, islands, tuple(f"node-{n}" for n in range(num_nodes)))
