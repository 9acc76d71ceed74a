"""Which track and which replica one request goes to. Pure; knows no cluster and no HTTP."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream_api import names
from slipstream_gateway.table import Model, Replica, RoutingTable, Track

BASIS_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """`fell_back`: the session's own track had no replica, another one answers."""

    model: Model
    track: Track
    replica: Replica
    fell_back: bool


@dataclass(frozen=True, slots=True)
class NotFound:
    """No model has this name."""


@dataclass(frozen=True, slots=True)
class NothingReady:
    """The model exists; no track with a weight has a replica."""

    model: Model


Resolution = Target | NotFound | NothingReady


def resolve(
    table: RoutingTable,
    name: str,
    session: bytes,
    outstanding: Mapping[str, int],
    *,
    excluded: frozenset[str] = frozenset(),
) -> Resolution:
    """Where a request for `name` goes.

    `outstanding`: requests of this gateway by `replica_key`; `excluded`: such keys already tried.
    """
    model = table.by_name.get(name)
    if model is None:
        return NotFound()
    own = choose_track(model, session, model.tracks)
    usable = [
        track
        for track in model.tracks
        if any(replica_key(model, replica) not in excluded for replica in track.replicas)
    ]
    track = own if own in usable else choose_track(model, session, usable)
    if track is None:
        return NothingReady(model)
    replica = choose_replica(model, track, session, outstanding, excluded)
    return Target(model=model, track=track, replica=replica, fell_back=track is not own)


def choose_track(model: Model, session: bytes, tracks: Sequence[Track]) -> Track | None:
    """The track whose share of [0, 10000) holds the session's point.

        0          w(canary)                    10000 - w(baseline)      10000
        |  canary  |           stable           |        baseline        |

    The canary grows from the left and a baseline from the right, both out of stable's middle:
    whoever is on either stays there while its weight grows. The point depends on the model, so
    that the same sessions are not the first on every canary.
    """
    ordered = sorted((t for t in tracks if t.weight > 0), key=_position)
    total = sum(track.weight for track in ordered)
    if not ordered:
        return None
    position = session_point(model, session) * total
    reached = 0
    for track in ordered:
        reached += track.weight * BASIS_POINTS
        if position < reached:
            return track
    raise AssertionError(f"point {position} of {reached} in {model.qualified_name}")


def choose_replica(
    model: Model,
    track: Track,
    session: bytes,
    outstanding: Mapping[str, int],
    excluded: frozenset[str],
) -> Replica:
    """The replica with the least outstanding requests; of equals, always the session's own."""

    def rank(replica: Replica) -> tuple[int, int]:
        digest = hashlib.blake2b(session + replica.pod.encode(), digest_size=8)
        return outstanding.get(replica_key(model, replica), 0), int.from_bytes(digest.digest())

    return min((r for r in track.replicas if replica_key(model, r) not in excluded), key=rank)


def replica_key(model: Model, replica: Replica) -> str:
    """A Pod among all namespaces."""
    return f"{model.namespace}/{replica.pod}"


def session_point(model: Model, session: bytes) -> int:
    """Where a session stands in [0, 10000) for one model."""
    digest = hashlib.blake2b(session + model.qualified_name.encode(), digest_size=8)
    return int.from_bytes(digest.digest()) % BASIS_POINTS


def _position(track: Track) -> tuple[int, str]:
    order = {"canary": 0, names.TRACK_STABLE: 1}
    return order.get(track.name, 2), track.name
