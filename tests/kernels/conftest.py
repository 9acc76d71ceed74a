"""The kernels in C are tested as they stand in the tree, not as they were last compiled."""

import pytest

from slipstream_kernels import compile as compiled


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    assert compiled.main() == 0
