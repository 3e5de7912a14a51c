"""`AutoScalePolicy`: the conditions for automatic changes of a topic's shape, and their overrides (PIP-483, PIP-486).

A policy is set at three levels: the broker's configuration says everything, a namespace and a topic may override single
fields. Fields resolve one by one, the most specific wins (semantics 34).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import (
    AUTO_SCALE_INTERVAL_S,
    BUCKETS_PER_SEGMENT_MAX,
    LOAD_REPORT_CHANGE,
    LOAD_REPORT_INTERVAL_S,
    MIB,
    SEGMENTS_PER_TOPIC_MAX,
)
from engine.model.units import byte_count, seconds, share

RATES = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")

BUCKETS_MAX = BUCKETS_PER_SEGMENT_MAX  # of one segment, whatever the reason

_DAG_DEPTH_MAX = 1_000_000
_NUMBER_MAX = 1e15
_INTERVAL_S_MIN, _INTERVAL_S_MAX = 0.01, 1e6  # what a timer can wait
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AutoScalePolicy:
    """The effective policy of a topic. Times are seconds, rates per second. Raises InvalidArgumentError naming the
    field.

    Fields that are valid alone and contradict each other raise nothing: see `resolve`. `problem` names the
    contradiction.
    """

    enabled: bool = True
    max_segments: int = 64  # active segments
    min_segments: int = 1
    max_dag_depth: int = 10  # merges in a lineage; splits do not count (semantics 6)
    split_cooldown: float = 60.0
    merge_cooldown: float = 300.0
    merge_window: float = 300.0  # how long a segment must have been cold
    rebucket_cooldown: float = 60.0
    max_buckets: int = BUCKETS_PER_SEGMENT_MAX  # of one segment, by automatic changes
    # Below it in every segment, consumers that find no segment of their own get buckets, not segments (semantics 31).
    split_floor_msg_rate_in: float = 1_000.0
    # A segment above any of these is split; two neighbours below all of those are merged.
    split_msg_rate_in_threshold: float = 10_000.0
    split_bytes_rate_in_threshold: float = 50.0 * MIB
    split_msg_rate_out_threshold: float = 50_000.0
    split_bytes_rate_out_threshold: float = 250.0 * MIB
    merge_msg_rate_in_threshold: float = 1_000.0
    merge_bytes_rate_in_threshold: float = 5.0 * MIB
    merge_msg_rate_out_threshold: float = 5_000.0
    merge_bytes_rate_out_threshold: float = 25.0 * MIB
    auto_scale_interval: float = AUTO_SCALE_INTERVAL_S  # between two decisions about traffic
    load_report_interval: float = LOAD_REPORT_INTERVAL_S  # between two samples of a segment's rates
    load_report_rate_change_threshold: float = (
        LOAD_REPORT_CHANGE  # the change of a rate that is reported, as a part of it
    )
    problem: str = ""  # the contradiction that disables the policy

    def __post_init__(self) -> None:
        for name in NAMES:
            _check(name, getattr(self, name))

    def split_threshold(self, rate: str) -> float:
        """The rate above which a segment is overloaded; `rate` is one of RATES."""
        value: float = getattr(self, f"split_{rate}_threshold")
        return value

    def merge_threshold(self, rate: str) -> float:
        """The rate below which a segment is cold; `rate` is one of RATES."""
        value: float = getattr(self, f"merge_{rate}_threshold")
        return value

    def to_mapping(self) -> dict[str, Any]:
        """All fields but `problem`."""
        return {name: getattr(self, name) for name in NAMES}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


NAMES = tuple(f.name for f in fields(AutoScalePolicy) if f.name != "problem")
_JSON = {name: _camel(name) for name in NAMES}
_NAMES_OF_JSON = {key: name for name, key in _JSON.items()}
JSON_NAMES = tuple(_NAMES_OF_JSON)  # the specification's


@dataclass(frozen=True, slots=True)
class AutoScalePolicyOverride:
    """The fields that a namespace or a topic overrides, validated one by one. False when there are none."""

    values: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)  # fields of a newer version, in JSON

    def __bool__(self) -> bool:
        return bool(self.values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> AutoScalePolicyOverride:
        """From a mapping of AutoScalePolicy's field names; None means that the field is not overridden. Times and sizes
        may be text, "1m" and "50MB".

        Raises InvalidArgumentError naming the field, also an unknown one.
        """
        if not isinstance(values, Mapping):
            raise InvalidArgumentError(f"the auto-scale policy must be a mapping of its fields, got {values!r:.80}")
        if unknown := sorted(str(name) for name in values if name not in _JSON):
            raise InvalidArgumentError(
                f"fields of an auto-scale policy must be of {', '.join(NAMES)}, got {unknown[0]!r}: unknown"
            )
        chosen = {name: _number(name, values[name]) for name in NAMES if values.get(name) is not None}
        for name, value in chosen.items():
            _check(name, value)
        return cls(MappingProxyType(chosen))

    def to_mapping(self) -> dict[str, Any]:
        """Undo of(): only overridden fields."""
        return dict(self.values)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> AutoScalePolicyOverride:
        """From the specification's names. Fields of newer versions are kept. Raises InvalidArgumentError."""
        if not isinstance(values, Mapping):
            raise InvalidArgumentError(f"the auto-scale policy must be a JSON object of its fields, got {values!r:.80}")
        known = cls.of({_NAMES_OF_JSON[key]: value for key, value in values.items() if key in _NAMES_OF_JSON})
        extra = {key: value for key, value in values.items() if key not in _NAMES_OF_JSON}
        return dataclasses.replace(known, extra=MappingProxyType(extra))

    @classmethod
    def read(cls, what: str, values: Any) -> AutoScalePolicyOverride:
        """of_json() for a stored record. Raises CorruptionError, which begins with `what`."""
        try:
            return cls.of_json(values)
        except InvalidArgumentError as e:
            raise CorruptionError(f"{what}: {e}") from e

    def to_json(self) -> dict[str, Any]:
        """A part of a topic's or a namespace's record."""
        return {**self.extra, **{_JSON[name]: value for name, value in self.values.items()}}


