"""Reads calls where they begin in the waiting text, by a format's description. Pure.

Of JSON only the end is looked for, outside of strings; whether it is valid is judged once. A
format without escapes is read by what must follow: a closing tag closes its value where another
argument or the call's end comes next and no tag of the same kind stands open within the value.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from slipstream_engine.tools import arguments, formats
from slipstream_engine.tools.arguments import Schema
from slipstream_engine.tools.formats import Parameters, ToolFormat
from slipstream_engine.tools.waiting import Waiting

_WORD = re.compile(r"[A-Za-z0-9_.:-]{0,160}")
_NAME = re.compile(formats.NAME_PATTERN)
_KEY = re.compile(f"(?:{formats.KEY_PATTERN})?")
_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_CLOSES = {"{": "}", "[": "]"}
# White space within an opening tag.
_GAP = r"\s{0,8}"


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments`: a JSON object. `id`: the model's own, where its format has any."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A whole call, which ends at the place."""

    call: Call
    end: int


@dataclass(frozen=True, slots=True)
class NoCall:
    """Text up to the place is content, and calls may follow after it.

    `is_malformed`: it was meant as a call. `is_end_unknown`: what follows may be an argument of
    it, so no call in it is believed.
    """

    end: int
    is_malformed: bool = False
    is_end_unknown: bool = False


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object's text by its brackets; where it ends rests on its quotes, if it has any."""

    text: str
    end: int
    has_quotes: bool


