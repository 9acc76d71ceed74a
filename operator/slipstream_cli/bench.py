"""`slipstream bench …`: load an endpoint and say how it did."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream_bench.options import MAX_REQUESTS, Options, SessionName, Workload

app = typer.Typer(no_args_is_help=True, help="Measure a serving endpoint.")

_RUN = "Load"
_REQUEST = "Requests"
_CHAT = "Workload chat"
_EDIT = "Workload edit"
_AGENT = "Workload agent"
_RESULT = "Results"
_SESSION_NAMES = ", ".join(SessionName)


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""


@app.command()
def serve(
    url: Annotated[str, typer.Option(help="Base URL, e.g. http://127.0.0.1:8000/v1.")],
    model: Annotated[
        str | None, typer.Option(help="Model name; may be left out where there is only one.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    workload: Annotated[
        Workload | None, typer.Option(help="What is asked (default: chat).")
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Own requests instead: one JSON object a line."
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_REQUESTS,
            rich_help_panel=_RUN,
            help="End after so many (default: 100, unless --duration is given).",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=86_400, rich_help_panel=_RUN, help="Start nothing after these seconds."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, rich_help_panel=_RUN, help="Closed loop: clients (default: 1)."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=10_000, rich_help_panel=_RUN, help="Open loop: sessions per second."
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            rich_help_panel=_RUN,
            help="Shape of the gamma distributed gaps: 1 Poisson (default), inf a metronome.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, rich_help_panel=_RUN, help="Open loop: at most (default: 1024)."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, max=1000, rich_help_panel=_RUN, help="Requests not measured.")
    ] = 1,
    deadline: Annotated[
        float, typer.Option(min=0.1, max=3600, rich_help_panel=_RUN, help="Seconds per request.")
    ] = 120.0,
    max_failures: Annotated[
        int, typer.Option(min=1, rich_help_panel=_RUN, help="Stop after so many in a row.")
    ] = 50,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_REQUEST,
            help="Per answer (default: chat 128, edit 2048, agent and dataset 256).",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, rich_help_panel=_REQUEST)] = 0.0,
    seed: Annotated[
        int, typer.Option(rich_help_panel=_REQUEST, help="Same seed, same requests and arrivals.")
    ] = 0,
    extra_body: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_REQUEST,
            help="JSON object merged into every request; null removes a field.",
        ),
    ] = None,
    session_names: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_REQUEST,
            help=f"Where sessions are named: {_SESSION_NAMES} (default: all), or none.",
        ),
    ] = None,
    words: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, rich_help_panel=_CHAT, help="Of a question (default: 30)."
        ),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_EDIT, help="NAME:OLD:NEW of a public package; repeatable."),
    ] = None,
    max_file_chars: Annotated[
        int | None,
        typer.Option(
            min=1000, max=1_000_000, rich_help_panel=_EDIT, help="Longest file (default: 8000)."
        ),
    ] = None,
    prediction: Annotated[
        bool | None,
        typer.Option(
            "--prediction", rich_help_panel=_EDIT, help="Send the old file as `prediction` too."
        ),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(min=1, max=100, rich_help_panel=_AGENT, help="Of a session (default: 8)."),
    ] = None,
    prefix_words: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, rich_help_panel=_AGENT, help="Of the system prompt (default: 600)."
        ),
    ] = None,
    result_words: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, rich_help_panel=_AGENT, help="Of a tool's output (default: 120)."
        ),
    ] = None,
    think: Annotated[
        float | None,
        typer.Option(
            min=0, max=3600, rich_help_panel=_AGENT, help="Seconds a tool takes (default: 0)."
        ),
    ] = None,
    unique_prefix: Annotated[
        bool | None,
        typer.Option(
            "--unique-prefix", rich_help_panel=_AGENT, help="A system prompt for each session."
        ),
    ] = None,
    tools: Annotated[
        bool | None,
        typer.Option("--tools", rich_help_panel=_AGENT, help="Offer the model four tools."),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_RESULT, help="Objectives, e.g. ttft_ms=500,tpot_ms=50,e2e_ms=8000."
        ),
    ] = None,
    min_goodput: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            rich_help_panel=_RESULT,
            help="Exit with 3 when a smaller share of the requests met all objectives.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, rich_help_panel=_RESULT, help="Write figures.")
    ] = None,
    per_request: Annotated[
        bool,
        typer.Option("--per-request", rich_help_panel=_RESULT, help="Every request in the JSON."),
    ] = False,
) -> None:
    """Load an OpenAI endpoint and report latencies, throughput, goodput and cached share.

    Example: slipstream bench serve --url http://127.0.0.1:8000/v1
    --workload agent --concurrency 8 --slo ttft_ms=500,tpot_ms=50

    Exit codes: 0 measured, 1 nothing measured or stopped early,
    2 wrong options, 3 goodput below --min-goodput, 130 interrupted.
    Each figure's definition: engine/slipstream_bench/README.md.
    """
    import slipstream_bench
    from slipstream_bench.errors import BenchError, OptionError

    options = Options(
        url=url,
        model=model,
        api_key=api_key,
        workload=workload,
        dataset=dataset,
        requests=requests,
        duration_s=duration,
        concurrency=concurrency,
        rate=rate,
        burstiness=burstiness,
        max_in_flight=max_in_flight,
        warmup=warmup,
        deadline_s=deadline,
        max_failures=max_failures,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        extra_body=extra_body,
        slo=slo,
        min_goodput=min_goodput,
        json_path=json,
        per_request=per_request,
        words=words,
        package=tuple(package or ()),
        max_file_chars=max_file_chars,
        prediction=prediction,
        turns=turns,
        prefix_words=prefix_words,
        result_words=result_words,
        think_s=think,
        unique_prefix=unique_prefix,
        tools=tools,
        session_names=session_names,
    )
    try:
        raise typer.Exit(slipstream_bench.serve(options))
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{error.option}'") from error
    except BenchError as error:
        typer.echo(f"failed: {error}", err=True)
        raise typer.Exit(1) from error
