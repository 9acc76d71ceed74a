"""Answers as models of each family write them, letter by letter, and what they mean.

Written down independently of the descriptions in `formats.py`, which these texts hold to account.
"""

from dataclasses import dataclass
from typing import Any

SCHEMAS: dict[str, Any] = {
    "read_file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
    },
    "edit": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old": {"type": "string"},
            "new": {"type": "string"},
            "all": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "where": {"anyOf": [{"$ref": "#/$defs/Where"}, {"type": "null"}]},
        },
        "$defs": {"Where": {"type": "object"}},
    },
    "list_tests": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Recorded:
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    content: str = ""
    reasoning: str = ""
    is_thinking: bool = False


_CODE = 'def größe(x):\n    """€ → 東京 🙂"""\n\treturn {"a": [x, \'<b>\']}\n'

HERMES = {
    "one": Recorded(
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/a.py", "limit": 20}}\n'
        "</tool_call>",
        (("read_file", {"path": "src/a.py", "limit": 20}),),
    ),
    "text, then two": Recorded(
        "I look at both files.\n"
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "list_tests", "arguments": {}}\n</tool_call>',
        (("read_file", {"path": "a"}), ("list_tests", {})),
        content="I look at both files.",
    ),
    "thinking of calls": Recorded(
        "<think>\nA <tool_call> with a path? Yes.\n</think>\n\n"
        '<tool_call>{"name":"read_file","arguments":{"path":"a"}}</tool_call>',
        (("read_file", {"path": "a"}),),
        reasoning="A <tool_call> with a path? Yes.",
    ),
    "thinking opened by the prompt": Recorded(
        "Short.\n</think>\n\nNothing to do.",
        (),
        content="Nothing to do.",
        reasoning="Short.",
        is_thinking=True,
    ),
    "thinking opened by the prompt and by the model": Recorded(
        "\n<think>\nShort.\n</think>\n\nNothing to do.",
        (),
        content="Nothing to do.",
        reasoning="Short.",
        is_thinking=True,
    ),
    "a call at the end of thinking that was forgotten": Recorded(
        'I could <tool_call>{"name": "list_tests"}</tool_call> but no.\n\n'
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "list_tests", "arguments": {}}\n</tool_call>',
        (("read_file", {"path": "a"}), ("list_tests", {})),
        reasoning='I could <tool_call>{"name": "list_tests"}</tool_call> but no.',
        is_thinking=True,
    ),
    "a call in thinking that goes on": Recorded(
        'So <tool_call>{"name": "list_tests"}</tool_call>?\n</think>\n\nNo.',
        (),
        content="No.",
        reasoning='So <tool_call>{"name": "list_tests"}</tool_call>?',
        is_thinking=True,
    ),
    "a call in thinking, then content": Recorded(
        'So <tool_call>{"name": "list_tests"}</tool_call></think>\n\nNo.',
        (),
        content="No.",
        reasoning='So <tool_call>{"name": "list_tests"}</tool_call>',
        is_thinking=True,
    ),
    "thinking of a tool that nobody offers": Recorded(
        'So <tool_call>{"name": "rm"}</tool_call>',
        (),
        reasoning='So <tool_call>{"name": "rm"}</tool_call>',
        is_thinking=True,
    ),
    "escapes and markers": Recorded(
        '<tool_call>\n{"name": "edit", "arguments": {"old": "</tool_call>\\n\\"{", "new": '
        '"<tool_call>{\\"name\\": \\"rm\\", \\"arguments\\": {}}</tool_call>", "path": "\\u00fc"}}'
        "\n</tool_call>",
        (
            (
                "edit",
                {
                    "old": '</tool_call>\n"{',
                    "new": '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
                    "path": "ü",
                },
            ),
        ),
    ),
    "arguments first, other spaces, a name for the arguments": Recorded(
        '<tool_call> { "parameters" : { "path" : "a" } , "name" : "read_file" } </tool_call>',
        (("read_file", {"path": "a"}),),
    ),
    "an object within a string": Recorded(
        '<tool_call>{"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}</tool_call>',
        (("read_file", {"path": "a"}),),
    ),
    "no arguments at all": Recorded(
        '<tool_call>{"name": "list_tests"}</tool_call>', (("list_tests", {}),)
    ),
    "a line end that is not escaped": Recorded(
        '<tool_call>\n{"name": "edit", "arguments": {"new": "a\n\tb"}}\n</tool_call>',
        (("edit", {"new": "a\n\tb"}),),
    ),
    "a brace too many": Recorded(
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}}\n</tool_call>',
        (("read_file", {"path": "a"}),),
    ),
    "a brace too few": Recorded(
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}\n</tool_call>\nDone.',
        (("read_file", {"path": "a"}),),
        content="\nDone.",
    ),
    "no end": Recorded(
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}',
        (("read_file", {"path": "a"}),),
    ),
    "the marker in prose": Recorded(
        "Write <tool_call> and then JSON, as in <tool_call>{name}</tool_call>.\n"
        '<tool_call>{"name": "list_tests", "arguments": {}}</tool_call>',
        (("list_tests", {}),),
        content="Write <tool_call> and then JSON, as in <tool_call>{name}</tool_call>.",
    ),
    "thinking is a word in prose": Recorded(
        "The tag <think> opens it, </think> ends it.",
        (),
        content="The tag <think> opens it, </think> ends it.",
    ),
}