class CallReader:
    """`schemas`: the parameters of the offered tools, by name."""

    def __init__(self, tools: ToolFormat, schemas: Mapping[str, Schema]) -> None:
        self._format = tools
        self._schemas = schemas
        self._section_begin = tools.section_begin.strip()
        self._section_end = tools.section_end.strip()
        self._end = formats.pieces(tools.end)
        self._after_name = formats.pieces(tools.after_name)
        begins = [tools.first_marker]
        if tools.has_bare_calls and tools.has_ids:
            begins.append(tools.begin)
        elif tools.has_bare_calls:
            # Its first word is prose too.
            begins += [f"{tools.begin}{name}{self._after_name[0]}" for name in schemas]
        self.begins = tuple(begins)
        self._begin = re.compile("|".join(map(re.escape, begins)))
        self._structure = re.compile(r'["{}\[\]]|' + re.escape(self._end[-1]))
        own = tools.parameters
        self._elements = None if own is None else _Elements(own)

    def find_begin(self, text: str) -> re.Match[str] | None:
        return self._begin.search(text)

    def find_begins(self, text: str) -> list[int]:
        """Where calls may begin in a text."""
        return [found.start() for found in self._begin.finditer(text)]

    def enter(
        self, waiting: Waiting, start: int, marker: str
    ) -> Generator[None, None, int | NoCall]:
        """The place after the `begin` of the first call, whose first marker stands at `start`."""
        end = start + len(marker)
        if marker != self._section_begin:
            return start + len(self._format.begin)
        place = yield from waiting.skip(end)
        if (yield from waiting.has(place, self._format.begin)):
            return place + len(self._format.begin)
        return NoCall(end)

    def has_begun(self, waiting: Waiting, start: int, marker: str) -> Generator[None, None, bool]:
        """Whether a call of an offered tool seems to follow the marker at the place, not prose."""
        place = yield from self.enter(waiting, start, marker)
        if isinstance(place, NoCall):
            return False
        if self._format.has_envelope:
            place = yield from waiting.skip(place)
            return (yield from waiting.has(place, "{"))
        header = yield from self._read_header(waiting, place)
        return header is not None and header[0] in self._schemas

    def go_on(self, waiting: Waiting) -> Generator[None, None, int | None]:
        """After a call: the place after the next one's `begin` in the same section.

        None: there is none; the section's end, if it is there, is decided.
        """
        if not self._section_begin:
            return None
        place = yield from waiting.skip(0)
        if (yield from waiting.has(place, self._section_end)):
            waiting.cut(place + len(self._section_end))
        elif (yield from waiting.has(place, self._format.begin)):
            return place + len(self._format.begin)
        return None

    def read(self, waiting: Waiting, place: int) -> Generator[None, None, Read | NoCall]:
        """One call from the place after its `begin` on."""
        if self._format.has_envelope:
            return (yield from self._read_json(waiting, place, None, None))
        header = yield from self._read_header(waiting, place)
        if header is None:
            return NoCall(place)
        name, id_, place = header
        if self._elements is None:
            return (yield from self._read_json(waiting, place, name, id_))
        return (yield from self._read_elements(waiting, place, name, self._elements))

    def _read_header(
        self, waiting: Waiting, place: int
    ) -> Generator[None, None, tuple[str, str | None, int] | None]:
        place = yield from waiting.skip(place)
        word = yield from waiting.match(place, _WORD)
        end = yield from waiting.pass_(place + len(word), self._after_name)
        name, id_ = self._name(word)
        return None if end is None or name is None else (name, id_, end)

    def _name(self, word: str) -> tuple[str | None, str | None]:
        """Name and id. Without the whole form of an id, a word must be the name of a tool."""
        if not self._format.has_ids:
            return (word, None) if _NAME.fullmatch(word) else (None, None)
        whole = re.fullmatch(rf"functions\.({formats.NAME_PATTERN}):\d{{1,9}}", word)
        if whole is not None:
            return whole[1], word
        name = word.removeprefix("functions.").partition(":")[0]
        return (name, None) if name in self._schemas else (None, None)

    def _read_json(
        self, waiting: Waiting, place: int, name: str | None, id_: str | None
    ) -> Generator[None, None, Read | NoCall]:
        start = yield from waiting.skip(place)
        if not (yield from waiting.has(start, "{")):
            return NoCall(place)
        found = yield from self._find_object(waiting, start)
        if found is None:
            return NoCall(len(waiting), is_malformed=True, is_end_unknown=True)
        if name is None:
            call = arguments.read_envelope(found.text)
            if call is not None and not _NAME.fullmatch(call[0]):
                call = None
        else:
            made = arguments.read_object(found.text)
            call = None if made is None else (name, made)
        if call is None:
            unknown = found.has_quotes and not arguments.is_json(found.text)
            return NoCall(found.end, is_malformed=True, is_end_unknown=unknown)
        # One brace too many is a common slip.
        extra = ("}",) if self._format.has_envelope else ()
        end = yield from self._pass_end(waiting, found.end, (*extra, *self._end))
        return Read(Call(*call, id_), end)

    def _pass_end(
        self, waiting: Waiting, place: int, pieces: tuple[str, ...]
    ) -> Generator[None, None, int]:
        """The place after those of the pieces that are there."""
        for piece in pieces:
            next_ = yield from waiting.skip(place)
            if (yield from waiting.has(next_, piece)):
                place = next_ + len(piece)
        return place

    def _find_object(self, waiting: Waiting, start: int) -> Generator[None, None, _Object | None]:
        """The object whose brace stands at the place; None: the answer ends before it does.

        The call's end marker, outside of strings, closes what is open: the model said that it is
        done.
        """
        open_: list[str] = []
        place, in_string, has_quotes = start, False, False
        while True:
            if in_string:
                match = _STRING.match(waiting.text, place)
                place = place if match is None else match.end()
                if waiting.text.startswith('"', place):
                    place, in_string = place + 1, False
                    continue
            elif (found := self._structure.search(waiting.text, place)) is not None:
                mark, place = found[0], found.end()
                if mark == '"':
                    in_string = has_quotes = True
                elif mark in _CLOSES:
                    open_.append(_CLOSES[mark])
                elif mark not in _CLOSES.values():
                    closed = waiting.text[start : found.start()] + "".join(reversed(open_))
                    return _Object(closed, found.start(), has_quotes)
                elif open_.pop() != mark:
                    return _Object("", place, has_quotes)
                elif not open_:
                    return _Object(waiting.text[start:place], place, has_quotes)
                continue
            else:
                place = max(place, len(waiting) - len(self._end[-1]) + 1)
            if waiting.is_ended:
                return None
            yield

    def _read_elements(
        self, waiting: Waiting, place: int, name: str, own: "_Elements"
    ) -> Generator[None, None, Read | NoCall]:
        schema = self._schemas.get(name, {})
        given: dict[str, str] = {}
        while True:
            start = yield from waiting.skip(place)
            if (yield from waiting.has(start, own.begin)):
                tag = yield from own.read_tag(waiting, start)
                if tag is None:
                    return NoCall(start, is_malformed=bool(given))
                end = yield from self._find_value_end(waiting, tag, given, own, schema)
                if end is None:
                    return NoCall(len(waiting), is_malformed=True, is_end_unknown=True)
                value = own.unframed(waiting.text[tag.end : end])
                given[tag.key] = _fragment(value, tag, schema)
                place = end + len(own.end)
                continue
            if (yield from waiting.has(start, self._end[-1])):
                place = start + len(self._end[-1])
            elif not (self._section_end and (yield from waiting.has(start, self._section_end))):
                return NoCall(start, is_malformed=bool(given))
            members = (f"{arguments.write_string(key)}: {text}" for key, text in given.items())
            return Read(Call(name, "{" + ", ".join(members) + "}"), place)

    def _find_value_end(
        self,
        waiting: Waiting,
        tag: "_Tag",
        given: Mapping[str, str],
        own: "_Elements",
        schema: Schema,
    ) -> Generator[None, None, int | None]:
        """Where the closing tag of a value stands; None: nowhere.

        A whole call within a value has its own tags, which open and close. Where one is open for
        good, and only then, the first closing tag that could have been the value's own was it: if
        the answer has come to its own end, and no other argument's beginning stands in between,
        for then it was a closing tag that the model forgot.
        """
        place, depth, fallback = tag.end, 0, None
        is_forgotten = False
        while True:
            found = own.tags.search(waiting.text, place)
            if found is None:
                place = max(place, len(waiting) - own.longest_tag)
                if waiting.is_ended:
                    return fallback if waiting.is_whole else None
                yield
                continue
            place = found.end()
            if (opened := found["key"]) is not None:
                depth += 1
                is_known = opened.strip() in arguments.properties(schema)
                is_forgotten |= is_known and opened.strip() not in {tag.key, *given}
                continue
            is_end = yield from self._is_closed(waiting, place, {tag.key, *given}, own)
            if depth == 0 and is_end:
                return found.start()
            if depth > 0:
                depth -= 1
                if is_end and fallback is None and not is_forgotten:
                    fallback = found.start()

    def _is_closed(
        self, waiting: Waiting, place: int, given: set[str], own: "_Elements"
    ) -> Generator[None, None, bool]:
        """Whether what stands behind a closing tag can follow a value."""
        place = yield from waiting.skip(place)
        if (yield from waiting.has(place, own.begin)):
            tag = yield from own.read_tag(waiting, place)
            return tag is not None and tag.key not in given
        if not self._section_begin:
            return (yield from waiting.has(place, self._end[-1]))
        if (yield from waiting.has(place, self._section_end)):
            return True
        if not (yield from waiting.has(place, self._end[-1])):
            return False
        place = yield from waiting.skip(place + len(self._end[-1]))
        if waiting.is_ended and place >= len(waiting):
            return True
        if (yield from waiting.has(place, self._section_end)):
            return True
        return (yield from waiting.has(place, self._format.begin))


