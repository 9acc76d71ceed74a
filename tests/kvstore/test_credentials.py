"""Who may come in: one of two valid tokens, over a rotation whose files change at any time."""

from pathlib import Path

import pytest

from slipstream_api import names
from slipstream_kvstore import codec
from slipstream_kvstore.client import Client, Failure
from slipstream_kvstore.credentials import CredentialsError, Tokens
from tests.kvstore.support import HOST, LONG_S, TENANT, cache, client, contents, page_keys

FILES = names.TOKEN_KEYS


@pytest.mark.asyncio
async def test_a_client_with_a_wrong_token_gets_misses_and_knows_why() -> None:
    async with cache() as it, client(it.port, token=b"guess") as engine:
        assert not any(await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S))
        assert engine.counts.failures[Failure.UNAUTHORIZED] == 1
        assert len(it.store) == 0


def write_tokens(folder: Path, **values: str) -> None:
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name, value in values.items():
        (folder / name).write_text(value + "\n")


@pytest.mark.asyncio
async def test_a_rotation_interrupts_nobody(tmp_path: Path) -> None:
    """The two sides' files change in either order."""
    here, there = tmp_path / "server", tmp_path / "client"
    for folder in (here, there):
        folder.mkdir()
        write_tokens(folder, current="old")
    async with cache(accepts=Tokens(here, FILES).accepts) as it:
        steps = [
            (here, {"current": "old", "next": "new"}),
            (there, {"current": "new", "previous": "old"}),
            (here, {"current": "new", "previous": "old"}),
            (there, {"current": "newer", "previous": "new"}),
            (here, {"current": "newer", "previous": "new"}),
        ]
        sent = Tokens(there, FILES)
        for folder, values in steps:
            write_tokens(folder, **values)
            engine = Client(HOST, it.port, sent.values)
            found = await engine.set(TENANT, page_keys(1), contents(1), timeout_s=LONG_S)
            engine.close()
            assert found == [True], values
        async with client(it.port, token=b"old") as late:
            assert await late.exists(page_keys(1), timeout_s=LONG_S) == [False]
            assert late.counts.failures[Failure.UNAUTHORIZED] == 1


@pytest.mark.parametrize("value", [None, "", " \n", "x" * (codec.MAX_TOKEN_BYTES + 1)])
def test_without_a_usable_token_nobody_starts(tmp_path: Path, value: str | None) -> None:
    if value is not None:
        (tmp_path / "current").write_text(value)
    (tmp_path / "previous").write_text("old")
    with pytest.raises(CredentialsError, match="current"):
        Tokens(tmp_path, FILES)


def test_an_empty_token_file_opens_nothing(tmp_path: Path) -> None:
    write_tokens(tmp_path, current="secret", previous="")
    tokens = Tokens(tmp_path, FILES)
    assert tokens.accepts(b"secret")
    assert not tokens.accepts(b"")
    assert tokens.values() == [b"secret"]
