"""Server-sent events: bytes in any pieces become the data of whole events. Knows no JSON.

The WHATWG HTML standard, section 9.2: lines end with LF, CR LF or CR; an empty line ends an
event; `data` lines of one event are joined by LF; comments and other fields are passed over.
"""

# A chunk of a chat answer is some hundred bytes; a whole answer in one event is still far less.
MAX_EVENT_BYTES = 4 * 1024 * 1024


class EventTooLongError(ValueError):
    pass


class EventReader:
    """Holds the bytes of one unfinished event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that is complete now. Raises EventTooLongError."""
        data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # its LF may still be on the way
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLongError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return [payload for block in blocks if (payload := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
