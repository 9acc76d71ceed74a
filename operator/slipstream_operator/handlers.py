"""kopf's part: watch streams into the cache. Handles no model; kopf writes nothing anywhere.

kopf lists every kind before it calls any handler (that is what the empty indexes are for), then
reports changes. It does not report deletions that fell into a gap between two streams; it does
repeat a listing then, which is the sign for `on_relist`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import kopf

from slipstream_operator import kinds
from slipstream_operator.documents import Document
from slipstream_operator.kinds import Kind

log = logging.getLogger(__name__)

_SERVER_TIMEOUT_S = 300
_CLIENT_TIMEOUT_S = 330


class _Patience:
    """Pauses between attempts, without end; iterated anew for every request.

    kopf's own grow to 21 s: so long the caches would be behind after a restart of the API server.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1.0, 2.0)
        while True:
            yield 3.0


class Listener(Protocol):
    """Who gets what the watches bring."""

    def on_event(self, kind: Kind, document: Document, *, deleted: bool) -> None: ...

    def on_listed(self, kind: Kind) -> None:
        """kopf has (re)started this kind's stream with a listing."""


def registry(listener: Listener) -> kopf.OperatorRegistry:
    result = kopf.OperatorRegistry()
    kopf.on.login(registry=result)(_login)
    for kind in kinds.WATCHED:
        resource = (kind.group, kind.version, kind.plural)
        kopf.index(*resource, id=f"listed-{kind.plural}", registry=result)(_index)
        kopf.on.event(*resource, id=kind.plural, registry=result)(_handler(kind, listener))
    return result


def settings() -> kopf.OperatorSettings:
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.scanning.disabled = True
    result.peering.standalone = True
    result.watching.server_timeout = _SERVER_TIMEOUT_S
    result.watching.client_timeout = _CLIENT_TIMEOUT_S
    result.networking.error_backoffs = _Patience()
    result.process.ultimate_exiting_timeout = None
    for kind in kinds.WATCHED:
        resource = (kind.group, kind.version, kind.plural)
        if kind.labels:
            result.watching.label_selectors[resource] = kind.labels
        if kind.fields:
            result.watching.field_selectors[resource] = kind.fields
    return result


async def watch(listener: Listener, namespaces: Sequence[str] | None) -> None:
    """Until SIGTERM or SIGINT, which kopf takes, or until a stream fails for good."""
    scope: dict[str, Any] = (
        {"clusterwide": True} if namespaces is None else {"namespaces": sorted(set(namespaces))}
    )
    await kopf.operator(registry=registry(listener), settings=settings(), standalone=True, **scope)


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """The same order as the writing client: the service account, then KUBECONFIG."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


async def _index(**_: Any) -> None:
    """Indexes nothing: its presence makes kopf finish all listings before any handler runs."""


def _handler(kind: Kind, listener: Listener) -> Callable[..., Any]:
    async def on_event(event: Any, **_: Any) -> None:
        document: Document = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            **dict(event["object"]),
        }
        if event["type"] is None:
            listener.on_listed(kind)
        listener.on_event(kind, document, deleted=event["type"] == "DELETED")

    return on_event
