"""The text of one answer, piece by piece, becomes content, thinking and calls.

However the text is cut, the outcome is the same, and nothing that was given out is taken back. A
call is given out whole, when all of it is there: an argument that is streamed could be cut off by
the answer's limit, and a file half written is worse than one written late. A call that is not one,
or not all of one, stays content. Markers inside of arguments are data.

Calls that a model thinks of are thinking. But models forget to end it before they call (Kimi K2,
GLM 4.5 and Qwen 3.5 do): calls that nothing follows, neither thinking nor content, were meant.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from slipstream_engine.tools.arguments import Schema
from slipstream_engine.tools.calls import Call, CallReader, NoCall
from slipstream_engine.tools.formats import Formats
from slipstream_engine.tools.waiting import MAX_WHITE, WHITE, Waiting, num_before, num_certain

_Steps = Generator[None, None, None]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer may hold beside content.

    `schemas`: the parameters of each offered tool by its name; no calls where it is empty.
    `is_thinking`: the prompt has opened thinking. `max_calls`: the answer ends with so many.
    """

    formats: Formats = field(default_factory=Formats)
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    is_thinking: bool = False
    max_calls: int | None = None

    @property
    def is_plain(self) -> bool:
        """All of its text is content."""
        return self.formats.reasoning is None and not self.schemas


