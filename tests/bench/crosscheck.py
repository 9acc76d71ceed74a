"""`slipstream bench serve` and aiperf (PyPI) on one endpoint: the same prompts, both figures.

    python tests/bench/crosscheck.py --url http://127.0.0.1:8000/v1 --model smollm2

aiperf is installed into an environment of its own under build/. A first pass that is not counted
warms the endpoint's prefix cache for both; then they take turns. Exit code 1 when a figure differs
by more than the tolerance. Use a machine that does nothing else, and leave a core to the tools
(OMP_NUM_THREADS of the engine): aiperf takes half a core or more from what it measures.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream_bench import chat

ROOT = Path(__file__).resolve().parents[2]
PEER = "aiperf==0.13.0"
BIN = Path(sys.executable).parent
LIMIT_S = 1800
# Times below this differ by what a busy machine does to any process.
SLACK_MS = 2.0

Document = Mapping[str, Any]
# Name; where our summary and where aiperf's document has it.
FIGURES = (
    ("TTFT p50, ms", "ttftMs.p50", "time_to_first_token.p50"),
    ("TTFT mean, ms", "ttftMs.mean", "time_to_first_token.avg"),
    ("TPOT p50, ms", "tpotMs.p50", "inter_token_latency.p50"),
    ("TPOT mean, ms", "tpotMs.mean", "inter_token_latency.avg"),
    ("between chunks p50, ms", "interTokenMs.p50", "inter_chunk_latency.p50"),
    ("end to end p50, ms", "e2eMs.p50", "request_latency.p50"),
    ("requests/s", "requestsPerS", "request_throughput.avg"),
    ("output tokens/s", "outputTokensPerS", "output_token_throughput.avg"),
    ("output tokens a request", "outputTokens.mean", "usage_completion_tokens.avg"),
    ("prompt tokens a request", "promptTokens.mean", "usage_prompt_tokens.avg"),
)


def ensure_peer(folder: Path) -> Path:
    """The program, installed where it is not there yet."""
    program = folder / "bin" / "aiperf"
    if not program.is_file():
        uv = BIN / "uv"
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", folder, PEER], check=True)
    return program


def write_inputs(folder: Path, prompts: list[str]) -> None:
    """The prompts in each tool's form, and a tokeniser for aiperf that needs no network: the
    endpoint counts the tokens, but one must be loaded."""
    for name, key in (("ours.jsonl", "prompt"), ("theirs.jsonl", "text")):
        lines = [json.dumps({key: prompt}) for prompt in prompts]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    parts = {"pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [], "model": model}
    (tokenizer / "tokenizer.json").write_text(json.dumps({"version": "1.0", **parts}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))


def run(command: list[str]) -> None:
    """To its end, which takes processor time from an endpoint on the same machine: printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=dict(os.environ), check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {Path(command[0]).name}: {cpu_s:.1f} s of processor time of its own", flush=True)


def measure_ours(options: argparse.Namespace, folder: Path) -> Document:
    run(
        [
            *(str(BIN / "slipstream"), "bench", "serve", "--url", options.url),
            *("--model", options.model, "--dataset", str(folder / "ours.jsonl")),
            *("--requests", str(options.requests), "--concurrency", str(options.concurrency)),
            *("--max-tokens", str(options.max_tokens), "--warmup", "0"),
            *("--json", str(folder / "ours.json")),
        ]
    )
    found: Document = json.loads((folder / "ours.json").read_text(encoding="utf-8"))["summary"]
    return found


def measure_theirs(options: argparse.Namespace, folder: Path, program: Path) -> Document:
    artifacts = folder / "aiperf"
    run(
        [
            *(str(program), "profile", "--model", options.model),
            *("--url", options.url.removesuffix("/v1"), "--endpoint-type", "chat", "--streaming"),
            *("--use-server-token-count", "--tokenizer", str(folder / "tokenizer")),
            *("--custom-dataset-type", "single_turn", "--input-file", str(folder / "theirs.jsonl")),
            *("--request-count", str(options.requests), "--concurrency", str(options.concurrency)),
            *("--extra-inputs", f"max_tokens:{options.max_tokens}"),
            *("--extra-inputs", "temperature:0", "--ui-type", "none"),
            # On two cores every process of the tool takes from the engine that it measures.
            *("--max-workers", "1", "--record-processors", "1"),
            *("--no-server-metrics", "--no-gpu-telemetry"),
            *("--output-artifact-dir", str(artifacts)),
        ]
    )
    text = (artifacts / "profile_export_aiperf.json").read_text(encoding="utf-8")
    found: Document = json.loads(text)
    return found


def at(document: Document, path: str) -> float:
    found: Any = document
    for key in path.split("."):
        found = found[key]
    return float(found)


def compare(ours: list[Document], theirs: list[Document], tolerance: float) -> bool:
    """Print medians over the rounds side by side; whether all agree."""
    print(f"\n{'figure':<26}{'slipstream':>12}{'aiperf':>12}{'difference':>12}")
    do_agree = True
    for name, our_path, their_path in FIGURES:
        a = statistics.median(at(document, our_path) for document in ours)
        b = statistics.median(at(document, their_path) for document in theirs)
        is_noise = name.endswith("ms") and abs(a - b) <= SLACK_MS
        differs = abs(a - b) > tolerance * abs(b) and not is_noise
        do_agree = do_agree and not differs
        share = f"{a / b - 1:+.1%}" if b else "none"
        print(f"{name:<26}{a:>12.2f}{b:>12.2f}{share:>12}{'  differs' if differs else ''}")
    return do_agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", required=True, help="base URL that ends in /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=0.1)
    options = parser.parse_args()
    if not options.url.endswith("/v1"):
        parser.error("--url must end in /v1: aiperf adds the path")
    program = ensure_peer(ROOT / "build" / "crosscheck")
    sessions = itertools.islice(chat.sessions("crosscheck", 30), options.requests)
    prompts = [str(session.opening[0]["content"]) for session in sessions]
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, prompts)
        measure_ours(options, folder)
        for number in range(1, options.rounds + 1):
            print(f"round {number} of {options.rounds}", flush=True)
            ours.append(measure_ours(options, folder))
            theirs.append(measure_theirs(options, folder, program))
    return 0 if compare(ours, theirs, options.tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
