"""`SegmentLayout`: the immutable, versioned DAG of a topic's segments, and its JSON (PIP-468)."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, get_args

from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.limits import (
    ENTRY_BUCKETS_DEFAULT,
    HASH_RING_SIZE,
    LAYOUT_SIZE_MAX,
    PROPERTIES_SIZE_MAX,
    SEGMENTS_PER_TOPIC_MAX,
)
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.fields import Fields, dump
from engine.model.hashrange import HashRange
from engine.model.policies import DURABILITIES, NOTHING_SAID, TOPIC_FIELD, TopicPolicies, read_topic_policies
from engine.model.segment import SegmentInfo, bucket_ends

KeyHash = Literal["xxh64", "murmur3", "murmur3-low"]
KEY_HASHES: tuple[KeyHash, ...] = get_args(KeyHash)

DELETION = "delete"  # the kind of PendingChange that ends a topic; under all others it keeps serving

_KNOWN = frozenset(
    ("epoch", "nextSegmentId", "segments", "properties", "keyHash", "durability", "createdAtMs", "change")
) | frozenset(("entryBuckets", "autoScalePolicy", TOPIC_FIELD))
_NOTHING: Mapping[str, Any] = MappingProxyType({})

_LARGE = 4096  # bytes of a topic record: a wide topic's is read for every segment
_LARGE_KEPT = 16  # the layouts of large records that are cached ...
_SMALL_KEPT = 64  # ... and of others, which retention, lookups and attachments read again and again


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A long change that was begun: the topic's next leader resumes or undoes it, from `phase`.

    `details`: JSON that only the change itself reads.
    """

    kind: str
    phase: str
    details: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "phase": self.phase}
        return {**fields, "details": dict(self.details)} if self.details else fields

    @classmethod
    def from_json(cls, fields: Fields) -> PendingChange:
        """Undo to_json(); records of older versions have no details. Raises CorruptionError naming the field."""
        details = fields.fields("details", {}).values
        return cls(fields.text("kind"), fields.text("phase"), MappingProxyType(details))

    @property
    def deletes(self) -> bool:
        """Whether it deletes the topic."""
        return self.kind == DELETION


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One version of a topic's shape, and the topic's facts that every version carries (semantics 3).

    Invariant: the active segments tile the ring. Checked by _check_tiling() whenever one is made; CorruptionError.
    """

    epoch: int
    next_segment_id: int
    segments: Mapping[int, SegmentInfo]  # active and sealed, by id
    key_hash: str = "xxh64"
    durability: str = "fsync"
    created_at_ms: int = 0
    properties: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    change: PendingChange | None = None
    buckets_total: int = ENTRY_BUCKETS_DEFAULT  # the topic's budget (PIP-486); the actual total may be larger
    auto_scale_policy: AutoScalePolicyOverride | None = None
    policies: TopicPolicies = NOTHING_SAID
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)  # fields of a newer version
    active: tuple[SegmentInfo, ...] = field(init=False, compare=False, repr=False)  # by ascending range start
    _starts: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        active = sorted((s for s in self.segments.values() if s.active), key=lambda s: s.hash_range.start)
        object.__setattr__(self, "active", tuple(active))
        object.__setattr__(self, "_starts", tuple(s.hash_range.start for s in active))
        object.__setattr__(self, "segments", MappingProxyType(dict(sorted(self.segments.items()))))
        self._check_tiling()

    def _check_tiling(self) -> None:
        expected = 0
        for segment in self.active:
            if segment.hash_range.start != expected:
                start = segment.hash_range.start
                raise CorruptionError(f"field 'segments': {segment.segment_id} starts at {start}, not at {expected}")
            expected = segment.hash_range.end + 1
        if expected != HASH_RING_SIZE:
            last = HASH_RING_SIZE - 1
            raise CorruptionError(f"field 'segments': the active segments end at {expected - 1}, not at {last}")

    @classmethod
    def create(
        cls,
        segments: int = 1,
        *,
        now_ms: int,
        buckets_total: int = 4,
        key_hash: str = "xxh64",
        durability: str = "fsync",
        properties: Mapping[str, str] | None = None,
        auto_scale_policy: AutoScalePolicyOverride | None = None,
    ) -> SegmentLayout:
        """A new topic's first version, epoch 0. Each segment gets its share of the buckets, at least one.

        Raises InvalidArgumentError.
        """
        check_topic_facts(segments, key_hash, durability, properties or {})
        ends = bucket_ends(_bucket_share(segments, buckets_total))
        infos = {i: SegmentInfo(i, r, ends, 0, now_ms) for i, r in enumerate(HashRange.divide(segments))}
        facts = MappingProxyType(dict(properties or {}))
        layout = cls(
            0, segments, infos, key_hash, durability, now_ms, facts, None, buckets_total, auto_scale_policy or None
        )
        check_size(layout)
        return layout

    def segment(self, segment_id: int) -> SegmentInfo:
        """A segment, active or sealed. Raises NotFoundError."""
        try:
            return self.segments[segment_id]
        except KeyError:
            raise NotFoundError(f"segment {segment_id} is not in the layout of epoch {self.epoch}") from None

    def find_active_segment(self, hash_value: int) -> SegmentInfo:
        """The active segment whose range holds a segment hash, 0 to 65535. Raises InvalidArgumentError."""
        if not 0 <= hash_value < HASH_RING_SIZE:
            raise InvalidArgumentError(f"segment hash must be 0 to {HASH_RING_SIZE - 1}, got {hash_value}")
        return self.active[bisect_right(self._starts, hash_value) - 1]

    @property
    def deleting(self) -> bool:
        """Whether the topic is being deleted: it is gone for all but its leader."""
        return self.change is not None and self.change.deletes

    @property
    def bucket_total(self) -> int:
        """The entry buckets of all active segments: the largest useful number of ordered consumers."""
        return sum(s.bucket_count for s in self.active)

    def parents(self, segment_id: int) -> tuple[SegmentInfo, ...]:
        """The parents that are still in the layout. Raises NotFoundError."""
        return tuple(self.segments[i] for i in self.segment(segment_id).parent_ids)

    def children(self, segment_id: int) -> tuple[SegmentInfo, ...]:
        """Raises NotFoundError."""
        return tuple(self.segments[i] for i in self.segment(segment_id).child_ids)

    def ancestors(self, segment_id: int) -> frozenset[int]:
        """The ids of all ancestors. Raises NotFoundError."""
        return self._reach(segment_id, lambda s: s.parent_ids)

    def descendants(self, segment_id: int) -> frozenset[int]:
        """The ids of all descendants. Raises NotFoundError."""
        return self._reach(segment_id, lambda s: s.child_ids)

    def _reach(self, segment_id: int, step: Any) -> frozenset[int]:
        found: set[int] = set()
        open_ids = list(step(self.segment(segment_id)))
        while open_ids:
            if (i := open_ids.pop()) not in found:
                found.add(i)
                open_ids.extend(step(self.segments[i]))
        return frozenset(found)

    def lineage(self, segment_id: int) -> tuple[SegmentInfo, ...]:
        """Its ancestors, itself and its descendants, by id. Ids ascend along every path. Raises NotFoundError."""
        ids = self.ancestors(segment_id) | self.descendants(segment_id) | {segment_id}
        return tuple(self.segments[i] for i in sorted(ids))

    def merge_depth(self, segment_id: int) -> int:
        """The most merges on any path to it; splits do not count (semantics 6). Raises NotFoundError."""
        depths: dict[int, int] = {}
        for i in sorted(self.ancestors(segment_id) | {segment_id}):
            parent_ids = self.segments[i].parent_ids
            depths[i] = max((depths[p] for p in parent_ids), default=0) + (len(parent_ids) > 1)
        return depths[segment_id]

    def to_metadata(self) -> dict[str, Any]:
        """The specification's ScalableTopicMetadata, with our fields behind its own."""
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "nextSegmentId": self.next_segment_id,
            "segments": {str(i): s.to_json() for i, s in self.segments.items()},
            "properties": dict(self.properties),
            "keyHash": self.key_hash,
            "durability": self.durability,
            "createdAtMs": self.created_at_ms,
            "entryBuckets": self.buckets_total,
        }
        if self.auto_scale_policy is not None:
            fields["autoScalePolicy"] = self.auto_scale_policy.to_json()
        if self.policies:
            fields[TOPIC_FIELD] = self.policies.to_fields()
        if self.change is not None:
            fields["change"] = self.change.to_json()
        return {**self.extra, **fields}

    def to_json(self) -> bytes:
        return dump(self.to_metadata())

    @classmethod
    def from_json(cls, value: bytes) -> SegmentLayout:
        """Undo to_json(). Raises CorruptionError naming the field."""
        return _read_large(value) if len(value) >= _LARGE else _read_small(value)

    @classmethod
    def _read(cls, value: bytes) -> SegmentLayout:
        return cls.from_metadata(Fields.parse("topic record", value).values)

    @staticmethod
    def change_in(value: bytes) -> PendingChange | None:
        """Only the pending change of a topic record, for searching many. Raises CorruptionError."""
        fields = Fields.parse("topic record", value)
        return PendingChange.from_json(fields.fields("change")) if "change" in fields.values else None

    @staticmethod
    def properties_in(value: bytes) -> dict[str, str]:
        """Only the properties of a topic record, for searching many. Raises CorruptionError."""
        return Fields.parse("topic record", value).texts("properties", {})

    @staticmethod
    def facts_in(value: bytes) -> tuple[bool, int, dict[str, str]]:
        """The facts of a topic record for lists: whether it is being deleted, when it was created, its properties.

        Raises CorruptionError.
        """
        fields = Fields.parse("topic record", value)
        change = PendingChange.from_json(fields.fields("change")) if "change" in fields.values else None
        deleting = change is not None and change.deletes
        return deleting, fields.number("createdAtMs", 0), fields.texts("properties", {})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> SegmentLayout:
        """Undo to_metadata(). Raises CorruptionError naming the field."""
        fields = Fields("topic record", metadata)
        return cls(
            fields.number("epoch"),
            fields.number("nextSegmentId"),
            dict(_read_segments(fields)),
            _one_of(fields, "keyHash", KEY_HASHES),
            _one_of(fields, "durability", DURABILITIES),
            fields.number("createdAtMs", 0),
            MappingProxyType(fields.texts("properties", {})),
            PendingChange.from_json(fields.fields("change")) if "change" in fields.values else None,
            max(1, fields.number("entryBuckets", ENTRY_BUCKETS_DEFAULT)),
            _read_policy(fields),
            read_topic_policies(fields),
            MappingProxyType({k: v for k, v in fields.values.items() if k not in _KNOWN}),
        )