@dataclass(frozen=True, slots=True)
class _Tag:
    """An opening tag: its value begins at `end`. `is_string` None: only a schema can tell."""

    key: str
    is_string: bool | None
    end: int


class _Elements:
    """How arguments stand in elements, ready to be looked for."""

    def __init__(self, own: Parameters) -> None:
        self.begin = own.begin
        self.end = own.end.strip()
        self._frame = own.frame
        typed = own.after_key_json is not None
        options: list[tuple[str | None, bool | None]] = [
            (own.after_key, True if typed else None),
            (own.after_key_json, False),
            (own.after_key_untyped, None),
        ]
        self._after = [(formats.pieces(text), kind) for text, kind in options if text is not None]
        after = "|".join(_GAP.join(map(re.escape, pieces)) for pieces, _ in self._after)
        opening = f"{re.escape(self.begin)}(?P<key>{formats.KEY_PATTERN})(?:{after})"
        self.tags = re.compile(f"{opening}|{re.escape(self.end)}")
        self.longest_tag = 256

    def read_tag(self, waiting: Waiting, start: int) -> Generator[None, None, _Tag | None]:
        """The opening tag whose `begin` stands at `start`."""
        place = start + len(self.begin)
        key = yield from waiting.match(place, _KEY)
        for pieces, is_string in self._after:
            end = yield from waiting.pass_(place + len(key), pieces)
            if key.strip() and end is not None:
                return _Tag(key.strip(), is_string, end)
        return None

    def unframed(self, value: str) -> str:
        if not self._frame:
            return value
        return value.removeprefix(self._frame).removesuffix(self._frame)


def _fragment(value: str, tag: _Tag, schema: Schema) -> str:
    """One value as JSON."""
    if tag.is_string is not None:
        write = arguments.write_string if tag.is_string else arguments.write_json
        return write(value)
    own = arguments.properties(schema).get(tag.key, schema.get("additionalProperties"))
    return arguments.write_by_schema(value, own, schema)
