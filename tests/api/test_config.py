"""Mounted configuration: unknown keys and wrong types are errors that name the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream_api import config, failure
from slipstream_api.config import ConfigError, EngineConfig, GatewayConfig, OperatorConfig

ENGINE: dict[str, Any] = {
    "schemaVersion": 1,
    "revision": "r1",
    "model": {"name": "m", "namespace": "n", "path": "/models/m.gguf"},
}


def test_a_dumped_configuration_reads_back_equal_and_is_canonical() -> None:
    parsed = config.parse(EngineConfig, json.dumps(ENGINE), origin="test")
    text = config.dump(parsed)
    assert config.parse(EngineConfig, text, origin="test") == parsed
    assert config.dump(config.parse(EngineConfig, text, origin="again")) == text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"schemaVersion": 2}, "schemaVersion", id="another version"),
        pytest.param({"colour": "red"}, "colour", id="unknown key"),
        pytest.param({"model": {"name": "m", "namespace": "n"}}, "model.path", id="missing path"),
        pytest.param({"pages": {"pageTokens": 0}}, "pages.pageTokens", id="zero page"),
        pytest.param({"server": {"port": "http"}}, "server.port", id="a word for a port"),
        pytest.param({"dtype": "float8"}, "dtype", id="unknown dtype"),
        pytest.param({"limits": None}, "limits", id="null for an object"),
    ],
)
def test_a_bad_engine_configuration_names_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(EngineConfig, json.dumps({**ENGINE, **change}), origin="test")
    assert caught.value.field == field


def test_text_that_is_no_json_is_an_error_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text("{not json")
    with pytest.raises(ConfigError, match=r"gateway\.json"):
        config.load(GatewayConfig, path)


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b'{"schemaVersion": "\xe9"}', b"\x80"])
def test_bytes_that_are_no_text_are_an_error_with_their_path(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"engine\.json is not UTF-8"):
        config.load(EngineConfig, path)


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"operator\.json"):
        config.load(OperatorConfig, tmp_path / "operator.json")


def test_a_startup_failure_survives_the_termination_log(tmp_path: Path) -> None:
    told = failure.StartupFailure("ModelNotFound", "no file /models/x.gguf", "model.path")
    failure.write(told, tmp_path / "log")
    assert failure.parse((tmp_path / "log").read_text()) == told


def test_an_oversize_startup_failure_is_cut_and_still_parses() -> None:
    text = failure.StartupFailure("CrashLoop", "é" * 9000, "").dump()
    assert len(text.encode()) <= 4096
    parsed = failure.parse(text)
    assert parsed is not None
    assert parsed.message.startswith("é")


@pytest.mark.parametrize("text", ["", "Traceback: boom", "[1]", '{"reason": 3}', "null"])
def test_other_termination_messages_are_not_taken_for_ours(text: str) -> None:
    assert failure.parse(text) is None