QWEN3_CODER = {
    "one": Recorded(
        "<tool_call>\n<function=read_file>\n<parameter=path>\nsrc/a.py\n</parameter>\n"
        "<parameter=limit>\n20\n</parameter>\n</function>\n</tool_call>",
        (("read_file", {"path": "src/a.py", "limit": 20}),),
    ),
    "text, then two": Recorded(
        "Both.\n\n<tool_call>\n<function=list_tests>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=edit>\n<parameter=path>\na b\n</parameter>\n"
        "<parameter=all>\nTrue\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n"
        "<parameter=where>\nNone\n</parameter>\n</function>\n</tool_call>",
        (
            ("list_tests", {}),
            ("edit", {"path": "a b", "all": True, "lines": [1, 2], "where": None}),
        ),
        content="Both.",
    ),
    "code as it stands": Recorded(
        f"<tool_call>\n<function=edit>\n<parameter=new>\n{_CODE}\n</parameter>\n"
        '<parameter=where>\n{"line": 3}\n</parameter>\n</function>\n</tool_call>',
        (("edit", {"new": _CODE, "where": {"line": 3}}),),
    ),
    "closing tags in a string": Recorded(
        "<tool_call>\n<function=edit>\n<parameter=new>\n"
        'return "</parameter>", "</function>", "</tool_call>"\n'
        "</parameter>\n</function>\n</tool_call>",
        (("edit", {"new": 'return "</parameter>", "</function>", "</tool_call>"'}),),
    ),
    "a whole call in a string": Recorded(
        "<tool_call>\n<function=edit>\n<parameter=new>\n"
        "<tool_call>\n<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>\n"
        "\n</parameter>\n<parameter=path>\ntest_parser.py\n</parameter>\n</function>\n</tool_call>",
        (
            (
                "edit",
                {
                    "new": "<tool_call>\n<function=rm>\n<parameter=path>\n/\n</parameter>\n"
                    "</function>\n</tool_call>\n",
                    "path": "test_parser.py",
                },
            ),
        ),
    ),
    "an opening tag in a string": Recorded(
        "<tool_call>\n<function=edit>\n<parameter=old>\ngrep '<parameter=zip>' *.md\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=read_file>\n<parameter=path>\na\n"
        "</parameter>\n</function>\n</tool_call>",
        (("edit", {"old": "grep '<parameter=zip>' *.md"}), ("read_file", {"path": "a"})),
    ),
    "the section's beginning is forgotten": Recorded(
        "Now.\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
        (("read_file", {"path": "a"}),),
        content="Now.",
    ),
    "both ends are forgotten": Recorded(
        "<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>",
        (("read_file", {"path": "a"}),),
    ),
    "the function's end is forgotten": Recorded(
        "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</tool_call>",
        (("read_file", {"path": "a"}),),
    ),
    "two in one section, no line ends": Recorded(
        "<tool_call><function=read_file><parameter=path>a</parameter></function>"
        "<function=list_tests></function></tool_call>",
        (("read_file", {"path": "a"}), ("list_tests", {})),
    ),
    "thinking between calls": Recorded(
        "plan\n</think>\n\n<tool_call>\n<function=list_tests>\n</function>\n</tool_call>\n"
        "<think>more</think>\n<tool_call>\n<function=list_tests>\n</function>\n</tool_call>",
        (("list_tests", {}), ("list_tests", {})),
        reasoning="planmore",
        is_thinking=True,
    ),
    "thinking is not ended before the call": Recorded(
        "I use <tool_call> now:\n<tool_call>\n<function=edit>\n<parameter=new>\n"
        "</think>?\n</parameter>\n</function>\n</tool_call>",
        (),
        content="?\n</parameter>\n</function>\n</tool_call>",
        reasoning="I use <tool_call> now:\n<tool_call>\n<function=edit>\n<parameter=new>",
        is_thinking=True,
    ),
    "thinking is ended after the call": Recorded(
        "Now.\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n"
        "</tool_call>\n</think>\n\n",
        (("read_file", {"path": "a"}),),
        reasoning="Now.",
        is_thinking=True,
    ),
    "a tag in prose": Recorded(
        "Use <function=NAME> inside of <tool_call>.",
        (),
        content="Use <function=NAME> inside of <tool_call>.",
    ),
}

