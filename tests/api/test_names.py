"""Names that several components must build alike."""

import pytest

from slipstream_api import names


def test_no_two_gateways_own_fields_together() -> None:
    managers = {
        names.gateway_field_manager(namespace, name)
        for namespace in ("a" * 63, "b" * 63)
        for name in ("gw-1", "x" * 200 + "1", "x" * 200 + "2")
    }
    assert len(managers) == 6


@pytest.mark.parametrize("name", ["g", "x" * 92, "x" * 93, "x" * 253])
def test_a_field_manager_is_no_longer_than_the_api_server_takes(name: str) -> None:
    manager = names.gateway_field_manager("n" * 63, name)
    assert len(manager) <= 128
    assert manager.startswith("slipstream-gateway-" + name[:50])


def test_a_gateways_field_manager_stays_what_it_was() -> None:
    """Another name would leave the entries of older gateways without an owner that anyone knows."""
    manager = names.gateway_field_manager("system", "gateway-0")
    assert manager == "slipstream-gateway-gateway-0-d53efc5c13bff971"
