"""Revisions of one model: found again as they were rendered, or rendered now. Pure.

A spec keeps the revision that it was first resolved to, so that a new chart default or a newer
operator changes no running model.
"""

from collections.abc import Iterable, Sequence

from slipstream_api import names
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_operator import documents, template
from slipstream_operator.documents import Document
from slipstream_operator.settings import Settings
from slipstream_operator.template import Rendered

# How many revisions that nothing uses are kept to go back to.
KEPT_UNUSED = 3
_SPEC_HASH_LEN = 16


def spec_hash(spec: InferenceModelSpec) -> str:
    """Hash of the spec fields that a Pod is rendered from: not aliases, not scaling."""
    # Without defaults: a field that a later version adds changes no hash.
    model = spec.model.model_dump(
        mode="json", by_alias=True, exclude={"aliases"}, exclude_defaults=True
    )
    engine = spec.engine.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    parts = {"model": model, "engine": engine, "podTemplate": spec.pod_template}
    return documents.digest(documents.canonical(parts))[:_SPEC_HASH_LEN]


def read(document: Document) -> Rendered | None:
    """The revision that a ControllerRevision holds, or None when it is not one of ours."""
    revision = documents.label(document, names.LABEL_REVISION)
    data = document.get("data")
    if revision is None or not isinstance(data, dict):
        return None
    if not isinstance(data.get("podTemplate"), dict):
        return None
    texts = [data.get(key) for key in ("engineConfig", "image", "source", "podDefaultsDigest")]
    if not all(isinstance(text, str) for text in texts):
        return None
    return Rendered(revision, data["podTemplate"], *[str(text) for text in texts])


def number(document: Document) -> int:
    return int(document.get("revision", 0))


def by_name(revisions: Iterable[Document], revision: str) -> Document | None:
    return next(
        (d for d in revisions if documents.label(d, names.LABEL_REVISION) == revision), None
    )


def next_number(revisions: Sequence[Document]) -> int:
    return max((number(d) for d in revisions), default=0) + 1


def resolve(
    namespace: str,
    model: str,
    spec: InferenceModelSpec,
    revisions: Sequence[Document],
    settings: Settings,
) -> Rendered:
    """The revision this spec means. Raises MergeError when it must be rendered and cannot."""
    wanted = spec_hash(spec)
    known = [d for d in revisions if documents.label(d, names.LABEL_SPEC_HASH) == wanted]
    for document in sorted(known, key=number, reverse=True):
        found = read(document)
        if found is not None:
            return found
    return template.render(namespace, model, spec, settings)


def expired(revisions: Sequence[Document], used: frozenset[str]) -> tuple[Document, ...]:
    """The ControllerRevisions to delete: unused ones beyond the last few."""
    unused = [d for d in revisions if documents.label(d, names.LABEL_REVISION) not in used]
    unused.sort(key=lambda d: (number(d), documents.name(d)), reverse=True)
    return tuple(unused[KEPT_UNUSED:])
