"""What `slipstream plan` plans with: a model's facts, and the GPUs of profiles or of a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from slipstream_api import names
from slipstream_api.gpuclass import GPUClassSpec
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_api.modelfacts import ModelFacts
from slipstream_cli.kubectl import Cluster
from slipstream_local import topology
from slipstream_operator.planner import cards, devices, islands
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.islands import Board

Model = TypeVar("Model", bound=BaseModel)

SAMPLES = Path("crds/examples/gpuclasses")


class InputError(Exception):
    """Something that the person at the keyboard can put right; the message says how."""


@dataclass(frozen=True, slots=True)
class Subject:
    facts: ModelFacts
    max_context: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    cards: Mapping[str, Card]
    boards: tuple[Board, ...]
    notes: tuple[str, ...]


def read_subject(file: Path | None, facts: Path | None) -> Subject:
    """Raises InputError."""
    if file is None and facts is None:
        raise InputError("which model? Say -f with an InferenceModel, or --facts with a record")
    spec = None if file is None else _model(file)
    if facts is not None:
        found = _validated(ModelFacts, _one_document(facts), str(facts))
    elif spec is not None:
        found = _checkpoint(spec.model.source)
    return Subject(found, None if spec is None else spec.model.max_context, _engine_notes(found))


def _model(file: Path) -> InferenceModelSpec:
    models = [d for d in _documents(file) if d.get("kind") == "InferenceModel"]
    if len(models) != 1:
        raise InputError(f"{file} holds {len(models)} InferenceModels; a plan is for one")
    return _validated(InferenceModelSpec, models[0].get("spec") or {}, f"{file}: spec")


def _checkpoint(source: str) -> ModelFacts:
    scheme, _, path = source.partition("://")
    if scheme != "file":
        raise InputError(f"{source} cannot be read from here: say --facts with a record of it")
    try:
        from slipstream_weights import facts
        from slipstream_weights.errors import CheckpointError
    except ImportError as error:
        raise InputError(f"reading a checkpoint needs slipstream[weights]: {error}") from error
    try:
        return facts.read(Path(path))
    except CheckpointError as error:
        raise InputError(f"{error}; where it is elsewhere, say --facts") from error


def _engine_notes(facts: ModelFacts) -> tuple[str, ...]:
    """A plan for what the engine cannot load yet is still a plan, but says so."""
    try:
        from slipstream_weights.huggingface import ARCHITECTURES
    except ImportError:
        return ()
    if facts.architecture in ARCHITECTURES:
        return ()
    return (f"this version's engine does not load {facts.architecture} yet",)


def read_place(
    nodes: Sequence[str], gpu_classes: Sequence[str], root: Path, *, is_cluster: bool
) -> Place:
    """Raises InputError, and CommandError where the cluster does not answer."""
    if is_cluster == bool(nodes):
        raise InputError(
            "which GPUs? Say either --from-cluster or --nodes PROFILE=COUNT; profiles: "
            + ", ".join(topology.PROFILES)
        )
    if is_cluster:
        return _of_cluster(_cluster(), gpu_classes, root)
    return _of_profiles([_count(text) for text in nodes], gpu_classes, root)


def _count(text: str) -> tuple[topology.Profile, int]:
    name, _, number = text.partition("=")
    try:
        profile, count = topology.profile_named(name), int(number or "1")
    except ValueError as error:
        raise InputError(f"--nodes {text}: {error}") from error
    if count < 1:
        raise InputError(f"--nodes {text}: at least one node")
    return profile, count


def _of_profiles(
    wanted: Sequence[tuple[topology.Profile, int]], gpu_classes: Sequence[str], root: Path
) -> Place:
    slices = [
        topology.resource_slice(profile, node)
        for profile, count in wanted
        for node in topology.fake_node_names(profile, count)
    ]
    if not gpu_classes:
        return _place(_samples(root), slices, [topology.device_class()])
    classes = dict(_named(name, root) for name in gpu_classes)
    if len(classes) > 1:
        raise InputError("with --nodes one --gpu-class says which card is in the slots")
    # The machine as it is, with this card instead of its own: no selector is asked.
    ((name, spec),) = classes.items()
    anything = spec.model_dump(by_alias=True) | {"selectors": [{"cel": {"expression": "true"}}]}
    found = devices.observe({name: GPUClassSpec.model_validate(anything)}, [], slices)
    return Place({name: cards.of(name, spec)}, islands.boards(found.gpus), found.notes)


def _of_cluster(cluster: Cluster, gpu_classes: Sequence[str], root: Path) -> Place:
    classes = {
        str(document["metadata"]["name"]): _validated(
            GPUClassSpec, document["spec"], f"GPUClass {document['metadata']['name']}"
        )
        for document in _items(cluster, f"gpuclasses.{names.GROUP}")
    }
    if gpu_classes:
        chosen = {}
        for name in gpu_classes:
            found = (name, classes[name]) if name in classes else _named(name, root)
            chosen[found[0]] = found[1]
        classes = chosen
    if not classes:
        raise InputError(
            f"the cluster has no GPUClass: apply those of its cards from {SAMPLES}, or say"
            " --gpu-class"
        )
    return _place(
        classes,
        _items(cluster, "resourceslices.resource.k8s.io"),
        _items(cluster, "deviceclasses.resource.k8s.io"),
        _items(cluster, "resourceclaims.resource.k8s.io", "--all-namespaces"),
        _items(cluster, "nodes"),
    )


def _place(
    classes: Mapping[str, GPUClassSpec],
    slices: Sequence[dict[str, Any]],
    device_classes: Sequence[dict[str, Any]],
    claims: Sequence[dict[str, Any]] = (),
    nodes: Sequence[dict[str, Any]] = (),
) -> Place:
    found = devices.observe(classes, device_classes, slices, claims, nodes)
    notes = list(found.notes)
    taken = sum(not gpu.is_free for gpu in found.gpus)
    if taken:
        notes.append(f"{taken} of {len(found.gpus)} GPUs are taken or fenced off")
    known = {name: cards.of(name, spec) for name, spec in classes.items()}
    return Place(known, islands.boards(found.gpus), tuple(notes))


def _cluster() -> Cluster:
    """The one that the environment names."""
    from slipstream_cli import install

    try:
        return install.current()
    except install.InstallError as error:
        raise InputError(str(error)) from error


def _items(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    found = cluster.get(*arguments)
    return [] if found is None else list(found["items"])


def _samples(root: Path) -> dict[str, GPUClassSpec]:
    files = sorted((root / SAMPLES).glob("*.yaml"))
    if not files:
        raise InputError(
            f"there is no {(root / SAMPLES).resolve()}: run this in the repository, say --root, or"
            " --gpu-class with a file"
        )
    return dict(_class(file) for file in files)


def _named(text: str, root: Path) -> tuple[str, GPUClassSpec]:
    """A file, or the name of a sample."""
    for path in (Path(text), root / SAMPLES / f"{text}.yaml"):
        if path.is_file():
            return _class(path)
    known = ", ".join(sorted(path.stem for path in (root / SAMPLES).glob("*.yaml")))
    raise InputError(f"--gpu-class {text}: neither a file nor a known class; known: {known}")


def _class(file: Path) -> tuple[str, GPUClassSpec]:
    document = _one_document(file)
    if document.get("kind") != "GPUClass":
        raise InputError(f"{file} is not a GPUClass but {document.get('kind')!r}")
    spec = _validated(GPUClassSpec, document.get("spec") or {}, f"{file}: spec")
    return str((document.get("metadata") or {}).get("name") or file.stem), spec


def _one_document(file: Path) -> dict[str, Any]:
    documents = _documents(file)
    if len(documents) != 1:
        raise InputError(f"{file} holds {len(documents)} documents, where one is expected")
    return documents[0]


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    documents = [document for document in found if document is not None]
    if not all(isinstance(document, dict) for document in documents):
        raise InputError(f"{file} holds something that is not an object")
    return documents


def _validated(model: type[Model], document: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}{'.' if path else ''}{path}: {first['msg']}") from error
