"""Reading Kubernetes documents (plain dictionaries): names, owners, hashes, what a Pod says.

Pure; knows no model and no cluster.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """One object; with `uid`, that very object and no later one of the same name."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def ref(document: Mapping[str, Any], *, with_uid: bool = False) -> Ref:
    meta = document["metadata"]
    return Ref(
        api_version=document["apiVersion"],
        kind=document["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid") if with_uid else None,
    )


def name(document: Mapping[str, Any]) -> str:
    return str(document["metadata"]["name"])


def namespace(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("namespace", ""))


def where(document: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    return namespace(document), name(document)


def version(document: Mapping[str, Any]) -> str:
    """What the API server numbers every change of an object with; empty before it has one."""
    return str(document["metadata"].get("resourceVersion") or "")


def order(version: str) -> int:
    """Resource versions as the numbers that they are (Kubernetes 1.35); 0 for any other text."""
    return int(version) if version.isdecimal() else 0


def uid(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("uid", ""))


def generation(document: Mapping[str, Any]) -> int:
    return int(document["metadata"].get("generation", 0))


def label(document: Mapping[str, Any], key: str) -> str | None:
    value = (document["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def annotation(document: Mapping[str, Any], key: str) -> str | None:
    value = (document["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def is_terminating(document: Mapping[str, Any]) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


def canonical(value: object) -> str:
    """Equal documents have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(*parts: str) -> str:
    """sha256 in hex; every part is framed by its length, so that no two lists look alike."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode()
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def covers(observed: object, desired: object) -> bool:
    """Whether applying `desired` would change nothing in `observed`.

    The API server adds defaults and other managers add fields, so `observed` may say more. Lists
    must have the same length and order: none of the lists that we write is shared.
    """
    if isinstance(desired, Mapping):
        if not isinstance(observed, Mapping):
            return not desired and observed is None
        return all(covers(observed.get(key), value) for key, value in desired.items())
    if isinstance(desired, list | tuple):
        if not isinstance(observed, list | tuple):
            return not desired and observed is None
        return len(observed) == len(desired) and all(
            covers(a, b) for a, b in zip(observed, desired, strict=True)
        )
    return observed == desired


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """A Kubernetes time, or None when there is none or it cannot be read."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds)


def seconds_since(text: str | None, now: datetime) -> float | None:
    moment = parse_time(text)
    return None if moment is None else (now - moment) / timedelta(seconds=1)


def pod_condition(pod: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    conditions: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == type_), None)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Ready as the EndpointSlice controller sees it: a terminating Pod is not."""
    condition = pod_condition(pod, "Ready")
    return condition is not None and condition.get("status") == "True" and not is_terminating(pod)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Failed or Succeeded: its containers never run again (evicted, shut down with its node)."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
