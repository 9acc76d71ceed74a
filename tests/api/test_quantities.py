"""Quantities of Kubernetes as whole numbers."""

import pytest

from slipstream_api import quantities


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("24G", 24_000_000_000),
        ("97887Mi", 97_887 * 1024**2),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1E", 10**18),
        ("100m", 1),
        ("1001m", 2),
        (".5k", 500),
    ],
)
def test_a_quantity_is_read_and_rounded_up(text: str, number: int) -> None:
    assert quantities.parse(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1x", "1KiB", "0x10", "1e"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|suffix"):
        quantities.parse(text)
