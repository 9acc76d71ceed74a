"""How models write tool calls and thinking: one short description each. Pure; knows no parser.

The same description serves the parser, whoever forces a call by a grammar, and the tests that
write conversations. White space stands as the models' own chat templates write it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# What a tool may be called: nothing in it means anything to any format.
NAME_PATTERN = r"[A-Za-z0-9_.-]{1,128}"
KEY_PATTERN = r'[^<>"\n]{1,128}'
_WHITE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Each argument is an element: `begin` key `after_key` frame value frame `end`.

    A string stands as it is, without quotes or escapes; any other value as JSON. Where the format
    says which of the two it is, `after_key_json` differs from `after_key`; else only the tool's
    schema can tell. Between tag and value stands `frame`, once on each side.
    """

    begin: str
    after_key: str
    end: str
    frame: str = ""
    after_key_json: str | None = None
    # An `after_key` that says nothing of the type, as some models write it all the same.
    after_key_untyped: str | None = None

    def opening(self, key: str, *, is_string: bool) -> str:
        """All that stands before the value."""
        after = self.after_key if is_string else self.after_key_json or self.after_key
        return f"{self.begin}{key}{after}{self.frame}"

    @property
    def closing(self) -> str:
        return f"{self.frame}{self.end}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Calls stand inside a section, or each alone where `section_begin` is empty.

    One call is `begin` header arguments `end`. The header is the tool's name and `after_name`;
    without `after_name` the arguments are the member `arguments` of a JSON object that has the
    name too. `parameters` None: the arguments are one JSON object.
    """

    name: str
    begin: str
    end: str
    after_name: str = ""
    section_begin: str = ""
    section_end: str = ""
    separator: str = ""
    parameters: Parameters | None = None
    # `functions.NAME:INDEX` stands for the name, and is the call's id.
    has_ids: bool = False
    # Models leave out the section's beginning.
    has_bare_calls: bool = False

    @property
    def has_envelope(self) -> bool:
        """Whether name and arguments are members of one JSON object."""
        return not self.after_name and self.parameters is None

    def opening(self, name: str, index: int) -> str:
        """One call's text up to its arguments; `index`: calls before it in the conversation."""
        if self.has_envelope:
            return f'{self.begin}\n{{"name": "{name}", "arguments": '
        header = call_id(name, index) if self.has_ids else name
        return f"{self.begin}{header}{self.after_name}"

    @property
    def first_marker(self) -> str:
        """What calls begin with."""
        return self.section_begin.strip() or self.begin

    @property
    def closing(self) -> str:
        """What stands after the arguments."""
        return f"}}\n{self.end}" if self.has_envelope else self.end

    @property
    def markers(self) -> frozenset[str]:
        """Every word of the format that a tokeniser may hold as one special token."""
        texts = [self.begin, self.end, self.after_name, self.section_begin, self.section_end]
        if (own := self.parameters) is not None:
            texts += [own.begin, own.after_key, own.end]
        tags = re.compile(r"<[^<>\s]+>")
        return frozenset(tag for text in texts for tag in tags.findall(text))


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Thinking stands between two markers, at the answer's beginning or after calls."""

    name: str
    begin: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends inside of thinking, so that the answer begins there."""
        return prompt.rstrip().endswith(self.begin)

    @property
    def markers(self) -> frozenset[str]:
        return frozenset((self.begin, self.end))


@dataclass(frozen=True, slots=True)
class Formats:
    """What one model speaks."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def markers(self) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for one in (self.tools, self.reasoning):
            found |= frozenset() if one is None else one.markers
        return found


def call_id(name: str, index: int) -> str:
    """Kimi's: the model reads it again in the conversation's next turn."""
    return f"functions.{name}:{index}"


def _deepseek_xml(name: str, section: str) -> ToolFormat:
    return ToolFormat(
        name=name,
        section_begin=f"<｜DSML｜{section}>\n",
        section_end=f"\n</｜DSML｜{section}>",
        separator="\n",
        begin='<｜DSML｜invoke name="',
        after_name='">\n',
        end="</｜DSML｜invoke>",
        parameters=Parameters(
            begin='<｜DSML｜parameter name="',
            after_key='" string="true">',
            after_key_json='" string="false">',
            after_key_untyped='">',
            end="</｜DSML｜parameter>\n",
        ),
    )


