"""Workload agent: sessions of several turns whose prompt only ever grows.

Every turn appends the assistant's real answer and a tool's output of a given size, as a coding
agent does; the plan of a session holds what the endpoint cannot change.
"""

import uuid
from typing import Any

from slipstream_bench import words
from slipstream_bench.seeds import rng_of
from slipstream_bench.session import Session, Sessions
from slipstream_bench.shapes import AgentShape

_NAMESPACE = uuid.UUID("6f0d6bfa-6b0c-4c7e-9a0e-6c2c8d3b1f57")


def plan(seed: str, index: int, shape: AgentShape) -> Session:
    """Session `index`; the same for the same arguments."""
    rng = rng_of(seed, f"agent/{index}")
    prefix_rng = rng_of(seed, "agent") if shape.is_prefix_shared else rng
    task = words.question(rng, 40)
    return Session(
        opening=(
            {"role": "system", "content": words.rules(prefix_rng, shape.prefix_words)},
            {"role": "user", "content": task},
        ),
        results=tuple(words.code(rng, shape.result_words) for _ in range(shape.num_turns - 1)),
        key=str(uuid.uuid5(_NAMESPACE, f"{seed}/{index}")),
        fields={"tools": list(TOOLS)} if shape.has_tools else {},
        think_s=shape.think_s,
    )


def sessions(seed: str, shape: AgentShape) -> Sessions:
    index = 0
    while True:
        yield plan(seed, index, shape)
        index += 1


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = (
    _tool("read_file", "Read a file of the project.", path="Path from the project's root."),
    _tool("search", "Find lines that match.", pattern="A regular expression.", path="Where."),
    _tool(
        "replace",
        "Replace a text that stands once in a file.",
        path="Path from the project's root.",
        old="The text as it stands.",
        new="The text that takes its place.",
    ),
    _tool("run_tests", "Run tests and return their output.", path="A file or folder of tests."),
)
