"""A model that says what a test wants, in the form of one family, behind the real serving side.

The rank process without a model answers with its prompt; the template makes the prompt of the last
message alone. So a test writes the answer itself, token by token through a real tokeniser.
"""

from typing import Any

from slipstream_engine.questions import TextSide
from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine import side, tiny
from tests.engine.tools import writing

END = "<|im_end|>"
_LAST = "{{ messages[-1].content }}"
_TOOLS = "{#- %s -#}{% if tools %}{% endif %}" + _LAST
# By what it shows, a family is known; `opened` begins thinking in the prompt.
_THINKING = "{% if opened %}<think>\n{% endif %}"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something with a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("read_file", "edit")
]
ARGUMENTS: dict[str, Any] = {"path": 'src/größe "x".py', "limit": 20}
CALLS = [("read_file", ARGUMENTS), ("edit", {"path": "</tool_call> 🙂"})]


def text_side(family: str) -> TextSide:
    """A tool format's name, and thinking; `no_thinking`: tools alone; `none`: neither."""
    if family == "none":
        return side.text_side(_LAST)
    if family == "no_thinking":
        return side.text_side(_TOOLS.replace("%s", calls("hermes")))
    return side.text_side(_TOOLS.replace("%s", calls(family)) + _THINKING)


def calls(family: str, count: int = 2) -> str:
    return writing.write_calls(TOOL_FORMATS[family], CALLS[:count])


def body(answer: str, **fields: Any) -> dict[str, Any]:
    """A request that is answered with `answer`; `fields` replace or add, `...` takes away."""
    made = {"tools": TOOLS, "max_tokens": 2000, **fields}
    return side.chat(answer + END, **made)


def num_tokens(text: str) -> int:
    return len(tiny.tokenizer().encode(text).ids)
