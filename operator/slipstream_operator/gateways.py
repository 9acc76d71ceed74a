"""Whose entries in a route's status go: those of gateways that are no more. Pure.

A gateway takes its entries out when it ends. One that was killed leaves them for ever, and a
route's status holds a limited number: without room, no new gateway could acknowledge anything.
"""

from dataclasses import dataclass

from slipstream_operator import documents
from slipstream_operator.documents import Document, Ref
from slipstream_operator.observed import GatewayEntry

# Far more than a Lease lasts, an API server is away or a gateway needs to start. Too early costs
# little: a gateway that lives sees the loss and writes its entry again.
FORGOTTEN_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An entry to take out, in the name of the gateway (namespace, name) that wrote it."""

    route: Ref
    gateway: tuple[str, str]

    def __str__(self) -> str:
        return f"entry of gateway {'/'.join(self.gateway)} in {self.route}"


def withdrawals(
    route: Document | None, entries: tuple[GatewayEntry, ...]
) -> tuple[Withdrawal, ...]:
    """Nobody waits for the moment when an entry becomes due: every model has a pass every few
    minutes, and dead entries cost nothing until there are many."""
    if route is None:
        return ()
    ref = documents.ref(route, with_uid=True)
    return tuple(
        Withdrawal(ref, (entry.namespace, entry.name))
        for entry in entries
        if entry.silent_s > FORGOTTEN_AFTER_S
    )