GLM = {
    "one": Recorded(
        "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>src/a.py</arg_value>\n"
        "<arg_key>limit</arg_key>\n<arg_value>20</arg_value>\n</tool_call>",
        (("read_file", {"path": "src/a.py", "limit": 20}),),
    ),
    "without line ends": Recorded(
        "<think>so</think>Go.<tool_call>read_file<arg_key>path</arg_key><arg_value>a</arg_value>"
        "</tool_call><tool_call>list_tests</tool_call>",
        (("read_file", {"path": "a"}), ("list_tests", {})),
        content="Go.",
        reasoning="so",
    ),
    "no arguments, a line end": Recorded(
        "\n<think></think>\n<tool_call>list_tests\n</tool_call>", (("list_tests", {}),)
    ),
    "thinking is not ended before the calls": Recorded(
        "<think>Go <tool_call>ls<arg_key>.\n<tool_call>read_file<arg_key>path</arg_key>"
        "<arg_value>a</arg_value></tool_call><tool_call>list_tests</tool_call>",
        (("read_file", {"path": "a"}), ("list_tests", {})),
        reasoning="Go <tool_call>ls<arg_key>.",
    ),
    "code and closing tags": Recorded(
        f"<tool_call>edit\n<arg_key>new</arg_key>\n<arg_value>{_CODE}</arg_value> </arg_value>\n"
        "<arg_key>all</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
        (("edit", {"new": f"{_CODE}</arg_value> ", "all": True}),),
    ),
}

