"""How much a JSON document may hold, judged by its bytes before anybody reads it.

A reader makes an object of every value and holds the interpreter meanwhile: 31 MB of nested lists
froze every other stream for 18 s and took 2.4 GB. Counting takes 1 ns a byte.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """At most so many lists and objects, so many texts, and so many values beside another.

    Brackets, quotes and commas within texts are counted too: bounds leave room for them.
    """

    num_opened: int
    num_texts: int
    num_values: int

    def excess(self, body: bytes) -> str | None:
        """What there is too much of, in words; None for a document that may be read."""
        # Every value takes a byte and one before it.
        if len(body) <= min(self.num_opened, self.num_texts, self.num_values):
            return None
        counts = (
            (body.count(b"[") + body.count(b"{"), self.num_opened, "lists and objects"),
            (body.count(b'"') // 2, self.num_texts, "texts"),
            (body.count(b","), self.num_values, "values"),
        )
        for count, most, what in counts:
            if count > most:
                return f"the body has {count} {what}; at most {most} are read"
        return None