_DEEPSEEK_BEGIN, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    one.name: one
    for one in (
        # Hermes, Qwen 2.5 and 3.
        ToolFormat(name="hermes", begin="<tool_call>", end="</tool_call>", separator="\n"),
        # Qwen3-Coder, Qwen 3.5 and later. Qwen3-Coder often forgets the section's beginning.
        ToolFormat(
            name="qwen3_coder",
            section_begin="<tool_call>\n",
            section_end="\n</tool_call>",
            separator="\n</tool_call>\n<tool_call>\n",
            begin="<function=",
            after_name=">\n",
            end="</function>",
            parameters=Parameters("<parameter=", ">", "</parameter>\n", frame="\n"),
            has_bare_calls=True,
        ),
        # GLM 4.5 and later; white space differs between versions.
        ToolFormat(
            name="glm45",
            begin="<tool_call>",
            after_name="\n",
            end="</tool_call>",
            separator="\n",
            parameters=Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
        ToolFormat(
            name="kimi_k2",
            section_begin="<|tool_calls_section_begin|>",
            section_end="<|tool_calls_section_end|>",
            begin="<|tool_call_begin|>",
            after_name="<|tool_call_argument_begin|>",
            end="<|tool_call_end|>",
            has_ids=True,
            has_bare_calls=True,
        ),
        ToolFormat(
            name="minimax_m2",
            section_begin="<minimax:tool_call>\n",
            section_end="\n</minimax:tool_call>",
            separator="\n",
            begin='<invoke name="',
            after_name='">\n',
            end="</invoke>",
            parameters=Parameters('<parameter name="', '">', "</parameter>\n"),
        ),
        ToolFormat(
            name="deepseek_v3",
            begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            after_name="\n```json\n",
            end="\n```<｜tool▁call▁end｜>",
            separator="\n",
            section_begin=_DEEPSEEK_BEGIN,
            section_end=_DEEPSEEK_END,
        ),
        ToolFormat(
            name="deepseek_v31",
            begin="<｜tool▁call▁begin｜>",
            after_name="<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
            section_begin=_DEEPSEEK_BEGIN,
            section_end=_DEEPSEEK_END,
        ),
        _deepseek_xml("deepseek_v32", "function_calls"),
        _deepseek_xml("deepseek_v4", "tool_calls"),
    )
}

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    one.name: one for one in (ReasoningFormat("think", "<think>", "</think>"),)
}

# A model's chat template writes the calls of the history as the model does. Rarer signs first: a
# later one stands in templates of earlier ones too.
_SIGNS = (
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
)


def detect(chat_template: str | None) -> Formats:
    """What a model speaks, by the template that its checkpoint brings."""
    template = chat_template or ""
    reasoning = REASONING_FORMATS["think"] if "<think>" in template else None
    return Formats(_detect_tools(template), reasoning)


def _detect_tools(template: str) -> ToolFormat | None:
    if "DSML｜" in template:
        return TOOL_FORMATS["deepseek_v32" if "function_calls" in template else "deepseek_v4"]
    if "<｜tool▁calls▁begin｜>" in template:
        return TOOL_FORMATS["deepseek_v3" if "```json" in template else "deepseek_v31"]
    found = (name for sign, name in _SIGNS if sign in template)
    name = next(found, None)
    return None if name is None else TOOL_FORMATS[name]


def choose(tools: str, reasoning: str, chat_template: str | None) -> Formats:
    """What was configured: `auto` (as detected), `none`, or a format's name."""
    found = detect(chat_template)
    return Formats(
        found.tools if tools == "auto" else TOOL_FORMATS.get(tools),
        found.reasoning if reasoning == "auto" else REASONING_FORMATS.get(reasoning),
    )


def pieces(literal: str) -> tuple[str, ...]:
    """A literal without its white space, which models set as they like."""
    return tuple(piece for piece in _WHITE.split(literal) if piece)
