"""The kernels in C are tested as they stand in the tree, not as they were last compiled."""

import pytest

from slipstream_kernels import compile as compiled
from slipstream_kernels.native import Native
from tests.kernels.levels import LEVELS


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    assert compiled.main() == 0


@pytest.fixture(params=LEVELS, scope="module")
def library(request: pytest.FixtureRequest) -> Native:
    return Native(request.param)


@pytest.fixture(params=[1, 2, 5], ids="threads-{}".format)
def threaded(request: pytest.FixtureRequest, library: Native) -> Native:
    assert library.set_threads(request.param) == request.param
    return library
