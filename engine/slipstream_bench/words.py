"""Made-up requests, instructions and source code, of a given length in words. Pure: same random
stream, same text. Tokens are not counted here; the endpoint tells how many there were."""

from random import Random

# fmt: off
_VERBS = (
    "parse", "merge", "split", "load", "store", "filter", "group", "sort", "check", "encode",
    "decode", "resolve", "collect", "format", "compare", "schedule", "cache", "retry", "render",
)
_NOUNS = (
    "record", "header", "token", "packet", "account", "window", "message", "route", "ledger",
    "matrix", "session", "index", "digest", "order", "queue", "snapshot", "interval", "report",
)
# fmt: on
_WAYS = (
    "without recursion",
    "in a single pass",
    "with type hints",
    "so that it never raises",
    "using only the standard library",
    "in constant memory",
    "with a doctest",
    "for very large inputs",
)
_ASKS = (
    "Write a Python function",
    "Explain how to write a function",
    "Sketch a small class",
    "Show me a test for a function",
    "Suggest a better name for a function",
)
_RULES = (
    "Read a file before you change it.",
    "Keep every change as small as the task allows.",
    "Run the tests after each change and read their output.",
    "Never invent a path; list the folder first.",
    "Prefer the project's own helpers to new code.",
    "Say what you will do before you do it, in one sentence.",
    "When a command fails twice, stop and explain why.",
)


def identifier(rng: Random) -> str:
    return f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}_{rng.randrange(10_000)}"


def question(rng: Random, num_words: int) -> str:
    """A coding question; the name in it comes early, so that two of them share few tokens."""
    name = identifier(rng)
    start = f"{rng.choice(_ASKS)} `{name}` that can {rng.choice(_VERBS)} a {rng.choice(_NOUNS)} "
    text = start + rng.choice(_WAYS) + "."
    missing = num_words - len(text.split())
    return text if missing <= 0 else f"{text} It is called from this code:\n{code(rng, missing)}"


def rules(rng: Random, num_words: int) -> str:
    """What a coding agent's system prompt looks like from afar."""
    parts: list[str] = []
    count = 0
    while count < num_words:
        line = f"{rng.choice(_RULES)} This holds for {identifier(rng)} and its callers too."
        parts.append(line)
        count += len(line.split())
    return " ".join(" ".join(parts).split()[:num_words])


def code(rng: Random, num_words: int) -> str:
    """Python that looks like a file; cut at the wanted number of words."""
    lines: list[str] = []
    count = 0
    while count < num_words:
        noun, other = rng.choice(_NOUNS), rng.choice(_NOUNS)
        for line in (
            f"def {identifier(rng)}({noun}: list[int], {other}: int = {rng.randrange(99)}) -> int:",
            f'    """{rng.choice(_VERBS).capitalize()} the {noun} {rng.choice(_WAYS)}."""',
            f"    total = {rng.randrange(1000)}",
            f"    for item in {noun}:",
            f"        total += item * {other} if item % {rng.randrange(2, 50)} else {other}",
            "    return total",
            "",
        ):
            words = line.split()
            if count + len(words) > num_words:
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(indent + " ".join(words[: num_words - count]))
                return "\n".join(lines)
            lines.append(line)
            count += len(words)
            if count == num_words:
                break
    return "\n".join(lines)