@lru_cache(maxsize=_LARGE_KEPT)
def _read_large(value: bytes) -> SegmentLayout:
    """Equal values give the same layout, which is immutable."""
    return SegmentLayout._read(value)


@lru_cache(maxsize=_SMALL_KEPT)
def _read_small(value: bytes) -> SegmentLayout:
    """Likewise."""
    return SegmentLayout._read(value)


def check_size(layout: SegmentLayout) -> None:
    """Raise InvalidArgumentError when the layout exceeds a limit: clients get every layout in one frame."""
    if (active := len(layout.active)) > SEGMENTS_PER_TOPIC_MAX:
        raise InvalidArgumentError(f"a topic must have at most {SEGMENTS_PER_TOPIC_MAX} active segments, got {active}")
    if (size := len(layout.to_json())) > LAYOUT_SIZE_MAX:
        sealed = len(layout.segments) - active
        raise InvalidArgumentError(
            f"{active} active and {sealed} sealed segments with their buckets must take at most "
            f"{LAYOUT_SIZE_MAX} bytes, got {size}: use fewer entry buckets, or wait until retention deletes sealed ones"
        )


def check_topic_facts(segments: int, key_hash: str, durability: str, properties: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError, naming the argument, unless a topic may be created with these."""
    if type(segments) is not int or not 1 <= segments <= SEGMENTS_PER_TOPIC_MAX:
        raise InvalidArgumentError(f"segments must be an integer from 1 to {SEGMENTS_PER_TOPIC_MAX}, got {segments!r}")
    if key_hash not in KEY_HASHES:
        raise InvalidArgumentError(f"key_hash must be {' or '.join(KEY_HASHES)}, got {key_hash!r}")
    if durability not in DURABILITIES:
        raise InvalidArgumentError(f"durability must be {' or '.join(DURABILITIES)}, got {durability!r}")
    check_properties(properties)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError unless a topic may have these."""
    pairs = properties.items() if isinstance(properties, Mapping) else [(None, None)]
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
        raise InvalidArgumentError(f"properties must be a mapping of text to text, got {properties!r:.80}")
    if (size := len(json.dumps(dict(properties)))) > PROPERTIES_SIZE_MAX:
        raise InvalidArgumentError(f"properties must take at most {PROPERTIES_SIZE_MAX} bytes as JSON, got {size}")


def _bucket_share(segments: int, buckets_total: int) -> int:
    if type(buckets_total) is not int or buckets_total < 1:
        raise InvalidArgumentError(f"entry_buckets must be an integer >= 1, got {buckets_total!r}")
    return max(1, buckets_total // segments)


def _one_of(fields: Fields, name: str, right: tuple[str, ...]) -> str:
    text = fields.text(name, right[0])
    if text not in right:
        fields.wrong(name, f"is {text!r:.80}, not one of {', '.join(right)}")
    return text


def _read_policy(fields: Fields) -> AutoScalePolicyOverride | None:
    value = fields.values.get("autoScalePolicy")
    return None if value is None else AutoScalePolicyOverride.read("topic record: field 'autoScalePolicy'", value)


def _read_segments(fields: Fields) -> Iterator[tuple[int, SegmentInfo]]:
    items = fields.fields("segments")
    next_id = fields.number("nextSegmentId")
    known = items.values.keys()
    for name in known:
        info = SegmentInfo.from_json(items.fields(name))
        if str(info.segment_id) != name or info.segment_id >= next_id:
            items.wrong(name, f"has the segmentId {info.segment_id}, with nextSegmentId {next_id}")
        if not all(str(i) in known and i < info.segment_id for i in info.parent_ids):
            items.wrong(name, f"has parentIds {list(info.parent_ids)}, not all of them older segments of it")
        if not all(str(i) in known and i > info.segment_id for i in info.child_ids):
            items.wrong(name, f"has childIds {list(info.child_ids)}, not all of them younger segments of it")
        yield info.segment_id, info
