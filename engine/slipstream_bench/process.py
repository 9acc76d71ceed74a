"""Puts a run together: requests, endpoint, warm-up, load, report; decides the exit code."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console

from slipstream_bench import options as settings
from slipstream_bench import report, workload
from slipstream_bench.arrivals import arrivals
from slipstream_bench.client import Endpoint, Reply
from slipstream_bench.errors import EndpointError, OptionError
from slipstream_bench.load import Run, Send
from slipstream_bench.options import Options, Plan, SessionName
from slipstream_bench.outcome import Outcome
from slipstream_bench.progress import Progress
from slipstream_bench.seeds import rng_of
from slipstream_bench.session import Message, Session, Sessions, body
from slipstream_bench.shapes import ClosedLoop, Limits
from slipstream_bench.summary import Summary, summarize

OK, FAILED, BELOW_GOODPUT, INTERRUPTED = 0, 1, 3, 130
_NAMES_SHOWN = 10


def serve(options: Options) -> int:
    """Raises OptionError before anything is sent, and BenchError where nothing can be measured."""
    plan = settings.settle(options)
    if plan.json_path is not None and not plan.json_path.parent.is_dir():
        raise OptionError("--json", f"there is no folder {plan.json_path.parent}")
    notes = Console(stderr=True)
    outcome = asyncio.run(measure(plan, notes))
    summary = summarize(outcome.records, plan.objectives)
    report.show(plan, outcome, summary)
    if plan.json_path is not None:
        report.write(plan.json_path, plan, outcome, summary)
    return exit_code(summary, outcome, plan.min_goodput)


def exit_code(summary: Summary, outcome: Outcome, min_goodput: float | None) -> int:
    if outcome.is_interrupted:
        return INTERRUPTED
    if outcome.stopped is not None or summary.succeeded == 0:
        return FAILED
    goodput = summary.goodput
    if min_goodput is not None and (goodput is None or goodput.share < min_goodput):
        return BELOW_GOODPUT
    return OK


async def measure(plan: Plan, notes: Console) -> Outcome:
    """Raises EndpointError, WorkloadError."""
    sessions = workload.sessions_of(plan)
    key, deadline_s = plan.api_key, plan.deadline_s
    async with Endpoint(plan.url, api_key=key, deadline_s=deadline_s) as endpoint:
        model = choose_model(plan.model, await endpoint.models(), plan.url)
        send = _sender(plan, endpoint, model)
        if plan.warmup:
            await _warm_up(plan, send)
        return await _measure(plan, model, send, sessions, notes)


def choose_model(wanted: str | None, listed: Mapping[str, str] | None, url: str) -> str:
    """`listed`: names and the models they stand for, None where the endpoint does not say.

    Raises EndpointError.
    """
    if listed is None:
        if wanted is None:
            raise EndpointError(
                f"{url}/models lists no models: pass --model "
                "(and see that --url ends in /v1, or wherever the API begins)"
            )
        return wanted
    if wanted is not None and wanted in listed:
        return wanted
    if wanted is None and len(set(listed.values())) == 1:
        return next(iter(listed))
    rest = len(listed) - _NAMES_SHOWN
    shown = ", ".join(list(listed)[:_NAMES_SHOWN])
    names = shown + (f" and {rest} more" if rest > 0 else "")
    if wanted is None:
        raise EndpointError(f"choose with --model: {names or 'the endpoint has no model'}")
    raise EndpointError(f"the endpoint has no model '{wanted}'; it has: {names or 'none'}")


def _sender(plan: Plan, endpoint: Endpoint, model: str) -> Send:
    names = plan.session_names
    defaults = {"model": model, **plan.defaults}

    async def send(
        session: Session, messages: Sequence[Message], intended_s: float, turn: int
    ) -> Reply:
        document = body(session, messages, defaults, plan.overrides)
        headers = {}
        if session.key is not None:
            if SessionName.HEADER in names:
                headers["x-slipstream-session"] = session.key
            for name in (SessionName.PROMPT_CACHE_KEY, SessionName.USER):
                if name in names:
                    document[name.value] = session.key
        return await endpoint.send(document, headers, intended_s, turn)

    return send


async def _warm_up(plan: Plan, send: Send) -> None:
    """Not measured; the first failure ends the whole run with its reason. Raises EndpointError."""
    limits = Limits(plan.warmup, None, failures_in_row=1)
    run = Run(send, workload.sessions_of(plan, workload.WARM_UP), limits, lambda record: None)
    await run.closed(min(plan.warmup, _width(plan)))
    for record in run.records:
        if record.failure is not None:
            failure = record.failure
            raise EndpointError(f"a warm-up request failed: {failure.label}: {failure.message}")


async def _measure(
    plan: Plan, model: str, send: Send, sessions: Sessions, notes: Console
) -> Outcome:
    started_at = datetime.now(UTC)
    wall_s, cpu_s = time.monotonic(), time.process_time()
    is_interrupted = False
    with Progress(plan.limits, notes) as progress:
        run = Run(send, sessions, plan.limits, progress.seen)
        try:
            if isinstance(plan.load, ClosedLoop):
                await run.closed(plan.load.concurrency)
            else:
                load = plan.load
                rng = rng_of(plan.seed, "arrivals")
                times = arrivals(load.rate_per_s, rng, load.burstiness)
                await run.open(times, load.max_in_flight)
        except asyncio.CancelledError:
            # Ctrl-C: what was measured so far is shown.
            is_interrupted = True
    return Outcome(
        model=model,
        started_at=started_at,
        records=run.records,
        abandoned_turns=run.abandoned_turns,
        stopped=run.stopped,
        is_interrupted=is_interrupted,
        cpu_s=time.process_time() - cpu_s,
        wall_s=time.monotonic() - wall_s,
    )


def _width(plan: Plan) -> int:
    load = plan.load
    return load.concurrency if isinstance(load, ClosedLoop) else load.max_in_flight
