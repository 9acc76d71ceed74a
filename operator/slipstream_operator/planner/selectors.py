"""CEL selectors over devices, as Kubernetes' allocator evaluates them.

Quantities are whole numbers here and versions lists of numbers, so that they compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cel

from slipstream_api import quantities

Document = Mapping[str, Any]


class SelectorError(Exception):
    """An expression that is no CEL."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Expressions that must all be true of a device."""

    programs: tuple[cel.Program, ...]

    def matches(self, driver: str, device: Document) -> bool:
        """An attribute that a device lacks makes an expression an error there, and no match."""
        context = _context(driver, device)
        try:
            return all(program.execute(context) is True for program in self.programs)
        except (KeyError, RuntimeError, TypeError, ValueError):
            return False


def compiled(expressions: Sequence[str]) -> Selector:
    """Raises SelectorError."""
    try:
        return Selector(tuple(cel.compile(expression) for expression in expressions))
    except ValueError as error:
        raise SelectorError(str(error)) from error


def attribute(device: Document, driver: str, name: str) -> Any:
    """The value of a fully qualified attribute; None where the device has none."""
    attributes = device.get("attributes") or {}
    own = name.removeprefix(f"{driver}/")
    value = attributes.get(name, attributes.get(own))
    return None if value is None else _value(value)


def _context(driver: str, device: Document) -> cel.Context:
    context = cel.Context()
    context.add_variable(
        "device",
        {
            "driver": driver,
            "attributes": _by_domain(driver, device.get("attributes") or {}, _value),
            "capacity": _by_domain(driver, device.get("capacity") or {}, _capacity),
            "allowMultipleAllocations": bool(device.get("allowMultipleAllocations", False)),
        },
    )
    context.add_function("quantity", quantities.parse)
    context.add_function("semver", _version)
    context.add_function("compareTo", lambda one, other: (one > other) - (one < other))
    context.add_function("isGreaterThan", lambda one, other: one > other)
    context.add_function("isLessThan", lambda one, other: one < other)
    return context


def _by_domain(driver: str, named: Document, read: Any) -> dict[str, dict[str, Any]]:
    """A name without a domain belongs to the driver's."""
    domains: dict[str, dict[str, Any]] = {driver: {}}
    for name, value in named.items():
        domain, _, own = name.rpartition("/")
        domains.setdefault(domain or driver, {})[own] = read(value)
    return domains


def _value(value: Document) -> Any:
    (kind, content), *_ = value.items()
    return _version(content) if kind == "version" else content


def _capacity(value: Document) -> int:
    return quantities.parse(str(value["value"]))


def _version(text: str) -> list[int]:
    numbers = text.partition("-")[0].partition("+")[0].split(".")
    return [int(number) for number in numbers]
