"""Messages to the model's prompt, by the checkpoint's own template in a sandbox."""

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream_engine.apierror import ApiError
from slipstream_engine.protocol import Message
from slipstream_weights.checkpoint import TextModel


class TemplateError(Exception):
    """The checkpoint's chat template is not valid."""


class ChatTemplate:
    """What templates may use is what Hugging Face's `apply_chat_template` gives them."""

    def __init__(self, text_model: TextModel) -> None:
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
        self._template: jinja2.Template | None = None
        if text_model.chat_template is not None:
            try:
                self._template = environment.from_string(text_model.chat_template)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(f"the chat template is not valid: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, ready for the assistant's answer. Raises ApiError (400)."""
        if self._template is None:
            raise ApiError(
                400, "the model has no chat template; use /v1/completions", code="no_chat_template"
            )
        plain = [_plain(message) for message in messages]
        try:
            return self._template.render(
                messages=plain, tools=None, add_generation_prompt=True, **self._tokens
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ApiError(
                400,
                f"the model's chat template refuses the messages: {error}",
                param="messages",
                code="invalid_value",
            ) from error


def _plain(message: Message) -> dict[str, str]:
    # OpenAI's newer word for the same; templates know the older one.
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text(), **named}


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _today(pattern: str) -> str:
    return datetime.datetime.now(tz=datetime.UTC).strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    # The environment's own filter escapes HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)
