"""Messages and tools to the model's prompt, by the checkpoint's own template in a sandbox."""

import datetime
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream_engine.apierror import ApiError
from slipstream_engine.conversation import Message, Tool, ToolCall
from slipstream_engine.tools import arguments
from slipstream_engine.tools.formats import ToolFormat
from slipstream_weights.checkpoint import TextModel

# Whatever a template does with values that its author did not think of.
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
# How thinking is switched on and off: names of several families, and OpenAI's word for off.
_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
_OFF = "none"
_ALWAYS = frozenset({"messages", "tools", "add_generation_prompt"})


class TemplateError(Exception):
    """The checkpoint's chat template is not valid."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """One template. `names`: what it takes beside what it is always given.

    `takes_text`: the arguments of earlier calls are given to it as text, not as an object.
    """

    template: jinja2.Template
    names: frozenset[str]
    takes_text: bool


class ChatTemplate:
    """What templates may use is what Hugging Face's `apply_chat_template` gives them."""

    def __init__(self, text_model: TextModel, spoken: ToolFormat | None = None) -> None:
        """`spoken`: how the model writes calls. Raises TemplateError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _today
        self._tokens = {
            "bos_token": text_model.bos_token or "",
            "eos_token": text_model.eos_token or "",
        }
        self._prefers_text = spoken is not None and spoken.parameters is None
        self._plain = self._variant(environment, text_model.chat_template)
        # Some checkpoints have another one for chats with tools.
        self._tools = self._variant(environment, text_model.tool_template) or self._plain

    @property
    def takes_tools(self) -> bool:
        return self._tools is not None and "tools" in self._tools.names

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        effort: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, ready for the assistant's answer. Raises ApiError (400).

        `effort`: how much to think, in OpenAI's words; `extra`: values for the template itself.
        """
        variant = self._tools if tools else self._plain
        if variant is None:
            raise ApiError(
                400, "the model has no chat template; use /v1/completions", code="no_chat_template"
            )
        options = _options(variant.names - self._tokens.keys() - _ALWAYS, effort, extra or {})
        plain = [_plain(message, takes_text=variant.takes_text) for message in messages]
        try:
            return variant.template.render(
                messages=plain,
                tools=[tool.raw for tool in tools] or None,
                add_generation_prompt=True,
                **self._tokens,
                **options,
            )
        except _FAILURES as error:
            raise ApiError(
                400,
                f"the model's chat template refuses the messages: {error}",
                param="messages",
                code="invalid_value",
            ) from error

    def _variant(
        self, environment: ImmutableSandboxedEnvironment, source: str | None
    ) -> _Variant | None:
        if source is None:
            return None
        try:
            template = environment.from_string(source)
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not valid: {error}") from error
        known = frozenset(names) - frozenset(environment.globals)
        return _Variant(template, known, self._takes_text(template))

    def _takes_text(self, template: jinja2.Template) -> bool:
        """Whether arguments are given as text: where the template writes them as they stand.

        The model's own format has to be JSON for that. Then the prompt has the same tokens as the
        answer had, which are in the cache. Else only where the template can do nothing with an
        object, which is what most want: some write text of any kind between a format's tags.
        """
        text = '{"probe-key":  "probe-value"}'
        if text not in self._with_arguments(template, text):
            return False
        return self._prefers_text or "probe-value" not in self._with_arguments(
            template, json.loads(text)
        )

    def _with_arguments(self, template: jinja2.Template, given: Any) -> str:
        """A conversation with one call; nothing where the template cannot write it."""
        call = {"name": "f", "arguments": given}
        calls = [{"id": "functions.f:0", "type": "function", "function": call}]
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "x", "tool_call_id": "functions.f:0"},
        ]
        try:
            return template.render(messages=messages, tools=None, **self._tokens)
        except _FAILURES:
            return ""


def _options(
    names: Set[str], effort: str | None, extra: Mapping[str, Any]
) -> dict[str, bool | int | float | str | None]:
    """What the request says to the template itself. Raises ApiError (400): it takes no such."""
    made: dict[str, Any] = {}
    if effort is not None:
        switch = next((name for name in _SWITCHES if name in names), None)
        if _EFFORT in names:
            made[_EFFORT] = effort
        if switch is not None:
            made[switch] = effort != _OFF
        if not made:
            raise _unsupported("the model's chat template takes none", _EFFORT)
    for name, value in extra.items():
        if name not in names:
            what = f"the model's chat template takes no {name[:64]!r}"
            raise _unsupported(what, "chat_template_kwargs")
        made[name] = value
    return made


def _plain(message: Message, *, takes_text: bool) -> dict[str, Any]:
    # OpenAI's newer word for the same; templates know the older one.
    role = "system" if message.role == "developer" else message.role
    made: dict[str, Any] = {"role": role, "content": message.text()}
    if message.name is not None:
        made["name"] = message.name
    if message.reasoning_content:
        made["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        made["tool_calls"] = [_call(one, takes_text=takes_text) for one in message.tool_calls]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    return made


def _call(call: ToolCall, *, takes_text: bool) -> dict[str, Any]:
    text = arguments.read_history(call.function.arguments)
    function = {"name": call.function.name, "arguments": text if takes_text else json.loads(text)}
    return {"id": call.id or "", "type": "function", "function": function}


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _today(pattern: str) -> str:
    return datetime.datetime.now(tz=datetime.UTC).strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # The environment's own filter escapes HTML, which would change the prompt.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _unsupported(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="unsupported_value")
