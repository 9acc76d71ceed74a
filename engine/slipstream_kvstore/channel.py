"""One TCP connection as exact numbers of bytes, straight from and into the caller's memory.

`loop.sock_*` on plain sockets: asyncio's streams copy every page twice more. The caller sets the
deadlines and closes the channel after any error: what was half read cannot be taken up again.
"""

import asyncio
import socket
from typing import Any

# What is thrown away goes here; nobody reads it, so all channels share one.
_WASTE = memoryview(bytearray(256 * 1024))

Address = tuple[Any, ...]


class ClosedError(ConnectionError):
    """The peer closed where more was to come; `num_received` bytes of that had come."""

    def __init__(self, num_received: int, num_bytes: int) -> None:
        super().__init__(f"closed after {num_received} of {num_bytes} bytes")
        self.num_received = num_received


class Channel:
    """Owns its socket. Every method may raise OSError (`ClosedError` is one)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Small messages wait for an answer; they must not wait for company.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    async def receive_into(self, target: memoryview) -> None:
        """Fill `target` (a flat view of bytes)."""
        filled = 0
        while filled < len(target):
            count = await self._loop.sock_recv_into(self._socket, target[filled:])
            if not count:
                raise ClosedError(filled, len(target))
            filled += count

    async def receive(self, num_bytes: int) -> bytes:
        """Exactly so many; the caller has checked the number against a limit."""
        data = bytearray(num_bytes)
        await self.receive_into(memoryview(data))
        return bytes(data)

    async def discard(self, num_bytes: int) -> None:
        """Read and forget; takes no memory."""
        while num_bytes > 0:
            part = _WASTE[: min(num_bytes, len(_WASTE))]
            await self.receive_into(part)
            num_bytes -= len(part)

    async def send(self, *parts: bytes | memoryview) -> None:
        """All of the parts in order. They must not change before this returns."""
        left = [memoryview(part) for part in parts if len(part)]
        try:
            sent = self._socket.sendmsg(left)
        except BlockingIOError:
            sent = 0
        for part in left:
            if sent < len(part):
                await self._loop.sock_sendall(self._socket, part[sent:])
            sent = max(0, sent - len(part))

    def is_quiet(self) -> bool:
        """Open, with nothing to read: what a connection between two requests must be."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()


async def connect(host: str, port: int) -> Channel:
    """To the first of the host's addresses that takes a connection. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"no host name: {error}") from error
    last = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            return Channel(sock)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
    raise last


def listen(host: str, port: int) -> socket.socket:
    """`::` listens on both families. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server(
        (host, port), family=family, backlog=128, dualstack_ipv6=host == "::"
    )
    sock.setblocking(False)
    return sock