KIMI = {
    "one": Recorded(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0"
        '<|tool_call_argument_begin|>{"path": "src/a.py", "limit": 20}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        (("read_file", {"path": "src/a.py", "limit": 20}),),
    ),
    "thinking, text, two": Recorded(
        "<think>first</think>I read.<|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.edit:4<|tool_call_argument_begin|>{"new": "<|tool_call_end|>"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.list_tests:5<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        (("edit", {"new": "<|tool_call_end|>"}), ("list_tests", {})),
        content="I read.",
        reasoning="first",
    ),
    "thinking is not ended before the calls": Recorded(
        "I read.<|tool_calls_section_begin|><|tool_call_begin|>functions.list_tests:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.edit:1"
        '<|tool_call_argument_begin|>{"new": "x"}<|tool_call_end|><|tool_calls_section_end|>',
        (("list_tests", {}), ("edit", {"new": "x"})),
        reasoning="I read.",
        is_thinking=True,
    ),
    "a name alone": Recorded(
        "<|tool_calls_section_begin|> <|tool_call_begin|> list_tests <|tool_call_argument_begin|>"
        " {} <|tool_call_end|> <|tool_calls_section_end|>",
        (("list_tests", {}),),
    ),
    "the section's beginning is forgotten": Recorded(
        "Both.<|tool_call_begin|>functions.list_tests:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_call_begin|>functions.edit:1<|tool_call_argument_begin|>"
        '{"new": "<|tool_call_begin|>"}<|tool_call_end|><|tool_calls_section_end|>',
        (("list_tests", {}), ("edit", {"new": "<|tool_call_begin|>"})),
        content="Both.",
    ),
    "an id without a name is no call": Recorded(
        "<|tool_calls_section_begin|><|tool_call_begin|>0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        (),
        content="<|tool_calls_section_begin|><|tool_call_begin|>0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
}

MINIMAX = {
    "one": Recorded(
        'Let us see.\n<minimax:tool_call>\n<invoke name="read_file">\n'
        '<parameter name="path">src/a.py</parameter>\n<parameter name="limit">20</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        (("read_file", {"path": "src/a.py", "limit": 20}),),
        content="Let us see.",
    ),
    "two in one section": Recorded(
        'hm\n</think>\n\n<minimax:tool_call>\n<invoke name="edit">\n'
        '<parameter name="new">a </parameter> b</parameter>\n'
        '<parameter name="lines">[3]</parameter>\n</invoke>\n<invoke name="list_tests">\n'
        "</invoke>\n</minimax:tool_call>",
        (("edit", {"new": "a </parameter> b", "lines": [3]}), ("list_tests", {})),
        reasoning="hm",
        is_thinking=True,
    ),
}

DEEPSEEK_V3 = {
    "one": Recorded(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n"
        '{"path": "src/a.py", "limit": 20}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (("read_file", {"path": "src/a.py", "limit": 20}),),
    ),
    "text, then two": Recorded(
        "Both:\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>edit\n```json\n"
        '{\n  "new": "```json\\n{}\\n```<｜tool▁call▁end｜>"\n}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>list_tests\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        (("edit", {"new": "```json\n{}\n```<｜tool▁call▁end｜>"}), ("list_tests", {})),
        content="Both:",
    ),
}

DEEPSEEK_V31 = {
    "two": Recorded(
        "why\n</think>Both.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_file<｜tool▁sep｜>"
        '{"path": "a"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>list_tests<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (("read_file", {"path": "a"}), ("list_tests", {})),
        content="Both.",
        reasoning="why",
        is_thinking=True,
    ),
    "no ends": Recorded(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_file<｜tool▁sep｜>{"path": "a"}',
        (("read_file", {"path": "a"}),),
    ),
}


def _dsml(section: str) -> dict[str, Recorded]:
    return {
        "two": Recorded(
            f'I edit.\n\n<｜DSML｜{section}>\n<｜DSML｜invoke name="edit">\n'
            '<｜DSML｜parameter name="new" string="true">5</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="lines" string="false">[5, {"a": "</x>"}]'
            '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="list_tests">\n'
            f"</｜DSML｜invoke>\n</｜DSML｜{section}>",
            (("edit", {"new": "5", "lines": [5, {"a": "</x>"}]}), ("list_tests", {})),
            content="I edit.",
        ),
        "a type that is not told": Recorded(
            f'<｜DSML｜{section}><｜DSML｜invoke name="read_file"><｜DSML｜parameter name="limit">7'
            '</｜DSML｜parameter><｜DSML｜parameter name="path">7</｜DSML｜parameter>'
            f"</｜DSML｜invoke></｜DSML｜{section}>",
            (("read_file", {"limit": 7, "path": "7"}),),
        ),
        "no JSON where it was said": Recorded(
            f'<｜DSML｜{section}>\n<｜DSML｜invoke name="edit">\n<｜DSML｜parameter name="lines" '
            'string="false">[1, NaN]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            f"</｜DSML｜{section}>",
            (("edit", {"lines": "[1, NaN]"}),),
        ),
    }


RECORDED: dict[str, dict[str, Recorded]] = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "glm45": GLM,
    "kimi_k2": KIMI,
    "minimax_m2": MINIMAX,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
}
CASES = [(name, case) for name, cases in RECORDED.items() for case in cases]
