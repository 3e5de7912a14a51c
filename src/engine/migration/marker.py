"""The property of a destination topic that says where it comes from, and how far every segment of it was copied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine._native.produce.hashing import xxh64
from engine.errors import CorruptionError

PROPERTY = "migrated-from"


@dataclass(frozen=True, slots=True)
class Marker:
    """`topic`, `created_ms`: the source. `positions`: {source segment: its first offset that may be missing}."""

    topic: str
    created_ms: int
    positions: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Marker:
        """Undo text(). Raises CorruptionError."""
        try:
            fields = json.loads(text)
            positions = {int(i): int(offset) for i, offset in fields["positions"].items()}
            return cls(str(fields["topic"]), int(fields["created_ms"]), positions)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise CorruptionError(f"the property {PROPERTY} must be as a migration writes it, got {text!r:.80}") from e

    def text(self) -> str:
        """As the property says it."""
        positions = {str(i): offset for i, offset in sorted(self.positions.items())}
        return json.dumps({"topic": self.topic, "created_ms": self.created_ms, "positions": positions})

    def same_source(self, other: Marker) -> bool:
        """Whether both come from one topic: not from another one of its name."""
        return (self.topic, self.created_ms) == (other.topic, other.created_ms)

    def producer(self, segment_id: int) -> str:
        """The name of the producer that copies a segment of the source: the same in every run."""
        source = xxh64(f"{self.topic} {self.created_ms}".encode())
        return f"migrate-{source:016x}-{segment_id}"
