"""Free GPUs, and which class each is of, from a cluster's documents.

With DRA: ResourceSlices, and ResourceClaims for what is taken. Without: labels of nodes, where the
islands are known from ours alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream_api import names
from slipstream_api.gpuclass import GPUClassSpec
from slipstream_operator.planner import selectors
from slipstream_operator.planner.islands import Gpu
from slipstream_operator.planner.selectors import Selector, SelectorError

Document = Mapping[str, Any]

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
# `4x2`: four PCIe roots of two GPUs each; an administrator's word for what no label says.
ISLANDS_LABEL = f"{names.GROUP}/pcie-islands"
_COUNT, _PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.product"
_NVIDIA = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class Observed:
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]


def observe(
    classes: Mapping[str, GPUClassSpec],
    device_classes: Iterable[Document],
    slices: Iterable[Document],
    claims: Iterable[Document] = (),
    nodes: Iterable[Document] = (),
) -> Observed:
    """Every GPU of a known class. Nodes count where no slice speaks of them."""
    notes: list[str] = []
    known = _selectors(classes, device_classes, notes)
    slices = list(_current(slices))
    taken = set(_taken(claims))
    gpus = [gpu for piece in slices for gpu in _from_slice(piece, known, taken)]
    have_slices = {str(piece["spec"].get("nodeName")) for piece in slices}
    for node in nodes:
        if node["metadata"]["name"] not in have_slices:
            gpus += _from_labels(node, known, notes)
    return Observed(tuple(gpus), tuple(notes))


def _selectors(
    classes: Mapping[str, GPUClassSpec], device_classes: Iterable[Document], notes: list[str]
) -> dict[str, Selector]:
    """A class's own selectors, and those of its DeviceClass where that is there."""
    of_device_class = {
        str(document["metadata"]["name"]): [
            str(selector["cel"]["expression"])
            for selector in (document.get("spec") or {}).get("selectors") or []
        ]
        for document in device_classes
    }
    known = {}
    for name, spec in sorted(classes.items()):
        expressions = [selector.cel.expression for selector in spec.selectors]
        expressions += of_device_class.get(spec.device_class_name, [])
        try:
            known[name] = selectors.compiled(expressions)
        except SelectorError as error:
            notes.append(f"{name}: a selector cannot be read: {error}")
    return known


def _current(slices: Iterable[Document]) -> Iterator[Document]:
    """The newest generation of each pool, where all of its slices are there."""
    pools: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for piece in slices:
        pools[piece["spec"]["driver"], piece["spec"]["pool"]["name"]].append(piece)
    for pieces in pools.values():
        newest = max(int(piece["spec"]["pool"]["generation"]) for piece in pieces)
        current = [p for p in pieces if int(p["spec"]["pool"]["generation"]) == newest]
        if len(current) >= int(current[0]["spec"]["pool"]["resourceSliceCount"]):
            yield from current


def _taken(claims: Iterable[Document]) -> Iterator[tuple[str, str, str]]:
    """(driver, pool, device) of everything that some claim holds."""
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or []:
            yield str(result["driver"]), str(result["pool"]), str(result["device"])


def _from_slice(
    piece: Document, known: Mapping[str, Selector], taken: set[tuple[str, str, str]]
) -> Iterator[Gpu]:
    spec = piece["spec"]
    node, driver, pool = spec.get("nodeName"), str(spec["driver"]), str(spec["pool"]["name"])
    if node is None:
        return
    for device in spec.get("devices") or []:
        card = _card(driver, device, known)
        if card is None:
            continue
        root = selectors.attribute(device, driver, PCIE_ROOT)
        # A tainted device is fenced off; one that a claim holds is somebody's.
        is_free = (driver, pool, str(device["name"])) not in taken and not device.get("taints")
        yield Gpu(
            node=str(node),
            name=str(device["name"]),
            card=card,
            root=None if root is None else str(root),
            numa=_numa(device, driver),
            is_free=is_free,
        )


def _numa(device: Document, driver: str) -> int | None:
    """The standard attribute, as one number or as a list, nearest first; or a driver's own."""
    for name in (NUMA_NODE, f"{driver}/numaNode"):
        found = selectors.attribute(device, driver, name)
        if isinstance(found, list):
            found = found[0] if found else None
        if isinstance(found, int) and found >= 0:
            return found
    return None


def _card(driver: str, device: Document, known: Mapping[str, Selector]) -> str | None:
    """The first class by name that means the device."""
    return next((name for name, one in known.items() if one.matches(driver, device)), None)


def _from_labels(node: Document, known: Mapping[str, Selector], notes: list[str]) -> Iterator[Gpu]:
    """What the device plugin's labels say, put as its driver would publish it."""
    name, labels = str(node["metadata"]["name"]), node["metadata"].get("labels") or {}
    if _COUNT not in labels or _PRODUCT not in labels:
        return
    # Labels have no spaces.
    product = str(labels[_PRODUCT]).replace("-", " ")
    device = {"attributes": {"type": {"string": "gpu"}, "productName": {"string": product}}}
    card = _card(_NVIDIA, device, known)
    if card is None:
        return
    count = int(labels[_COUNT])
    islands = _islands(labels.get(ISLANDS_LABEL), count)
    if islands is None:
        notes.append(f"{name}: no label {ISLANDS_LABEL} that fits its {count} GPUs: none is near")
        islands = [1] * count
    index = 0
    for root, size in enumerate(islands):
        for _ in range(size):
            yield Gpu(name, f"gpu-{index}", card, f"root-{root}", None)
            index += 1


def _islands(text: str | None, count: int) -> list[int] | None:
    number, _, size = (text or "").partition("x")
    if not (number.isdigit() and size.isdigit()):
        return None
    islands: Sequence[int] = [int(size)] * int(number)
    return list(islands) if sum(islands) == count else None
