"""Ask a component over HTTP whether it is ready; knows addresses only from its arguments."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

TIMEOUT_S = 2.0


def client_context(pki: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
    return context


def _get(url: str, pki: Path) -> tuple[int, bytes] | None:
    """Status and body; None when nothing answers in time."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = client_context(pki)
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", urllib.parse.urlunsplit(("", "", parts.path, parts.query, "")))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_ready(url: str, pki: Path) -> bool:
    """True when the address answers 2xx in time."""
    answer = _get(url, pki)
    return answer is not None and 200 <= answer[0] < 300


def get_object(server_url: str, path: str, pki: Path) -> dict[str, Any] | None:
    """An API object or list; None when it does not exist or the server does not answer."""
    answer = _get(server_url + path, pki)
    if answer is None or answer[0] != 200:
        return None
    document: dict[str, Any] = json.loads(answer[1])
    return document
