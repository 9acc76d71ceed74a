"""The one door to Kubernetes: documents in, acknowledgements and the Lease out.

Decides nothing; every write is bounded in time. Callers see ClusterError only.

    ClusterError
    └── Expired        the version to watch from is too old: list again
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec
from lightkube import ALL_NS, AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.types import PatchType

from slipstream_api import names
from slipstream_gateway.view import Acknowledgement, Key

Document = Mapping[str, Any]

# A watch ends itself after this long, so a connection that died without a word is noticed then.
WATCH_S = 120
_SLACK_S = 10
WRITE_TIMEOUT_S = 5.0
_LIST_CHUNK = 500


class ClusterError(Exception):
    """The API server did not do what it was asked; `status` is its HTTP status, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Expired(ClusterError):  # noqa: N818  (a state of the watch, not a fault)
    pass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this gateway is: its Pod. With the Pod's uid its Lease is collected with it."""

    name: str
    namespace: str
    uid: str | None = None

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Kind:
    """What is watched, and which objects of it."""

    name: str
    resource: type[GenericNamespacedResource]
    labels: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()


ROUTES = Kind(
    "ModelRoute",
    create_namespaced_resource(names.GROUP, names.VERSION, "ModelRoute", "modelroutes"),
)
# The EndpointSlice controller copies a Service's labels.
SLICES = Kind(
    "EndpointSlice",
    create_namespaced_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    labels=((names.LABEL_MANAGED_BY, names.MANAGED_BY),),
)
# This field selector is what lets RBAC grant one Secret by name.
TOKENS = Kind(
    "Secret",
    create_namespaced_resource("", "v1", "Secret", "secrets"),
    fields=(("metadata.name", names.TOKEN_SECRET),),
)
_LEASES = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")


def scopes(namespaces: list[str] | None) -> list[str]:
    """What is watched: every namespace at once, or each of a list."""
    return [ALL_NS] if namespaces is None else sorted(set(namespaces))


class Cluster:
    """Reads for one scope, or writes in one gateway's name; holds its own connections."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._client = AsyncClient()

    async def close(self) -> None:
        await self._client.close()

    async def list_all(self, kind: Kind, scope: str) -> tuple[str, list[Document]]:
        """Every object, and the version to watch from."""
        listing = self._client.list(
            kind.resource,
            namespace=scope,
            chunk_size=_LIST_CHUNK,
            labels=dict(kind.labels),
            fields=dict(kind.fields),
        )
        with _translated():
            items = [cast(Document, item) async for item in listing]
        return listing.resourceVersion, items

    async def watch(
        self, kind: Kind, scope: str, version: str
    ) -> AsyncIterator[tuple[bool, Document]]:
        """What changes after `version`: (still there, object). Ends when nothing came for long."""
        events = self._client.watch(
            kind.resource,
            namespace=scope,
            labels=dict(kind.labels),
            fields=dict(kind.fields),
            server_timeout=WATCH_S,
            resource_version=version,
        )
        async with aclosing(cast(Any, events)) as stream:
            while True:
                try:
                    with _translated():
                        async with asyncio.timeout(WATCH_S + _SLACK_S):
                            operation, document = await anext(stream)
                except TimeoutError:
                    return
                yield operation != "DELETED", document

    async def acknowledge(self, item: Acknowledgement) -> None:
        """Write this gateway's own entry of a ModelRoute's status."""
        entry = {
            "name": self._identity.name,
            "namespace": self._identity.namespace,
            "observedGeneration": item.generation,
        }
        await self._apply_entries(item.namespace, item.name, [entry])

    async def withdraw(self, namespace: str, name: str) -> None:
        """Take this gateway's own entry out again."""
        await self._apply_entries(namespace, name, [])

    async def write_lease(self, *, duration_s: int, acquired_at: str, renewed_at: str) -> None:
        """Make or renew the Lease that says this gateway lives. Times: RFC 3339, microseconds."""
        metadata: dict[str, Any] = {
            "name": self._identity.name,
            "namespace": self._identity.namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_COMPONENT: "gateway",
            },
        }
        if self._identity.uid is not None:
            owner = {"apiVersion": "v1", "kind": "Pod"}
            owner |= {"name": self._identity.name, "uid": self._identity.uid}
            metadata["ownerReferences"] = [owner]
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity.name,
                "leaseDurationSeconds": duration_s,
                "acquireTime": acquired_at,
                "renewTime": renewed_at,
            },
        }
        await self._apply(_LEASES, self._identity.namespace, self._identity.name, lease)

    async def delete_lease(self) -> None:
        name, namespace = self._identity.name, self._identity.namespace
        await _bounded(self._client.delete(_LEASES, name, namespace=namespace))

    async def _apply_entries(self, namespace: str, name: str, entries: list[Document]) -> None:
        document = {
            "apiVersion": names.API_VERSION,
            "kind": ROUTES.name,
            "metadata": {"name": name, "namespace": namespace},
            "status": {"gateways": entries},
        }
        await self._apply(ROUTES.resource.Status, namespace, name, document)

    async def _apply(self, resource: Any, namespace: str, name: str, document: Document) -> None:
        await _bounded(
            self._client.patch(
                resource,
                name,
                dict(document),
                namespace=namespace,
                patch_type=PatchType.APPLY,
                field_manager=names.gateway_field_manager(*self._identity.key),
                force=True,
            )
        )


@contextmanager
def _translated() -> Iterator[None]:
    """The client's errors as ours."""
    try:
        yield
    except ApiError as error:
        kind = Expired if error.status.code == HTTPStatus.GONE else ClusterError
        raise kind(error.status.message or str(error), error.status.code) from error
    except (httpx2.HTTPError, msgspec.MsgspecError, ssl.SSLError) as error:
        # The second: a line that a broken connection cut in two.
        raise ClusterError(f"{type(error).__name__}: {error}") from error
    except StopAsyncIteration as error:
        raise ClusterError("the watch ended") from error


async def _bounded(write: Awaitable[Any]) -> None:
    try:
        with _translated():
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await write
    except TimeoutError as error:
        raise ClusterError(f"no answer within {WRITE_TIMEOUT_S:.0f} s") from error
