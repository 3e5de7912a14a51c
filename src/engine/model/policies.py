"""`NamespacePolicies` and `TopicPolicies`: what a namespace says about its topics, and a topic about itself.

Fields resolve one by one: the topic's, else the namespace's, else the broker's configuration. So to set one field
changes no other. Between namespace and broker, a tenant and the cluster may say how long messages live and are kept,
among their limits (limits.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args

from engine.errors import InvalidArgumentError
from engine.model.fields import Fields, dump

Durability = Literal["fsync", "interval", "os", "object"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)
FOR_EVER = -1
CREATED = "createdAtMs"  # a field of the record of a namespace that was created by itself
AUTO_SCALE = "scalableTopicAutoScalePolicy"  # a field of the namespace record beside those of NamespacePolicies
TOPIC_FIELD = "policies"  # of the topic record
_WIDE = 4096  # bytes of a topic record: a wide topic's is read for every segment that is attached to
_WIDE_KEPT = 16  # the policies of wide topics that are cached
# Far below 2**63, also in milliseconds.
_MOST = {"retention_time_s": 10**11, "retention_size_bytes": 2**62, "message_ttl_s": 10**11}
FLUSH_INTERVAL_MS = (10, 1_000)  # the least and the most
_LEAST = {"retention_time_s": 0, "retention_size_bytes": 0, "message_ttl_s": 1}
_JSON = {
    "retention_time_s": "retentionTimeSeconds",
    "retention_size_bytes": "retentionSizeBytes",
    "message_ttl_s": "messageTtlSeconds",
    "encryption_required": "encryptionRequired",
    "flush_interval_ms": "flushIntervalMillis",
    "durability": "durability",
    "auto_create_topics": "autoCreateTopics",
}
FIELDS = frozenset(_JSON.values())  # fields of NamespacePolicies in the record

P = TypeVar("P", bound="TopicPolicies")


def _check_flag(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be true or false, got {value!r}")


def _check_flush_interval(value: object) -> None:
    least, most = FLUSH_INTERVAL_MS
    if value is not None and not (type(value) is int and least <= value <= most):
        raise InvalidArgumentError(f"flush_interval_ms must be an integer from {least} to {most}, got {value!r:.80}")


def check_most(name: str, value: object) -> None:
    """Raise InvalidArgumentError for a number that is too large to count with."""
    if type(value) is int and value > _MOST[name]:
        raise InvalidArgumentError(f"{name} must be at most {_MOST[name]}, or -1 for no limit, got {value!s:.40}")


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """None: not said here. Raises InvalidArgumentError naming the field."""

    retention_time_s: int | None = None  # how long acknowledged messages are kept; FOR_EVER: no limit
    retention_size_bytes: int | None = None  # of acknowledged messages, per segment; FOR_EVER: no limit
    message_ttl_s: int | None = None  # older ones count as acknowledged by every subscription; FOR_EVER: no limit
    encryption_required: bool | None = None  # whether messages that are not encrypted end to end are refused
    flush_interval_ms: int | None = None  # on objects: how long a message may wait for others to be stored with it

    def __post_init__(self) -> None:
        _check_flag("encryption_required", self.encryption_required)
        _check_flush_interval(self.flush_interval_ms)
        for name in _MOST:
            value = getattr(self, name)
            if value is None or (type(value) is int and (value == FOR_EVER or value >= _LEAST[name])):
                continue
            least = f"an integer >= {_LEAST[name]}, or -1 for no limit"
            raise InvalidArgumentError(f"{name} must be {least}, got {value!r}")

    def __bool__(self) -> bool:
        return self != type(self)()

    def changed(self: P, values: Mapping[str, Any]) -> P:
        """With these fields, by their names here; None: not said here any more. Others stay.

        Raises InvalidArgumentError, also for an unknown one.
        """
        names = _names(type(self))
        if unknown := sorted(str(name) for name in values if name not in names):
            what = "a topic's policy" if type(self) is TopicPolicies else "a namespace policy"
            raise InvalidArgumentError(f"{what} must be of {', '.join(names)}, got {unknown[0]!r}: unknown")
        for name in _MOST:  # only new policies are checked: stored ones are always readable
            check_most(name, values.get(name))
        return replace(self, **values)

    @classmethod
    def of(cls: type[P], values: Mapping[str, Any]) -> P:
        """From a mapping of some of these names."""
        return cls().changed(values)

    @classmethod
    def of_all(cls: type[P], values: Mapping[str, Any]) -> P:
        """From a mapping that names every field, so that none is reset without being named."""
        if missing := [name for name in _names(cls) if name not in values]:
            raise InvalidArgumentError(
                f"policies that replace all must name each of {', '.join(_names(cls))} (null: as the broker's "
                f"configuration has it), got none for {missing[0]}; to change some, merge them with PATCH"
            )
        return cls.of(values)

    def to_mapping(self) -> dict[str, Any]:
        """By these names, None where nothing is said."""
        return {name: getattr(self, name) for name in _names(type(self))}

    def said(self) -> dict[str, Any]:
        """Only what is said here."""
        return {name: value for name, value in self.to_mapping().items() if value is not None}

    def to_fields(self) -> dict[str, Any]:
        """What is said here, with the names of records."""
        return {_JSON[name]: value for name, value in self.said().items()}

    def to_json(self) -> bytes:
        """The value of a record without other fields."""
        return dump(self.to_fields())

    @classmethod
    def read(cls: type[P], record: Fields) -> P:
        """Undo to_fields(). Raises CorruptionError naming the field."""
        present = {name: record.values[_JSON[name]] for name in _names(cls) if _JSON[name] in record.values}
        for name in _MOST:  # in old records any negative number meant no limit, and so did a size of null
            if isinstance(number := present.get(name), int) and number < FOR_EVER:
                present[name] = FOR_EVER
        if "retention_size_bytes" in present and present["retention_size_bytes"] is None:
            present["retention_size_bytes"] = FOR_EVER
        try:
            return cls(**present)
        except InvalidArgumentError as e:
            record.wrong(str(e).split()[0], str(e))


NOTHING_SAID = TopicPolicies()


@dataclass(frozen=True, slots=True)
class NamespacePolicies(TopicPolicies):
    """Of a namespace's topics. None: not said here. Raises InvalidArgumentError naming the field."""

    durability: str | None = None  # of topics created without an own one
    auto_create_topics: bool | None = None  # whether a producer or consumer creates a topic that is missing

    def __post_init__(self) -> None:
        TopicPolicies.__post_init__(self)
        if self.durability is not None and self.durability not in DURABILITIES:
            raise InvalidArgumentError(f"durability must be {' or '.join(DURABILITIES)}, got {self.durability!r}")
        _check_flag("auto_create_topics", self.auto_create_topics)

    @classmethod
    def from_json(cls, value: bytes) -> NamespacePolicies:
        """Undo to_json(). Raises CorruptionError naming the field."""
        return cls.read(Fields.parse("namespace record", value))


def policies_of_topic(record: bytes) -> TopicPolicies:
    """Only the policies of a topic record, for searching many. Raises CorruptionError."""
    return _of_wide_topic(record) if len(record) >= _WIDE else _of_topic(record)


def _of_topic(record: bytes) -> TopicPolicies:
    return read_topic_policies(Fields.parse("topic record", record))


@lru_cache(maxsize=_WIDE_KEPT)
def _of_wide_topic(record: bytes) -> TopicPolicies:
    """Equal records give the same policies, which are immutable."""
    return _of_topic(record)


def read_topic_policies(record: Fields) -> TopicPolicies:
    """The policies in a topic record. Raises CorruptionError."""
    if TOPIC_FIELD not in record.values:
        return NOTHING_SAID
    return TopicPolicies.read(record.fields(TOPIC_FIELD))


def resolved(*levels: TopicPolicies | None) -> dict[str, Any]:
    """Field by field, the first that is said; levels from the topic to the broker."""
    found: dict[str, Any] = {}
    for level in levels:
        for name, value in () if level is None else level.said().items():
            found.setdefault(name, value)
    return found


def _names(kind: type[TopicPolicies]) -> list[str]:
    return [field.name for field in fields(kind)]