@dataclass(frozen=True, slots=True)
class Said:
    """What is new and certain.

    `num_decided`: characters of the whole text so far whose meaning is certain; `spans`: which of
    the new ones are content.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    num_decided: int = 0
    spans: tuple[tuple[int, int], ...] = ()


class Parser:
    """`push` what comes, `take` what is certain, `finish` once; `take` then gives the rest.

    `is_full`: all calls are there that the answer may hold; what comes after counts for nothing.
    `num_malformed`: what was meant as a call and stayed content.
    """

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._tools = form.formats.tools if form.schemas else None
        self._reasoning = form.formats.reasoning
        self._text = Waiting()
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Call] = []
        self._ids: set[str] = set()
        self._spans: list[tuple[int, int]] = []
        self._reader = None if self._tools is None else CallReader(self._tools, form.schemas)
        self._is_after_calls = False
        self.num_calls = 0
        self.num_malformed = 0
        self.is_thinking = False
        self.is_full = False
        self._steps = self._run()
        next(self._steps)

    def push(self, text: str) -> None:
        self._text.add(text)
        next(self._steps)

    def finish(self, *, is_whole: bool) -> None:
        """`is_whole`: the model came to its own end; nothing cut it off."""
        self._text.end(is_whole=is_whole)
        for _ in self._steps:
            pass

    def take(self) -> Said:
        said = Said(
            "".join(self._content),
            "".join(self._thoughts),
            tuple(self._calls),
            self._text.num_decided,
            tuple(self._spans),
        )
        for taken in (self._content, self._thoughts, self._calls, self._spans):
            taken.clear()
        return said

    def _run(self) -> _Steps:
        if self._form.is_thinking and self._reasoning is not None:
            self.is_thinking = True
            # Some models begin it once more.
            place = yield from self._text.skip(0, MAX_WHITE)
            if (yield from self._text.has(place, self._reasoning.begin)):
                self._text.cut(place + len(self._reasoning.begin))
            yield from self._think(self._reasoning.end)
        while True:
            yield from self._begin_part()
            if self._reader is None:
                yield from self._say_all()
                return
            if not (yield from self._say_until_calls(self._reader)):
                return

    def _begin_part(self) -> _Steps:
        """Thinking, where it begins here: before any content, or after calls."""
        while self._reasoning is not None:
            place = yield from self._text.skip(0, MAX_WHITE)
            if not (yield from self._text.has(place, self._reasoning.begin)):
                return
            self._text.cut(place + len(self._reasoning.begin))
            yield from self._think(self._reasoning.end)

    def _think(self, end: str) -> _Steps:
        """All up to `end` is thinking; line ends beside the markers belong to those."""
        self.is_thinking = True
        waiting = self._text
        yield from waiting.drop_lines()
        may_call = yield from self._think_until_call(end)
        place, num_searched = waiting.find(end), 0
        while place < 0 and not waiting.is_ended:
            num_searched = max(0, len(waiting) - len(end))
            yield
            place = waiting.find(end, num_searched)
        length = len(waiting.before(end)) if place < 0 else place
        if may_call and (last := last_calls(self._form, waiting.text[:length])) is not None:
            # Nothing follows but the end of thinking.
            after = yield from waiting.skip(length + (0 if place < 0 else len(end)))
            if after == len(waiting) and waiting.is_whole:
                self._thoughts.append(waiting.cut(last.start).rstrip(WHITE))
                room = None if (most := self._form.max_calls) is None else most - self.num_calls
                for call in last.calls[:room]:
                    self._call(call)
                waiting.cut(len(waiting))
                return
        self._thoughts.append(waiting.cut(num_before(waiting.text, length, "\n")))
        waiting.cut(len(waiting) if place < 0 else waiting.find(end) + len(end))
        if place >= 0:
            self.is_thinking = False
            yield from waiting.drop_lines()

    def _think_until_call(self, end: str) -> Generator[None, None, bool]:
        """Thinking up to `end`, or up to what may be a call (True) and waits from then on."""
        waiting, reader = self._text, self._reader
        markers = (end,) if reader is None else (end, *reader.begins)
        while True:
            place = waiting.find(end)
            found = None if reader is None else reader.find_begin(waiting.text)
            if reader is not None and found is not None and not 0 <= place < found.start():
                self._thoughts.append(waiting.cut(num_before(waiting.text, found.start())))
                start = waiting.find(found[0])
                if (yield from reader.has_begun(waiting, start, found[0])):
                    return True
                self._thoughts.append(waiting.cut(start + len(found[0])))
                continue
            if place >= 0 or waiting.is_ended:
                return False
            self._thoughts.append(waiting.cut(num_certain(waiting.text, markers)))
            yield

    def _say_all(self) -> _Steps:
        while True:
            self._say(len(self._text))
            if self._text.is_ended:
                return
            yield

    def _say_until_calls(self, reader: CallReader) -> Generator[None, None, bool]:
        """Content up to calls and these calls; False: the answer came to its end.

        White space before calls is theirs: models set it as they like.
        """
        waiting = self._text
        while True:
            found = reader.find_begin(waiting.text)
            if found is None:
                self._say(num_certain(waiting.text, reader.begins))
                if waiting.is_ended:
                    self._say_rest()
                    return False
                yield
                continue
            num_said = num_before(waiting.text, found.start())
            self._say(num_said)
            num_calls = self.num_calls
            yield from self._read_calls(reader, found.start() - num_said, found[0])
            if self.num_calls > num_calls:
                return True

    def _read_calls(self, reader: CallReader, start: int, marker: str) -> _Steps:
        """Calls from the marker at the place on, or text that only looked like it."""
        place: int | NoCall | None = yield from reader.enter(self._text, start, marker)
        while place is not None:
            read = (
                place if isinstance(place, NoCall) else (yield from reader.read(self._text, place))
            )
            if isinstance(read, NoCall):
                self.num_malformed += read.is_malformed
                self._say(read.end)
                if read.is_end_unknown:
                    yield from self._say_all()
                return
            self._text.cut(read.end)
            self._call(read.call)
            self._is_after_calls = True
            if self.num_calls == self._form.max_calls:
                self.is_full = True
                yield from self._drop_all()
            place = yield from reader.go_on(self._text)

    def _call(self, call: Call) -> None:
        # Clients tell results by ids, and models begin to count anew.
        if call.id in self._ids:
            call = replace(call, id=None)
        elif call.id is not None:
            self._ids.add(call.id)
        self._calls.append(call)
        self.num_calls += 1

    def _say(self, length: int) -> None:
        if length > 0:
            self._is_after_calls = False
            start = self._text.num_decided
            self._content.append(self._text.cut(length))
            self._spans.append((start, start + length))

    def _say_rest(self) -> None:
        """White space that stands alone after the last call is nobody's."""
        if self._is_after_calls and not self._text.text.strip(WHITE):
            self._text.cut(len(self._text))
        self._say(len(self._text))

    def _drop_all(self) -> _Steps:
        while True:
            self._text.cut(len(self._text))
            if self._text.is_ended:
                return
            yield


@dataclass(frozen=True, slots=True)
class LastCalls:
    """Calls with which a text ends; the first one, or white space before it, begins at `start`."""

    start: int
    calls: tuple[Call, ...]


def last_calls(form: AnswerForm, text: str) -> LastCalls | None:
    """The calls of offered tools that end a text. None: there are none, or more text follows."""
    if form.formats.tools is None:
        return None
    # From one beginning to the next, there are calls and then content, or content alone.
    begins = CallReader(form.formats.tools, form.schemas).find_begins(text)
    cuts = [0, *begins[1:], len(text)]
    parser = Parser(AnswerForm(Formats(form.formats.tools), form.schemas))
    start, calls = 0, list[Call]()
    for piece in [*(text[a:b] for a, b in pairwise(cuts)), None]:
        if piece is None:
            parser.finish(is_whole=True)
        else:
            parser.push(piece)
        said = parser.take()
        calls += said.calls
        if said.content.strip(WHITE):
            start = said.spans[-1][1]
            calls = list(said.calls) if start < said.num_decided else []
    is_meant = bool(calls) and all(call.name in form.schemas for call in calls)
    return LastCalls(start, tuple(calls)) if is_meant else None
