"""What a run left behind, before it is summarised."""

from dataclasses import dataclass
from datetime import datetime

from slipstream_bench.record import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """`cpu_s`: processor time of the generator during the `wall_s` of the measured part."""

    model: str
    started_at: datetime
    records: list[Record]
    abandoned_turns: int
    stopped: str | None
    is_interrupted: bool
    cpu_s: float
    wall_s: float
