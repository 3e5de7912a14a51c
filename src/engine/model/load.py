"""`SegmentLoadStats`: a segment's load report, and when it is worth writing (PIP-483)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from engine.limits import LOAD_WINDOW_S
from engine.model.fields import Fields, dump

WINDOW_MS = int(LOAD_WINDOW_S * 1000)  # a younger segment reports less than its load: its rates still rise

PARSED_MAX = 4096  # records kept with what they say: controllers read all of a topic again and again, few have changed

_DIGITS = 3  # of a rate in the record; the smallest above zero is one message in the window

_JSON = {
    "msg_rate_in": "msgRateIn",
    "bytes_rate_in": "bytesRateIn",
    "msg_rate_out": "msgRateOut",
    "bytes_rate_out": "bytesRateOut",
}


@dataclass(frozen=True, slots=True)
class SegmentLoadStats:
    """Rates per second. In: made durable; out: sent, to all subscriptions and readers together."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0

    def rate(self, name: str) -> float:
        """The rate of that field name."""
        value: float = getattr(self, name)
        return value

    @property
    def silent(self) -> bool:
        """Whether all rates are zero."""
        return not any(getattr(self, name) for name in _JSON)

    def differs(self, written: SegmentLoadStats, threshold: float) -> bool:
        """Whether any rate differs from the written one by more than this part, or crossed zero (semantics 32)."""
        return any(_moved(getattr(self, name), getattr(written, name), threshold) for name in _JSON)

    def to_mapping(self) -> dict[str, float]:
        """By the specification's names."""
        return {_JSON[f.name]: round(getattr(self, f.name), _DIGITS) for f in fields(self)}

    def to_json(self) -> bytes:
        return dump(self.to_mapping())

    @classmethod
    def from_json(cls, value: bytes) -> SegmentLoadStats:
        """Undo to_json(). Raises CorruptionError naming the field."""
        return _parsed(value)


@lru_cache(maxsize=PARSED_MAX)
def _parsed(value: bytes) -> SegmentLoadStats:
    record = Fields.parse("load record", value)
    return SegmentLoadStats(**{name: _rate(record, key) for name, key in _JSON.items()})


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """A load record and when it was written: the load has been about that since then (semantics 32)."""

    stats: SegmentLoadStats
    modified_ms: int


def _moved(now: float, written: float, threshold: float) -> bool:
    return (now == 0) != (written == 0) or abs(now - written) > threshold * written


def _rate(record: Fields, key: str) -> float:
    value: Any = record.values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        record.wrong(key, f"is {value!r:.80}, not a rate")
    return float(value)
