"""Options as given become one settled plan, or an OptionError that names the option. Pure.

An option that the rest of the command line gives nothing to do is an error, never ignored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slipstream_bench import objectives, releases
from slipstream_bench.errors import OptionError
from slipstream_bench.objectives import Objectives
from slipstream_bench.shapes import (
    AgentShape,
    ChatShape,
    ClosedLoop,
    DatasetShape,
    EditShape,
    Limits,
    OpenLoop,
    Shape,
)

Value = TypeVar("Value")

# A run keeps a record of every request: some 500 bytes and 4 bytes a token.
MAX_REQUESTS = 100_000
DEFAULT_REQUESTS = 100
# Small packages, no compiled parts, with releases that change many files a little.
DEFAULT_PACKAGES = (
    "click:8.1.3:8.1.7",
    "jinja2:3.1.2:3.1.4",
    "requests:2.31.0:2.32.3",
    "httpx:0.26.0:0.27.2",
)


class Workload(StrEnum):
    CHAT = "chat"
    EDIT = "edit"
    AGENT = "agent"


class SessionName(StrEnum):
    """Where a request says which session it belongs to."""

    HEADER = "header"  # x-slipstream-session
    PROMPT_CACHE_KEY = "prompt_cache_key"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line. None: not given."""

    url: str
    model: str | None = None
    api_key: str | None = None
    workload: Workload | None = None
    dataset: Path | None = None
    requests: int | None = None
    duration_s: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    burstiness: float | None = None
    max_in_flight: int | None = None
    warmup: int = 1
    deadline_s: float = 120.0
    max_failures: int = 50
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0
    extra_body: str | None = None
    slo: str | None = None
    min_goodput: float | None = None
    json_path: Path | None = None
    per_request: bool = False
    words: int | None = None
    package: tuple[str, ...] = ()
    max_file_chars: int | None = None
    prediction: bool | None = None
    turns: int | None = None
    prefix_words: int | None = None
    result_words: int | None = None
    think_s: float | None = None
    unique_prefix: bool | None = None
    tools: bool | None = None
    session_names: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do. `defaults` and `overrides` are fields of every request."""

    url: str
    model: str | None
    api_key: str | None
    shape: Shape
    load: ClosedLoop | OpenLoop
    limits: Limits
    warmup: int
    deadline_s: float
    seed: int
    defaults: Mapping[str, Any]
    overrides: Mapping[str, Any]
    session_names: tuple[SessionName, ...]
    objectives: Objectives
    min_goodput: float | None
    json_path: Path | None
    per_request: bool


# Attribute, flag, and what gives it something to do.
_OF_WORKLOAD = (
    ("words", "--words", Workload.CHAT),
    ("package", "--package", Workload.EDIT),
    ("max_file_chars", "--max-file-chars", Workload.EDIT),
    ("prediction", "--prediction", Workload.EDIT),
    ("turns", "--turns", Workload.AGENT),
    ("prefix_words", "--prefix-words", Workload.AGENT),
    ("result_words", "--result-words", Workload.AGENT),
    ("think_s", "--think", Workload.AGENT),
    ("unique_prefix", "--unique-prefix", Workload.AGENT),
    ("tools", "--tools", Workload.AGENT),
)
_MAX_TOKENS = {Workload.CHAT: 128, Workload.EDIT: 2048, Workload.AGENT: 256, None: 256}


def settle(options: Options) -> Plan:
    """Raises OptionError."""
    _check_url(options.url)
    if options.workload is not None and options.dataset is not None:
        raise OptionError("--dataset", "a run has a workload or a dataset, not both")
    workload = None if options.dataset else options.workload or Workload.CHAT
    for attribute, flag, owner in _OF_WORKLOAD:
        if getattr(options, attribute) not in (None, ()) and workload is not owner:
            raise OptionError(flag, f"only the workload {owner} has it")
    if options.per_request and options.json_path is None:
        raise OptionError("--per-request", "needs --json, where the requests are written")
    goals = _parsed("--slo", objectives.parse, options.slo) or Objectives()
    if options.min_goodput is not None and not goals.stated():
        raise OptionError("--min-goodput", "needs --slo: goodput is the share that met it")
    max_tokens = options.max_tokens or _MAX_TOKENS[workload]
    return Plan(
        url=options.url,
        model=options.model,
        api_key=options.api_key,
        shape=_shape(options, workload),
        load=_load(options),
        limits=_limits(options),
        warmup=options.warmup,
        deadline_s=options.deadline_s,
        seed=options.seed,
        defaults={"max_tokens": max_tokens, "temperature": options.temperature},
        overrides=_parsed("--extra-body", _json_object, options.extra_body) or {},
        session_names=_session_names(options, workload),
        objectives=goals,
        min_goodput=options.min_goodput,
        json_path=options.json_path,
        per_request=options.per_request,
    )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_good = is_good and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise OptionError("--url", f"'{url}' is no base URL such as http://127.0.0.1:8000/v1")
    if parts.query or parts.fragment:
        raise OptionError("--url", "a base URL has no '?' and no '#'")


def _shape(options: Options, workload: Workload | None) -> Shape:
    if options.dataset is not None:
        return DatasetShape(options.dataset)
    if workload is Workload.AGENT:
        return AgentShape(
            num_turns=options.turns or 8,
            prefix_words=_given(options.prefix_words, 600),
            result_words=_given(options.result_words, 120),
            think_s=_given(options.think_s, 0.0),
            is_prefix_shared=not options.unique_prefix,
            has_tools=bool(options.tools),
        )
    if workload is Workload.EDIT:
        texts = options.package or DEFAULT_PACKAGES
        return EditShape(
            releases=tuple(_required("--package", releases.parse, text) for text in texts),
            max_file_characters=options.max_file_chars or 8000,
            has_prediction=bool(options.prediction),
        )
    return ChatShape(options.words or 30)


def _load(options: Options) -> ClosedLoop | OpenLoop:
    if options.rate is None:
        for flag, value in (
            ("--burstiness", options.burstiness),
            ("--max-in-flight", options.max_in_flight),
        ):
            if value is not None:
                raise OptionError(flag, "needs --rate (an open loop)")
        return ClosedLoop(options.concurrency or 1)
    if options.concurrency is not None:
        raise OptionError(
            "--concurrency", "excludes --rate; bound an open loop with --max-in-flight"
        )
    return OpenLoop(options.rate, _given(options.burstiness, 1.0), options.max_in_flight or 1024)


def _limits(options: Options) -> Limits:
    requests = options.requests
    if requests is None:
        requests = DEFAULT_REQUESTS if options.duration_s is None else MAX_REQUESTS
    return Limits(requests, options.duration_s, options.max_failures)


def _session_names(options: Options, workload: Workload | None) -> tuple[SessionName, ...]:
    if options.session_names is None:
        return tuple(SessionName)
    if workload in (Workload.CHAT, Workload.EDIT):
        raise OptionError("--session-names", f"every request of {workload} is its own session")
    if options.session_names == "none":
        return ()
    return _required("--session-names", _names, options.session_names)


def _names(text: str) -> tuple[SessionName, ...]:
    try:
        return tuple(SessionName(name.strip()) for name in text.split(","))
    except ValueError:
        known = ", ".join(SessionName)
        raise ValueError(f"'{text}' is not 'none' and not a list of {known}") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if "messages" in found:
        raise ValueError("messages are the workload's; use --dataset for your own")
    return found


def _given(value: Value | None, default: Value) -> Value:
    """Zero is given."""
    return default if value is None else value


def _required(flag: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(flag, str(error)) from error


def _parsed(flag: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    return None if text is None else _required(flag, parse, text)
