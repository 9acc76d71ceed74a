"""The one door to the Kubernetes API: lists, server-side applies, deletes, the Lease.

Knows requests and answers, no plan. Every write passes the gate: none starts, and none is still
under way, when another operator may hold the Lease.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

from slipstream_api import names
from slipstream_operator import documents, kinds
from slipstream_operator.documents import Document, Ref
from slipstream_operator.gateways import Withdrawal
from slipstream_operator.kinds import Kind
from slipstream_operator.metrics import Metrics

_PAGE_LEN = 500
_READ_TIMEOUT_S = 30.0
_APPLY = "application/apply-patch+yaml"
# What the API server calls an internal error and answers to the same write again: a field or value
# that server-side apply cannot read (a quantity that is none), a webhook that cannot be called.
_REFUSALS = (
    "not declared in schema",
    "failed to create typed patch",
    "failed to convert new object",
    "failed calling webhook",
)

# ClusterError
# ├── RefusedError      the API server will not take this write; repeating it as it is does not help
# ├── ConflictError     someone else was first, or the object is gone: look again
# ├── UnavailableError  no answer, or a temporary one
# └── NotLeaderError    this process may not write


class ClusterError(Exception):
    """A request that did not do what was asked."""


class RefusedError(ClusterError):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ConflictError(ClusterError):
    """Also: not found."""


class UnavailableError(ClusterError):
    """Try again later."""


class NotLeaderError(ClusterError):
    """Not a failure of the model: another replica does its work."""


class Cluster:
    """`window_s()`: how long from now a write may start (see `leader.write_window_s`)."""

    def __init__(
        self,
        config: SingleConfig,
        *,
        window_s: Callable[[], float],
        write_timeout_s: float,
        metrics: Metrics,
        user_agent: str,
    ) -> None:
        self._window_s = window_s
        self._write_timeout_s = write_timeout_s
        self._metrics = metrics
        self._http = _client(config, write_timeout_s, user_agent)

    async def close(self) -> None:
        await self._http.aclose()

    async def list(self, kind: Kind, namespace: str | None) -> tuple[list[Document], str]:
        """Every object of a kind (with its selectors), and the version of the list."""
        items: list[Document] = []
        query: dict[str, str] = {"limit": str(_PAGE_LEN)}
        if kind.labels:
            query["labelSelector"] = kind.labels
        if kind.fields:
            query["fieldSelector"] = kind.fields
        while True:
            page = await self._read(kind.path(namespace), query)
            for item in page.get("items") or []:
                items.append({"apiVersion": kind.api_version, "kind": kind.kind, **item})
            version = str(page["metadata"].get("resourceVersion") or "")
            following = page["metadata"].get("continue")
            if not following:
                return items, version
            query["continue"] = following

    async def get(
        self, kind: Kind, namespace: str, name: str, *, timeout_s: float = _READ_TIMEOUT_S
    ) -> Document | None:
        try:
            return await self._send("GET", kind.path(namespace, name), {}, None, timeout_s)
        except ConflictError:
            return None

    async def create(self, document: Document) -> Document:
        """Raises ConflictError when it exists."""
        kind = kinds.of(document)
        return await self._write(
            "create", kind, "POST", kind.path(documents.namespace(document)), document
        )

    async def apply(self, document: Document) -> Document:
        kind = kinds.of(document)
        path = kind.path(documents.namespace(document), documents.name(document))
        return await self._write("apply", kind, "PATCH", path, document)

    async def delete(self, ref: Ref) -> Document | None:
        """Delete that very object; None when it is gone already or was replaced."""
        kind = kinds.by_name(ref.kind)
        body: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if ref.uid is not None:
            body["preconditions"] = {"uid": ref.uid}
        try:
            answer = await self._write(
                "delete", kind, "DELETE", kind.path(ref.namespace, ref.name), body
            )
        except ConflictError:
            return None
        return answer if answer.get("kind") == ref.kind else None

    async def withdraw(self, withdrawal: Withdrawal) -> Document:
        """Take a gateway's entry out of a route's status: what was applied in its name is applied
        anew without it, so nobody owns the entry any more."""
        ref = withdrawal.route
        document = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "metadata": {"name": ref.name, "uid": ref.uid},
            "status": {"gateways": []},
        }
        path = kinds.ROUTE.path(ref.namespace, ref.name) + "/status"
        manager = names.gateway_field_manager(*withdrawal.gateway)
        return await self._write("withdraw", kinds.ROUTE, "PATCH", path, document, manager=manager)

    async def write_status(self, model: Document, status: Mapping[str, Any]) -> Document:
        path = kinds.MODEL.path(documents.namespace(model), documents.name(model)) + "/status"
        document = {
            "apiVersion": names.API_VERSION,
            "kind": kinds.MODEL.kind,
            # With its uid: a model that was deleted and made anew keeps its own status.
            "metadata": {"name": documents.name(model), "uid": documents.uid(model)},
            "status": status,
        }
        return await self._write("status", kinds.MODEL, "PATCH", path, document)

    async def put_lease(self, lease: Document, *, timeout_s: float) -> Document:
        """Create (without a resourceVersion) or update the Lease; not gated: it is the gate.

        Raises ConflictError when another process was first.
        """
        is_new = "resourceVersion" not in lease["metadata"]
        path = kinds.LEASE.path(
            documents.namespace(lease), None if is_new else documents.name(lease)
        )
        return await self._send("POST" if is_new else "PUT", path, {}, lease, timeout_s)

    async def _read(self, path: str, query: Mapping[str, str]) -> Document:
        return await self._send("GET", path, query, None, _READ_TIMEOUT_S)

    async def _write(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        body: Document,
        *,
        manager: str = names.FIELD_MANAGER,
    ) -> Document:
        if self._window_s() <= 0:
            raise NotLeaderError(f"{verb} {path}: the lease is not held")
        query = {"timeout": f"{max(1, int(self._write_timeout_s))}s"}
        if method != "DELETE":
            query["fieldManager"] = manager
        if method == "PATCH":
            query["force"] = "true"
        self._metrics.writes.labels(verb, kind.kind).inc()
        return await self._send(method, path, query, body, self._write_timeout_s, fenced=True)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Document | None,
        timeout_s: float,
        *,
        fenced: bool = False,
    ) -> Document:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": _APPLY if method == "PATCH" else "application/json"}
        request = self._http.build_request(
            method, path, params=dict(query), content=content, headers=headers
        )
        if fenced:
            request.extensions["window_s"] = self._window_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._http.send(request)
        except (TimeoutError, httpx2.HTTPError) as error:
            raise UnavailableError(f"{method} {path}: {error or type(error).__name__}") from error
        return _read_answer(answer, f"{method} {path}")


def load_config() -> SingleConfig:
    """In the cluster: the service account. Elsewhere: KUBECONFIG."""
    config = KubeConfig.from_env().get()
    if config is None:
        raise UnavailableError("neither a service account nor KUBECONFIG names a cluster")
    return config


def _read_answer(answer: httpx2.Response, what: str) -> Document:
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    if answer.is_success:
        return document
    code = answer.status_code
    message = str(document.get("message") or answer.reason_phrase)
    raise answer_error(code, message, what)


def answer_error(code: int, message: str, what: str) -> ClusterError:
    """What an answer that is no success means for whoever asked."""
    if code in (404, 409):
        return ConflictError(f"{what}: {code}: {message}")
    if code in (400, 403, 413, 422) or any(words in message for words in _REFUSALS):
        return RefusedError(code, message)
    return UnavailableError(f"{what}: {code}: {message}")


class _Fence(httpx2.AsyncBaseTransport):
    """Looks at the lease again right before the bytes leave."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        window_s = request.extensions.pop("window_s", None)
        if window_s is not None and window_s() <= 0:
            raise NotLeaderError(f"{request.method} {request.url.path}: the lease is not held")
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _client(config: SingleConfig, write_timeout_s: float, user_agent: str) -> httpx2.AsyncClient:
    user = config.user or User()
    tls = client_adapter.verify_cluster(config.cluster, user, config.abs_file)
    options: list[Any] = [
        # A request that was cut must not reach the API server later: the kernel forgets what it
        # has not delivered, both when the connection closes and when nobody acknowledges.
        (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(write_timeout_s * 1000))),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ]
    transport = httpx2.AsyncHTTPTransport(verify=tls, socket_options=options, retries=0)
    return httpx2.AsyncClient(
        base_url=config.cluster.server,
        auth=client_adapter.user_auth(user),
        transport=_Fence(transport),
        headers={"User-Agent": user_agent, "Accept": "application/json"},
        timeout=httpx2.Timeout(_READ_TIMEOUT_S),
    )
