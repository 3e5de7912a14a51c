"""Batches whose sequence ids interleave, as of key-based batching: they are put in order before they are stored.

A client that batches by key sends a batch for each key of a flush, in the order of their first messages:

    flushed      0a 1b 2c 3a 4b 5c 6a 7b 8c
    sent         [0 3 6]  [1 4 7]  [2 5 8]
    stored       [0 1 2 3 4 5 6 7 8]

Duplicates are recognised by sequence ids that rise (`storage/dedup`), so [0 3 6] stored alone would make 1, 2, 4 and 5
count as stored. A SEND with a gap inside is therefore held until others have filled it; then the messages of all that
are held become one batch, by rising ids, and each SEND is answered when all of that is durable. So whatever the client
has no receipt for when it connects again, a message that is stored has none below it that is not.

A gap that stays is the client's own, as where it chose its sequence ids itself. It is known to stay when

    a SEND begins above all that is held      they come in the order of their first messages
    nothing comes for QUIET_S, the client answers a PING that was sent then, and again nothing comes for QUIET_S
                                              what it had sent before its answer was before it in the connection

What was passed by is remembered: a message that comes for such a gap later would be taken for a duplicate, and is
refused. `Remembered` has it for a producer that connects again, and so may send a message again whose refusal it was
not told. So is refused all that is held when it is more than may be held. A SEND without a gap that follows the highest
id is ordinary, and costs a comparison.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError, UnsupportedError
from engine.limits import ENTRY_MESSAGES_MAX
from engine.pulsar.messages import SingleMessageMetadata
from engine.pulsar.payloads import content_of, is_opaque

if TYPE_CHECKING:
    from engine.pulsar.payloads import Published

QUIET_S = 0.02  # without a SEND, before a client is asked and behind its answer
HELD_BYTES_MAX = 8 << 20  # of several SENDs of one producer: what a client flushes at once is far less
HELD_SENDS_MAX = 10_000
GAPS_MAX = 1_000
SEALED_MAX = 1_000
REMEMBERED_MAX, PARTS_REMEMBERED_MAX = 200, 100  # producers; gaps and encrypted batches of each, the newest
_OBJECTS = 128  # bytes of memory that a message takes beside its own

_KEYED = 1  # of an entry's flags
_LANE = struct.Struct("<17xB10xH")  # flags and lowest bucket hash
_SIZE, _COUNT, _SEQUENCES = struct.Struct("<4xI"), struct.Struct("<20xI"), struct.Struct("<48xQQ")


class Run(NamedTuple):
    """A batch of `number` messages in order. `metadata`: of a SEND that one of them was in; what holds for a batch as a
    whole holds for all of them.
    """

    metadata: Any
    batch: bytes
    number: int


class Held(NamedTuple):
    """A SEND. `sent`: what is told its fate. `ids`: the sequence ids of its messages, `singles` their bytes."""

    sent: Any
    transaction: str | None
    metadata: Any
    ids: list[int]
    singles: list[bytes]
    size: int


class Passed(NamedTuple):
    """What one producer has passed on, and by. `highest`: the highest sequence id. `gaps`: below it, inclusive, rising.
    `sealed`: of encrypted batches, the first id -> the last one, and how many messages. `sealed_above`: those with a
    first id up to it are not known any more.
    """

    highest: int = -1
    gaps: tuple[tuple[int, int], ...] = ()
    sealed: Mapping[int, tuple[int, int]] = MappingProxyType({})
    sealed_above: int = -1

    def as_stored(self, stored: int) -> Passed:
        """Of what was passed on, messages up to `stored` were stored: what the others would have passed by is open."""
        return Passed(
            min(self.highest, stored),
            tuple(gap for gap in self.gaps if gap[0] <= stored),
            {first: one for first, one in self.sealed.items() if first <= stored},
            self.sealed_above,
        )


NOTHING_PASSED = Passed()


class Remembered:
    """What producers have passed by whose connection has ended, until they come again: of the last REMEMBERED_MAX, by
    segment and name. Of one broker, and lost with it. Loop thread only.
    """

    def __init__(self) -> None:
        self._passed: dict[tuple[str, bytes], Passed] = {}

    def keep(self, place: str, name: bytes, passed: Passed | None) -> None:
        """None: it has passed nothing by."""
        self._passed.pop((place, name), None)
        if passed is not None:
            self._passed[place, name] = passed
            if len(self._passed) > REMEMBERED_MAX:
                del self._passed[next(iter(self._passed))]

    def take(self, place: str, name: bytes) -> Passed:
        return self._passed.pop((place, name), NOTHING_PASSED)


class Interleaved:
    """What one producer's SENDs are held by. Loop thread only.

    `stored`: its last sequence id when it was opened. `buckets`: as in Routing. `publish`: is given SENDs and what
    is to be stored for them: nothing, where they are refused. `ping`: asks the client for a PONG, which `ponged` must
    be told. `before`: what it has passed on earlier connections, as far as that is stored.
    """

    __slots__ = (
        "_asked",
        "_buckets",
        "_count",
        "_gaps",
        "_held",
        "_high",
        "_highest",
        "_ids",
        "_low",
        "_ping",
        "_publish",
        "_sealed",
        "_sealed_above",
        "_size",
        "_stored",
        "_timer",
    )

    def __init__(
        self,
        stored: int,
        buckets: Sequence[int],
        publish: Callable[[list[Held], list[Run]], None],
        ping: Callable[[], None],
        before: Passed = NOTHING_PASSED,
    ) -> None:
        self._stored = stored
        self._buckets = buckets
        self._publish = publish
        self._ping = ping
        # As in Passed.
        self._highest = before.highest
        self._gaps = list(before.gaps)
        self._sealed = dict(before.sealed)
        self._sealed_above = before.sealed_above
        self._held: list[Held] = []
        self._ids: set[int] = set()  # that are held
        self._size = 0
        # Of the ids that are held and above `_highest`: the lowest, the highest, and how many there are.
        self._low = self._high = -1
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False  # a PONG is awaited

    @property
    def passed(self) -> Passed | None:
        """What it has passed on; None where nothing that may come later would count as stored."""
        parted = any(last - first >= count for first, (last, count) in self._sealed.items())
        if not self._gaps and not parted:
            return None
        order = list(self._sealed)
        older, newest = order[:-PARTS_REMEMBERED_MAX], order[-PARTS_REMEMBERED_MAX:]
        above = max(self._sealed_above, *older, -1)
        gaps = tuple(self._gaps[-PARTS_REMEMBERED_MAX:])
        return Passed(self._highest, gaps, {first: self._sealed[first] for first in newest}, above)

    def is_ordinary(self, made: Published) -> bool:
        """Whether a SEND follows what came, without a gap inside and with nothing held. It is to be passed on then."""
        first, last, count = (made.sequence, made.sequence, 1) if made.chunk else span_of(made.entries, self._buckets)
        if self._held or first <= self._highest or last - first not in (count - 1, 0):
            return False
        if made.opaque:
            self._note_sealed(first, last, count)
        self._passed(first, last)
        return True

    def take(self, payload: memoryview, sent: Any, transaction: str | None) -> bool:
        """Hold a SEND that is not ordinary; False: it is to be passed on. What is held already may be stored first.

        Raises InvalidArgumentError for one that comes too late; UnsupportedError for an encrypted one that interleaves.
        """
        metadata, batch, count = content_of(payload)
        if is_opaque(metadata):
            self.release()
            self._check_opaque(metadata, count)
            return False
        ids, singles = _messages_in(metadata, batch, count)
        distinct = set(ids)
        twice = len(distinct) != count  # the second ones are duplicates
        if self._held and (
            twice
            or self._held[0].transaction != transaction
            or min(ids) > self._high
            or not distinct.isdisjoint(self._ids)
        ):
            self.release()
        self._check_late(ids)
        rises = all(a < b for a, b in pairwise(ids))
        if twice or (not self._held and rises and ids[-1] - ids[0] == count - 1):
            for number in sorted(distinct):
                self._passed(number, number)
            return False
        self._hold(Held(sent, transaction, metadata, ids, singles, sum(map(len, singles)) + _OBJECTS * count))
        return True

    def release(self) -> None:
        """Have all that is held stored, by rising sequence ids."""
        held = self.drop()
        if not held:
            return
        messages = [
            (number, one.metadata, single) for one in held for number, single in zip(one.ids, one.singles, strict=True)
        ]
        messages.sort(key=itemgetter(0))
        for number, _, _ in messages:
            self._passed(number, number)
        runs = []
        for _, found in groupby(messages, lambda message: _facts(message[1])):
            alike = list(found)
            for at in range(0, len(alike), ENTRY_MESSAGES_MAX):
                part = alike[at : at + ENTRY_MESSAGES_MAX]
                runs.append(Run(part[0][1], b"".join(message[2] for message in part), len(part)))
        self._publish(held, runs)

    def drop(self) -> list[Held]:
        """Hold nothing any more; what was held."""
        held, self._held, self._ids = self._held, [], set()
        self._size = self._count = 0
        self._low = self._high = -1
        self._quiet(None)
        return held

    def ponged(self) -> None:
        """The client has answered a PING."""
        if self._asked:
            self._quiet(self.release)

    def _hold(self, one: Held) -> None:
        self._held.append(one)
        self._ids.update(one.ids)
        self._size += one.size
        new = [number for number in one.ids if number > self._highest]
        if new:
            self._low = min(new) if not self._count else min(self._low, min(new))
            self._high = max(self._high, max(new))
            self._count += len(new)
        if not self._count or self._count == self._high - self._low + 1:
            self.release()
        elif len(self._held) > 1 and (self._size > HELD_BYTES_MAX or len(self._held) > HELD_SENDS_MAX):
            self._refuse()
        else:
            self._quiet(self._ask)

    def _refuse(self) -> None:
        """Have nothing of what is held stored. A part of a flush would make the rest of it count as stored."""
        held = self.drop()
        size, sends = sum(one.size for one in held), len(held)
        for one in held:
            one.sent.refusal = MessageTooLargeError(
                f"batches whose sequence ids interleave must have at most {HELD_BYTES_MAX:,} bytes together and be at "
                f"most {HELD_SENDS_MAX:,}, got {size:,} and {sends:,}: use smaller batches, or no key-based batching"
            )
        self._publish(held, [])

    def _quiet(self, then: Callable[[], None] | None) -> None:
        """Wait anew before `then`."""
        self._asked = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if then is None else asyncio.get_running_loop().call_later(QUIET_S, then)

    def _ask(self) -> None:
        self._timer, self._asked = None, True
        self._ping()

    def _passed(self, first: int, last: int) -> None:
        """Messages with these ids are passed on: what is between them and those before is a gap."""
        low = self._highest + 1 if self._highest >= 0 else self._stored + 1
        if low < first:
            self._gaps.append((low, first - 1))
            if len(self._gaps) > GAPS_MAX:  # what is refused is too much then, and never too little
                self._gaps[:2] = [(self._gaps[0][0], self._gaps[1][1])]
        self._highest = max(self._highest, last)

    def _check_late(self, ids: list[int]) -> None:
        if min(ids) > self._highest:
            return
        for number in ids:
            at = bisect_left(self._gaps, number, key=itemgetter(1))
            if at < len(self._gaps) and self._gaps[at][0] <= number:
                raise InvalidArgumentError(
                    f"sequence ids must rise, got {number} after {self._highest} was stored: a message of that id, "
                    "which has not come before, would count as stored"
                )

    def _check_opaque(self, metadata: Any, count: int) -> None:
        first = last = metadata.sequence
        if metadata.chunks <= 1:
            last = max(metadata.highest_sequence, first + count - 1)
            known = first > self._sealed_above
            if known and first <= self._highest and self._sealed.get(first) != (last, count):
                raise UnsupportedError(
                    f"the sequence ids of encrypted batches must rise, got {first} after {self._highest}: such a batch "
                    "cannot be taken apart, so key-based batching does not go together with encryption"
                )
            self._note_sealed(first, last, count)
        self._passed(first, last)

    def _note_sealed(self, first: int, last: int, count: int) -> None:
        self._sealed[first] = last, count
        if len(self._sealed) > SEALED_MAX:
            oldest = next(iter(self._sealed))
            del self._sealed[oldest]
            self._sealed_above = max(self._sealed_above, oldest)


def span_of(entries: bytes, buckets: Sequence[int]) -> tuple[int, int, int]:
    """The lowest and highest sequence id in entries that lie back to back, and how many messages they have: 0 where the
    ids fall from one entry of a bucket to the next. `buckets`: as in Routing.
    """
    first, last = _SEQUENCES.unpack_from(entries, 0)
    (count,) = _COUNT.unpack_from(entries, 0)
    if _SIZE.unpack_from(entries, 0)[0] == len(entries):
        return first, last, count
    at = count = 0
    reached: dict[tuple[int, int], int] = {}
    falls = False
    while at < len(entries):
        low, high = _SEQUENCES.unpack_from(entries, at)
        (size,), (more,) = _SIZE.unpack_from(entries, at), _COUNT.unpack_from(entries, at)
        flags, bucket = _LANE.unpack_from(entries, at)
        lane = flags & _KEYED, bisect_left(buckets, bucket) if flags & _KEYED else 0
        falls = falls or low <= reached.get(lane, -1)
        reached[lane] = high
        first, last, count, at = min(first, low), max(last, high), count + more, at + size
    return first, last, 0 if falls else count


def ranges_of(entries: bytes) -> list[tuple[int, int]]:
    """The first and last sequence id of each of the entries that lie back to back."""
    ranges, at = [], 0
    while at < len(entries):
        ranges.append(_SEQUENCES.unpack_from(entries, at))
        at += _SIZE.unpack_from(entries, at)[0]
    return ranges


def _facts(metadata: Any) -> tuple[Any, ...]:
    """What holds for a batch as a whole: messages where this differs become batches of their own."""
    return metadata.HasField("deliver_at"), metadata.deliver_at, metadata.compression, metadata.schema_version


def _messages_in(metadata: Any, batch: bytes | memoryview, count: int) -> tuple[list[int], list[bytes]]:
    """The sequence ids of a batch that was found to be sound, and its messages, each with its own id."""
    ids, singles, at = [], [], 0
    batch = bytes(batch)
    for i in range(count):
        start = at + 4 + int.from_bytes(batch[at : at + 4], "big")
        try:
            single = SingleMessageMetadata.FromString(batch[at + 4 : start])
        except DecodeError as e:
            raise CorruptionError(f"message {i} of the batch: its metadata cannot be read: {e}") from e
        stop = start + single.payload_size
        if single.HasField("sequence"):
            whole = batch[at:stop]
        else:
            single.sequence = metadata.sequence
            head = single.SerializeToString()
            whole = b"".join((len(head).to_bytes(4, "big"), head, batch[start:stop]))
        ids.append(single.sequence)
        singles.append(whole)
        at = stop
    return ids, singles
