"""Workload chat: short coding questions, every one different, one request a session."""

from slipstream_bench import words
from slipstream_bench.seeds import rng_of
from slipstream_bench.session import Session, Sessions


def sessions(seed: str, num_words: int) -> Sessions:
    """Without end; session i depends on the seed and i only."""
    index = 0
    while True:
        rng = rng_of(seed, f"chat/{index}")
        yield Session(opening=({"role": "user", "content": words.question(rng, num_words)},))
        index += 1
