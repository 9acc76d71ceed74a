"""Text that came but whose meaning is not certain, and looking ahead in it. Pure.

Those who look ahead are generators: they yield where more text is needed, and go on when it is
there or none will come.
"""

import re
from collections.abc import Generator

WHITE = " \t\r\n"
# How much white space waits to learn whether it stands before a marker. A model that has lost its
# way writes nothing else, and to look at all of it for every token took 3 s for 60,000 of them.
MAX_WHITE = 256


class Waiting:
    """Places are counted from the first character that is not decided."""

    def __init__(self) -> None:
        self.text = ""
        self.num_decided = 0
        self.is_ended = False
        # Whether the model ended the text itself.
        self.is_whole = False

    def __len__(self) -> int:
        return len(self.text)

    def add(self, text: str) -> None:
        self.text += text

    def end(self, *, is_whole: bool) -> None:
        self.is_ended, self.is_whole = True, is_whole

    def cut(self, length: int) -> str:
        """The first characters: they are decided."""
        taken, self.text = self.text[:length], self.text[length:]
        self.num_decided += len(taken)
        return taken

    def find(self, literal: str, start: int = 0) -> int:
        return self.text.find(literal, start)

    def before(self, literal: str) -> str:
        """Without what may be the beginning of `literal`, which is not in the text."""
        return self.text[: len(self.text) - overlap(self.text, literal)]

    def skip(self, place: int, most: int | None = None) -> Generator[None, None, int]:
        """The place after white space, of which there are at most so many characters."""
        end = None if most is None else place + most
        while True:
            while place < len(self.text) and place != end and self.text[place] in WHITE:
                place += 1
            if place < len(self.text) or place == end or self.is_ended:
                return place
            yield

    def has(self, place: int, literal: str) -> Generator[None, None, bool]:
        """Whether `literal` stands at the place."""
        while len(self.text) < place + len(literal):
            if self.is_ended or not literal.startswith(self.text[place:]):
                return False
            yield
        return self.text.startswith(literal, place)

    def match(self, place: int, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """What the pattern, which may be empty, takes here; all that it could take is there."""
        while True:
            found = pattern.match(self.text, place)
            end = place if found is None else found.end()
            if end < len(self.text) or self.is_ended:
                return self.text[place:end]
            yield

    def pass_(self, place: int, pieces: tuple[str, ...]) -> Generator[None, None, int | None]:
        """The place after all pieces, with any white space before each; None: not there."""
        for piece in pieces:
            place = yield from self.skip(place)
            if not (yield from self.has(place, piece)):
                return None
            place += len(piece)
        return place

    def drop_lines(self) -> Generator[None, None, None]:
        """Line ends are decided, up to the first other character."""
        while True:
            self.cut(len(self.text) - len(self.text.lstrip("\n")))
            if self.text or self.is_ended:
                return
            yield


def num_certain(text: str, markers: tuple[str, ...]) -> int:
    """How many characters belong neither to a marker, of which none is there, nor to white space
    before one. Markers begin with `<`."""
    end = len(text)
    place = text.rfind("<")
    # No marker has a second one within.
    if place >= 0 and any(marker.startswith(text[place:]) for marker in markers):
        end = place
    return num_before(text, end)


def num_before(text: str, place: int, white: str = WHITE) -> int:
    """How many characters stand before the white space before the place."""
    start = max(0, place - MAX_WHITE)
    return start + len(text[start:place].rstrip(white))


def overlap(text: str, literal: str) -> int:
    """Length of the longest end of `text` that begins `literal`."""
    start = max(0, len(text) - len(literal) + 1)
    while (start := text.find(literal[0], start)) >= 0:
        if literal.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
