"""Messages of a topic, browsed and searched: one bounded reading for each page, which leaves nothing at the broker."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from engine.console.values import PROPERTIES_MAX, Value, Values, key_text, line
from engine.errors import DecryptionError, InvalidArgumentError
from engine.model.positions import Checkpoint

if TYPE_CHECKING:
    from engine.client import Message
    from engine.client.client import AsyncClient
    from engine.client.ranges.topic_view import AsyncTopicView, TopicSegments

ROWS = 50
NEWEST_READ = 2_000  # messages that are read to find the newest ROWS of all segments
SEARCHED_MAX = 100_000  # messages that one page passes over in search of a key
BYTES_MAX = 32 << 20  # that one page reads
PASSED_MAX = 50  # entries that one page passes by, as only clients of Apache Pulsar can read them
SECONDS_MAX = 5.0
_BATCH = 256

Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. `start`: "" for the newest, "earliest", a time, or a place SEGMENT:OFFSET to go on from.

    `key`: only messages with it; None: all. `segment`: only those of this one.
    """

    key: str | None = None
    start: str | datetime | tuple[int, int] = ""
    segment: int | None = None

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Wanted:
        """The fields of a form. Raises InvalidArgumentError."""
        segment, start = asked.get("segment", "").strip(), asked.get("from", "").strip()
        if segment and not (segment.isdecimal() and len(segment) < 19):
            raise InvalidArgumentError(f"segment must be a number, got {segment!r:.40}")
        return cls(asked.get("key") or None, _start(start), int(segment) if segment else None)


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A message as a page shows it."""

    place: str
    key: str
    published: str
    event_time: str
    producer: str
    sequence: int
    size: int
    properties: tuple[tuple[str, str], ...]
    more_properties: int
    value: Value


@dataclass(frozen=True, slots=True)
class MessagePage:
    """`more`: the place at which the next page begins; "" at the end. `read`: messages that were passed over.

    `note`: why the search ended early, and what could not be read.
    """

    topic: str
    schema: str
    rows: tuple[MessageLine, ...] = ()
    more: str = ""
    read: int = 0
    note: str = ""


async def browse(client: AsyncClient, topic: str, wanted: Wanted) -> MessagePage:
    """One page of messages. Raises NotFoundError, AuthorizationError, InvalidArgumentError."""
    async with await client.topic_view(topic) as view:
        facts = await view.segments(exact=True)
        values = Values(await view.schemas())
        ids = _segments(facts, wanted)
        ranges = _tails(facts, ids, wanted) if wanted.start == "" else await _from(view, facts, ids, wanted)
    return await _Search(facts.topic, values, wanted).read(client, ranges)


class _Search:
    """Reads ranges until a page is full, or a limit of what one page may cost is reached."""

    def __init__(self, topic: str, values: Values, wanted: Wanted) -> None:
        self._topic = topic
        self._values = values
        self._key = None if wanted.key is None else wanted.key.encode()
        self._newest = wanted.start == ""
        self._found: list[tuple[datetime, int, int, Message[Any]]] = []  # a heap where the newest are wanted
        self._read = self._bytes = 0
        self._last: tuple[int, int] | None = None  # the place behind what was read
        self._note = self._closed = ""
        self._passed = 0  # entries that only clients of Apache Pulsar can read

    async def read(self, client: AsyncClient, ranges: Ranges) -> MessagePage:
        full = False
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while ranges and not full:
                    full, ranges = await self._part(client, ranges)
        except TimeoutError:
            self._note, full = f"the search was ended after {SECONDS_MAX:g} s", True
        except DecryptionError as e:
            self._note = f"the messages cannot be read: {e}"
        rows = [one[3] for one in sorted(self._found, key=lambda one: one[:3], reverse=self._newest)]
        more = "" if self._newest or not full or self._last is None else "{}:{}".format(*self._last)
        shown = tuple(self._line(message) for message in rows)
        note = "; ".join(text for text in (self._closed, self._note) if text)
        return MessagePage(self._topic, self._values.name, shown, more, self._read, note)

    async def _part(self, client: AsyncClient, ranges: Ranges) -> tuple[bool, Ranges]:
        """Whether the page is full, and what is left: what is behind an entry that only Apache Pulsar's clients can
        read. Raises DecryptionError for other ones.
        """
        keys = None if self._key is None else [self._key]
        options: dict[str, Any] = {"keys": keys, "skip_deleted": True, "on_corrupt": "skip"}
        reader = await client.range_reader(self._topic, ranges, receive_queue_size=1_000, **options)
        try:
            while (batch := await reader.next_batch(_BATCH)) is not None:
                if self._take(batch):
                    return True, {}
        except DecryptionError as e:
            if e.segment_id is None or e.offsets is None:
                raise
            segment, behind = e.segment_id, e.offsets[1] + 1
            left = {
                i: (max(at, behind) if i == segment else at, end) for i, (at, end) in ranges.items() if i >= segment
            }
            return self._pass_by(e, segment, behind), {i: (at, end) for i, (at, end) in left.items() if at < end}
        finally:
            await reader.close()
        return False, {}

    def _pass_by(self, error: DecryptionError, segment: int, behind: int) -> bool:
        """Whether the page ends at this entry, as each costs a reading of its own."""
        self._passed += 1
        self._closed = self._closed or str(error)
        self._last = (segment, behind)
        if self._passed >= PASSED_MAX:
            self._note = f"the search was ended after {self._passed} such entries"
            return True
        return False

    def _take(self, batch: Iterable[Message[Any]]) -> bool:
        """Whether the page is full: what is left of the batch is for the next one."""
        for message in batch:
            self._look(message)
            if self._is_full():
                return True
        return False

    def _is_full(self) -> bool:
        if self._bytes >= BYTES_MAX:
            self._note = f"the search was ended after {self._bytes >> 20} MiB"
        elif self._read >= SEARCHED_MAX:
            self._note = f"the search was ended after {self._read:,} messages"
        else:
            return not self._newest and len(self._found) >= ROWS
        return True

    def _look(self, message: Message[Any]) -> None:
        self._read += 1
        self._bytes += message.size
        self._last = (message.segment_id, message.offset + 1)
        if self._key is None or message.key == self._key:
            one = (message.publish_time, message.segment_id, message.offset, message)
            if self._newest and len(self._found) >= ROWS:
                heapq.heappushpop(self._found, one)
            elif self._newest:
                heapq.heappush(self._found, one)
            else:
                self._found.append(one)

    def _line(self, message: Message[Any]) -> MessageLine:
        properties = sorted(message.properties.items())
        return MessageLine(
            f"{message.segment_id}:{message.offset}", key_text(message.key), instant(message.publish_time),
            "" if message.event_time is None else instant(message.event_time), line(message.producer_name),
            message.sequence_id, message.size,
            tuple((line(name), line(value)) for name, value in properties[:PROPERTIES_MAX]),
            max(len(properties) - PROPERTIES_MAX, 0), self._values.shown(message.encoded_value),
        )  # fmt: skip


def instant(when: datetime) -> str:
    """UTC, to the millisecond."""
    return when.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _segments(facts: TopicSegments, wanted: Wanted) -> list[int]:
    found = sorted(facts.segments) if wanted.key is None else facts.holding(wanted.key)
    if wanted.segment is not None:
        found = [i for i in found if i == wanted.segment]
    return found


def _tails(facts: TopicSegments, ids: list[int], wanted: Wanted) -> Ranges:
    """The ends of the segments: as much of each as one page may read altogether."""
    most = max(min(ROWS, NEWEST_READ // max(len(ids), 1)), 1)
    if wanted.key is not None:
        most = max(SEARCHED_MAX // max(len(ids), 1), 1)
    ends = {i: (facts.segments[i].first, facts.segments[i].end) for i in ids}
    return {i: (max(first, end - most), end) for i, (first, end) in ends.items() if first < end}


async def _from(view: AsyncTopicView, facts: TopicSegments, ids: list[int], wanted: Wanted) -> Ranges:
    """All from the start on."""
    start, begin = wanted.start, {i: facts.segments[i].first for i in ids}
    if isinstance(start, datetime):
        resolved = (await view.resolve(Checkpoint.at_timestamp(start))).positions
        begin = {i: max(first, resolved.get(i, first)) for i, first in begin.items()}
    elif isinstance(start, tuple):
        segment, offset = start
        begin = {i: max(first, offset if i == segment else 0) for i, first in begin.items() if i >= segment}
    ends = {i: facts.segments[i].end for i in begin}
    return {i: (first, ends[i]) for i, first in begin.items() if first < ends[i]}


def _start(text: str) -> str | datetime | tuple[int, int]:
    if text in ("", "earliest"):
        return text
    segment, colon, offset = text.partition(":")
    if colon and segment.isdecimal() and offset.isdecimal() and len(text) < 38:
        return int(segment), int(offset)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as e:
        form = "earliest, a time as 2026-11-24T14:15, or SEGMENT:OFFSET"
        raise InvalidArgumentError(f"from must be {form}, got {text!r:.40}") from e
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
