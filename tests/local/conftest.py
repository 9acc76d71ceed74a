"""What several tests of the local cluster start from."""

from dataclasses import fields
from pathlib import Path

import pytest

from slipstream_local.layout import Layout, Ports


@pytest.fixture
def some_layout(tmp_path: Path) -> Layout:
    numbers = Ports(**{field.name: 20001 + index for index, field in enumerate(fields(Ports))})
    return Layout("test", tmp_path / "test", numbers, node=False)
