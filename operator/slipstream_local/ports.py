"""Find free TCP ports for a new cluster; knows other clusters only by the ports they hold."""

from __future__ import annotations

import dataclasses
import random
import socket
from collections.abc import Collection

from slipstream_local.errors import LocalClusterError
from slipstream_local.layout import Ports

# Below the range from which Linux takes the source ports of connections.
FIRST, LAST = 20000, 29999
ATTEMPTS = 2000


def is_free(port: int) -> bool:
    for address in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - asked, not served
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


def choose(taken: Collection[int], rng: random.Random) -> Ports:
    names = [field.name for field in dataclasses.fields(Ports)]
    chosen: list[int] = []
    for _ in range(ATTEMPTS):
        if len(chosen) == len(names):
            break
        port = rng.randint(FIRST, LAST)
        if port not in taken and port not in chosen and is_free(port):
            chosen.append(port)
    else:
        raise LocalClusterError(f"no {len(names)} free TCP ports between {FIRST} and {LAST}")
    return Ports(**dict(zip(names, chosen, strict=True)))
