"""The settled parts of a plan: what is asked, how it arrives, when it ends. Imports nothing heavy,
so that every image can show the command's help."""

from dataclasses import dataclass
from pathlib import Path

from slipstream_bench.releases import Releases


@dataclass(frozen=True, slots=True)
class ChatShape:
    num_words: int


@dataclass(frozen=True, slots=True)
class EditShape:
    releases: tuple[Releases, ...]
    max_file_characters: int
    has_prediction: bool


@dataclass(frozen=True, slots=True)
class AgentShape:
    """Lengths in words. `is_prefix_shared`: one system prompt for all sessions, or one for each."""

    num_turns: int
    prefix_words: int
    result_words: int
    think_s: float
    is_prefix_shared: bool
    has_tools: bool


@dataclass(frozen=True, slots=True)
class DatasetShape:
    path: Path


Shape = ChatShape | EditShape | AgentShape | DatasetShape


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many clients, each of which asks again as soon as it has its answer."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Sessions arrive whether or not earlier ones have their answers."""

    rate_per_s: float
    burstiness: float
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Limits:
    """A run ends at the first that is reached."""

    requests: int
    duration_s: float | None
    failures_in_row: int
