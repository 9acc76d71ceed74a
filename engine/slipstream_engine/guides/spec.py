"""What an answer must look like, as a part of a request; knows no library."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum


class GuideKind(StrEnum):
    """What a guide's text is.

    JSON_OBJECT: nothing; any object will do. JSON_SCHEMA: a schema as JSON. REGEX: an expression
    that the whole answer matches. CHOICE: a JSON list of texts, one of which is the answer.
    GRAMMAR: a grammar in the library's Lark notation.
    """

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


class GuideError(ValueError):
    """A guide that nothing can follow, in words for the client.

    `path`: where in the guide's own text, such as `.properties.name`; empty for all of it.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Guide:
    """The form of an answer's content.

    Reasoning comes before content and is free: where there is `begins_after`, the guide begins
    after the first place where those tokens follow each other, and until then no end token may be
    drawn. `opening`: the token that begins reasoning where the prompt has not begun it already;
    the answer begins with it or is content from its first token on; None: it begins in reasoning.
    `call`: the token that begins calls, and ends reasoning too where the model forgot to: a part of
    the guide's own text; None: there is none.
    `is_patient`: end tokens only where nothing else may follow (`ignore_eos`).
    """

    kind: GuideKind
    text: str = ""
    begins_after: tuple[int, ...] = ()
    opening: int | None = None
    call: int | None = None
    is_patient: bool = False

    @property
    def digest(self) -> bytes:
        """What guides that are compiled alike have in common: kind and text."""
        return hashlib.blake2b(f"{self.kind}\n{self.text}".encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every row of the logits; none where a row is no token. Special ones by name."""

    tokens: tuple[bytes, ...]
    special: dict[int, str]

    @property
    def size(self) -> int:
        return len(self.tokens)
