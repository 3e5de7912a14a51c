"""Where a message is at the source, how that becomes a sequence id, and what the copy's topic says of it.

    sequence id = base of the ledger + entry * 2^20 + index in the batch

A ledger is Apache Pulsar's file of some entries. The ids of a topic's ledgers rise, but are too large to be part of a
sequence id. So the copy's property says which ledger is copied and what its base is, which is behind every sequence id
of the ledgers before it, and is written before its first message is sent, and after all before it are durable. From the
property and the last sequence id that is stored follows the place at the source, whatever was deleted there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from engine._native.produce.hashing import xxh64
from engine.errors import CorruptionError, UnsupportedError
from engine.migration.marker import PROPERTY

INDEX_BITS = 20
_INDEX_MAX = (1 << INDEX_BITS) - 1
_SEQUENCE_MAX = 2**63 - 1
_BEFORE = -1  # the index of a place before the first message of an entry


class Place(NamedTuple):
    """Of one message; they are ordered as messages are."""

    ledger: int
    entry: int
    within: int  # its entry

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.within}"


NOWHERE = Place(-1, -1, -1)  # before all


@dataclass(frozen=True, slots=True)
class Mark:
    """`topic`, `url`: the source, a partition or a whole topic. `first`: what the copy begins with. `ledger`, `base`:
    of what is being copied. `done`: all up to this is there.
    """

    topic: str
    url: str
    first: Place = NOWHERE
    ledger: int = -1
    base: int = 0
    done: Place = NOWHERE

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Undo text(); None: it is of a copy of something else. Raises CorruptionError."""
        try:
            fields = json.loads(text)
            if "pulsar" not in fields:
                return None
            first, done = Place(*map(int, fields["first"])), Place(*map(int, fields["done"]))
            return cls(
                str(fields["pulsar"]), str(fields["url"]), first, int(fields["ledger"]), int(fields["base"]), done
            )
        except (ValueError, TypeError, KeyError) as e:
            raise CorruptionError(f"the property {PROPERTY} must be as a migration writes it, got {text!r:.80}") from e

    def text(self) -> str:
        """As the property says it."""
        fields = {"pulsar": self.topic, "url": self.url, "first": self.first, "ledger": self.ledger, "base": self.base}
        return json.dumps({**fields, "done": self.done})

    @property
    def producer(self) -> str:
        """The name of the producer that copies: the same in every run."""
        return f"migrate-{xxh64(f'{self.url} {self.topic}'.encode()):016x}"

    def sequence(self, place: Place) -> int:
        """Of a message in this ledger. Raises UnsupportedError."""
        found = self.base + (place.entry << INDEX_BITS) + place.within
        if place.within > _INDEX_MAX or found > _SEQUENCE_MAX:
            raise UnsupportedError(f"the message {place} is too far behind others for a sequence id")
        return found

    def place(self, sequence: int) -> Place:
        """The message that has a sequence id, at least this: all before the ledger is there. -1: there is none."""
        if sequence < self.base or self.ledger < 0:
            return max(self.done, Place(self.ledger, -1, _BEFORE) if self.ledger >= 0 else NOWHERE)
        entry, index = divmod(sequence - self.base, 1 << INDEX_BITS)
        return max(self.done, Place(self.ledger, entry, index))
