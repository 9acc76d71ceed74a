"""Kubernetes quantities as whole numbers: 97887Mi, 24G, 1.5Gi."""

import re
from decimal import ROUND_CEILING, Decimal

_PATTERN = re.compile(
    r"(?P<number>[+-]?\d+(?:\.\d*)?|[+-]?\.\d+)"
    r"(?:[eE](?P<exponent>[+-]?\d{1,3})|(?P<suffix>[A-Za-z]{0,2}))"
)
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "n": -9}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse(text: str) -> int:
    """Rounded up, as Kubernetes does. Raises ValueError: not a quantity.

    >>> parse("1Ki"), parse("1.5k"), parse("2e3"), parse("100m")
    (1024, 1500, 2000, 1)
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    if match["exponent"] is not None:
        number = number.scaleb(int(match["exponent"]))
    elif suffix in _BINARY:
        number *= 1024 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        number = number.scaleb(_DECIMAL[suffix])
    else:
        raise ValueError(f"{text!r} has an unknown suffix")
    return int(number.to_integral_value(ROUND_CEILING))
