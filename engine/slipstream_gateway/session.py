"""Which session a request belongs to. Pure; the raw value goes no further than its hash here."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_PROMPT_CHARACTERS = 1024
_DIGEST_BYTES = 16


def session_digest(header: str, tenant: str, body: Mapping[str, Any]) -> bytes:
    """What tracks and replicas are chosen by: equal for equal sessions in every gateway.

    The session is the header `x-slipstream-session`, else `prompt_cache_key`, else `user`, else
    the tenant with the first user message: an agent repeats it in every turn.
    """
    for source, value in (
        ("header", header),
        ("prompt_cache_key", body.get("prompt_cache_key")),
        ("user", body.get("user")),
    ):
        if isinstance(value, str) and value:
            return _digest(source, value)
    return _digest("opening", tenant, _opening(body))


def cache_salt(tenant: str) -> str | None:
    """What keeps a tenant's cached prompts apart from others'; None where there is no tenant.

    The same in every gateway and after a restart: a changed one would find nothing. Engines get it
    with the internal token only; it says no more of a credential than that two were the same.
    """
    return _digest("cache salt", tenant).hex() if tenant else None


def keyed_hash(digest: bytes, key: bytes) -> str:
    """What engines and observations get: without the key nobody can try out what it stands for."""
    return hashlib.blake2b(digest, key=key[:64], digest_size=12).hexdigest()


def _opening(body: Mapping[str, Any]) -> str:
    """The first user message of a chat, or the head of a completion's prompt."""
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict) and message.get("role") == "user":
                return _text(message.get("content"))
    return _text(body.get("prompt"))[:_PROMPT_CHARACTERS]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _digest(*parts: str) -> bytes:
    # SHA-256 has its own instructions: 0.6 ms for a first message of 1 MB, BLAKE2 1.1 ms.
    digest = hashlib.sha256()
    for part in parts:
        # Framed: ("ab", "c") and ("a", "bc") are two sessions.
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.digest()[:_DIGEST_BYTES]
