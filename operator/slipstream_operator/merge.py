"""Merging a partial Pod template into a rendered one, as a strategic merge does it.

Dictionaries merge key by key, lists of named things by their key, null deletes, everything else
is replaced. Knows nothing of models.
"""

import copy
from typing import Any

# Which field identifies an element. Lists that are not here are replaced as a whole.
_LIST_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
}

# A named element that says where its data comes from: two sources would be refused, so the new
# one replaces the old.
_ONE_OF: dict[str, frozenset[str]] = {"volumes": frozenset({"name"}), "env": frozenset({"name"})}


class MergeError(Exception):
    """A template that cannot be merged; `field` is the path inside it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}")
        self.message = message
        self.field = field


def merge(base: dict[str, Any], patch: dict[str, Any], *, path: str = "") -> dict[str, Any]:
    """`base` with `patch` laid over it; neither is changed. Raises MergeError."""
    result = copy.deepcopy(base)
    for key, value in patch.items():
        where = f"{path}.{key}" if path else key
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            if isinstance(below, list):
                raise MergeError("must be a list", where)
            if below is not None and not isinstance(below, dict):
                raise MergeError("must not be an object", where)
            result[key] = merge(below or {}, value, path=where)
        elif key in _LIST_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, key, where)
        elif isinstance(result.get(key), dict):
            raise MergeError("must be an object", where)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merge_list(base: list[Any], patch: object, key: str, path: str) -> list[Any]:
    if not isinstance(patch, list):
        raise MergeError("must be a list", path)
    identity = _LIST_KEYS[key]
    result = list(base)
    for index, element in enumerate(patch):
        where = f"{path}[{index}]"
        if not isinstance(element, dict):
            raise MergeError("must be an object", where)
        if identity not in element:
            raise MergeError("must be set: elements merge by it", f"{where}.{identity}")
        found = next(
            (i for i, e in enumerate(result) if e.get(identity) == element[identity]), None
        )
        if found is None:
            result.append(merge({}, element, path=where))
        elif key in _ONE_OF and set(element) - _ONE_OF[key]:
            result[found] = merge({}, element, path=where)
        else:
            result[found] = merge(result[found], element, path=where)
    return result
