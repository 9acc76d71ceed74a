"""A rank process that tells what it was told and ends; rank 0 waits for the others to be there."""

import json
import socket
import sys
from pathlib import Path

from slipstream_api.conditions import Reason
from slipstream_engine import messages
from slipstream_engine.messages import Failed, Start


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    with connection.makefile("rb") as stream:
        head = stream.read(messages.LENGTH.size)
        start = messages.decode_to_rank(stream.read(messages.LENGTH.unpack(head)[0]))
        assert isinstance(start, Start)
        folder = Path(start.rendezvous.removeprefix("file://")).parent
        if start.rank > 0:
            (folder / f"rank-{start.rank}").touch()
            stream.read()
            return
        while not (others := list(folder.glob("rank-*"))):
            pass
        words = {"rank": start.rank, "rendezvous": start.rendezvous, "others": len(others)}
        connection.sendall(messages.encode(Failed(Reason.CONTAINER_FAILED, json.dumps(words))))


if __name__ == "__main__":
    main()
