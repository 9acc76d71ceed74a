"""Service-level objectives of one request: limits in milliseconds, and whether it met them."""

import math
from dataclasses import dataclass, fields

from slipstream_bench.record import Record


@dataclass(frozen=True, slots=True)
class Objectives:
    """Absent is "no such objective". A request meets a limit that it equals."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def stated(self) -> dict[str, float]:
        limits = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: limit for name, limit in limits.items() if limit is not None}


NAMES = tuple(field.name for field in fields(Objectives))


def parse(text: str) -> Objectives:
    """`ttft_ms=500,tpot_ms=50`. Raises ValueError that says what is wrong."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if name not in NAMES or not equals:
            raise ValueError(f"'{part}' is not NAME=MILLISECONDS with a NAME of {', '.join(NAMES)}")
        if name in limits:
            raise ValueError(f"{name} is given twice")
        try:
            limits[name] = float(number)
        except ValueError:
            raise ValueError(f"{name} needs a number of milliseconds, not '{number}'") from None
        if not (limits[name] > 0 and math.isfinite(limits[name])):
            raise ValueError(f"{name} needs a positive number of milliseconds, not '{number}'")
    return Objectives(**limits)


def met(record: Record, objectives: Objectives) -> dict[str, bool]:
    """Which objectives this request met; a failed one met none.

    TTFT and end to end count from the intended arrival, so that a generator or an endpoint that
    falls behind cannot hide it. A TTFT that does not exist (no token came) is missed; a TPOT that
    does not exist (one token, or all in one chunk) is met.
    """
    stated = objectives.stated()
    if not record.is_success:
        return dict.fromkeys(stated, False)
    seen_s = {
        "ttft_ms": math.inf if record.ttft_from_arrival_s is None else record.ttft_from_arrival_s,
        "tpot_ms": 0.0 if record.tpot_s is None else record.tpot_s,
        "e2e_ms": record.e2e_from_arrival_s,
    }
    return {name: seen_s[name] * 1000 <= limit for name, limit in stated.items()}