def resolve(
    broker: AutoScalePolicy,
    namespace: AutoScalePolicyOverride | None = None,
    topic: AutoScalePolicyOverride | None = None,
) -> AutoScalePolicy:
    """The effective policy of a topic. Contradictory fields disable it, and `problem` names them; nothing is raised."""
    values = {**(namespace.values if namespace else {}), **(topic.values if topic else {})}
    policy = dataclasses.replace(broker, **values)
    problem = conflict(policy)
    return dataclasses.replace(policy, enabled=False, problem=problem) if problem else policy


def conflict(policy: AutoScalePolicy) -> str:
    """The contradiction between fields that are each valid; "" without one."""
    if policy.min_segments > policy.max_segments:
        return f"min_segments is {policy.min_segments}, above max_segments, {policy.max_segments}"
    for rate in RATES:
        low, high = policy.merge_threshold(rate), policy.split_threshold(rate)
        if low >= high:
            return f"merge_{rate}_threshold is {low:g}, not below split_{rate}_threshold, {high:g}"
    return ""


_INTEGERS = {
    "max_segments": (1, SEGMENTS_PER_TOPIC_MAX),
    "min_segments": (1, SEGMENTS_PER_TOPIC_MAX),
    "max_dag_depth": (0, _DAG_DEPTH_MAX),
    "max_buckets": (1, BUCKETS_PER_SEGMENT_MAX),
}


def is_time(name: str) -> bool:
    """Whether a field is a number of seconds."""
    return name.endswith(("cooldown", "window", "interval"))


def is_size(name: str) -> bool:
    """Whether a field is a number of bytes."""
    return "bytes_rate" in name


def is_share(name: str) -> bool:
    """Whether a field is a part of something."""
    return name == "load_report_rate_change_threshold"


def _number(name: str, value: Any) -> Any:
    """Of text with a unit, the number; everything else as it is."""
    if not isinstance(value, str):
        return value
    parse = seconds if is_time(name) else byte_count if is_size(name) else share if is_share(name) else None
    found = None if parse is None else parse(value)
    return value if found is None else float(found)


def _check(name: str, value: Any) -> None:
    if name == "enabled":
        good, right = isinstance(value, bool), "true or false"
    elif name in _INTEGERS:
        low, high = _INTEGERS[name]
        good, right = type(value) is int and low <= value <= high, f"an integer from {low} to {high}"
    else:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        least, most = (_INTERVAL_S_MIN, _INTERVAL_S_MAX) if name.endswith("interval") else (0.0, _NUMBER_MAX)
        good = number and least <= value <= most
        form = 'of seconds, or text as "5m", ' if is_time(name) else 'or text as "50MB" ' * is_size(name)
        right = f"a number {form}from {least:g} to {most:g}"
    if not good:
        raise InvalidArgumentError(f"{name} must be {right}, got {value!r:.80}")
