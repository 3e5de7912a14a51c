"""`AsyncTopicReader`: what lies between two places of a topic, as a table; each use of it reads the same messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict

from engine._native.consume.batch import MessageBatch
from engine.client.base.html import html_table
from engine.client.base.options import ON_CORRUPT, Keys
from engine.client.base.schema import Schema
from engine.client.net.pool import Pool
from engine.client.ranges.range_reader import AsyncRangeReader, Ranges
from engine.client.ranges.table_columns import TableColumns
from engine.client.ranges.topic_view import AsyncTopicView
from engine.client.topic.declaring import learn_to_read
from engine.client.topic.session import TopicSession
from engine.errors import InvalidArgumentError, NotFoundError
from engine.model.checks import check_choice
from engine.model.names import TopicName
from engine.model.positions import Checkpoint

Place = Checkpoint | datetime | Literal["earliest", "latest"]


class TopicReaderKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.reader and AsyncClient.table."""

    start: Place
    end: Place
    columns: Iterable[str] | None
    schema: object
    on_corrupt: str
    decryption_keys: Keys | None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What is read of a topic: `ranges`, which end at the positions of `end`.

    `skip_deleted`: whether messages that retention deletes meanwhile are left out, or an error.
    """

    topic: str
    ranges: Ranges
    end: Checkpoint
    skip_deleted: bool


def place_of(name: str, place: object) -> Checkpoint:
    """A Checkpoint, a time, "earliest" or "latest" as a Checkpoint. Raises InvalidArgumentError."""
    if isinstance(place, Checkpoint):
        return place
    if isinstance(place, datetime):
        return Checkpoint.at_timestamp(place)
    if isinstance(place, str) and place in ("earliest", "latest"):
        return Checkpoint.earliest() if place == "earliest" else Checkpoint.latest()
    raise InvalidArgumentError(
        f"{name} must be an engine.Checkpoint, an aware datetime, 'earliest' or 'latest', got {place!r:.80}"
    )


async def plan_between(view: AsyncTopicView, start: Checkpoint, end: Checkpoint) -> TopicPlan:
    """From `start` to `end`, or to the ends that the segments have now where these come first.

    A segment that a checkpoint does not name was born after it: as a start it is read from its beginning, as an end not
    at all. Raises NotFoundError where retention has deleted what is behind the positions of `start`.
    """
    facts = await view.segments(exact=True)
    starts = facts.earliest if start.form == "earliest" else await view.resolve(start)
    ends = facts.latest if end.form == "latest" else await view.resolve(end)
    ranges, stops = {}, {}
    for i, segment in facts.segments.items():
        begin = starts.positions.get(i, segment.first)
        if i not in ends.positions:
            continue
        stops[i] = stop = min(ends.positions[i], segment.end)
        if start.form == "positions" and begin < min(segment.first, stop):
            deleted = f"messages {begin} to {min(segment.first, stop) - 1} of segment {i} of {facts.topic}"
            raise NotFoundError(f"retention has deleted {deleted}, which are behind the start")
        if max(begin, segment.first) < stop:
            ranges[i] = (max(begin, segment.first), stop)
    position = Checkpoint(stops, epoch=facts.epoch, topic=facts.topic, topic_created_ms=facts.created_ms)
    return TopicPlan(facts.topic, ranges, position, skip_deleted=start.form != "positions")


async def learn_schemas(pool: Pool, topic: TopicName, schema: Schema[Any]) -> None:
    """Learn what it takes to read the values that a topic has now. Raises SchemaError."""
    if schema.raw:
        return
    session = TopicSession(pool, topic)
    try:
        await session.open(create=False)
        await learn_to_read(session, schema)
    finally:
        session.close()


class AsyncTopicReader:
    """The messages between two places of a topic, which were fixed when it was made. Made by `client.reader()`.

    It holds nothing open: each record_batches() and to_table() reads the same messages anew.
    """

    def __init__(
        self, plan: TopicPlan, columns: TableColumns, open_ranges: Callable[[], Coroutine[Any, Any, AsyncRangeReader]]
    ) -> None:
        self._plan = plan
        self._columns = columns
        self._open_ranges = open_ranges

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._plan.topic

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of what is read."""
        return self._columns.schema

    @property
    def end(self) -> Checkpoint:
        """Where it ends: a later reader that starts here goes on with the next message of every segment."""
        return self._plan.end

    async def record_batches(self) -> AsyncIterator[Any]:
        """The messages as pyarrow.RecordBatches, segment after segment, parents before children.

        Raises SchemaError for a value that the schema cannot read; NotFoundError for what retention has deleted behind
        a start that was a position; CorruptionError, ConnectError, TimeoutError.
        """
        reader = await self.open()
        try:
            async for batch in reader.batches():
                for one in await self._converted(batch):
                    yield one
        finally:
            await reader.close()

    async def to_table(self) -> Any:
        """All of it as a pyarrow.Table. Raises as record_batches()."""
        return self.table_of([batch async for batch in self.record_batches()])

    async def _converted(self, batch: MessageBatch) -> list[Any]:
        if self._columns.decodes:  # 65,536 values take a tenth of a second, in which the loop has other work
            return await asyncio.to_thread(self._columns.record_batches, batch)
        return self._columns.record_batches(batch)

    # -- for the blocking form ---------------------------------------------------------------------------------

    async def open(self) -> AsyncRangeReader:
        """A new reader of its messages. Raises NotFoundError when the topic is not the one that it was."""
        reader = await self._open_ranges()
        created = reader.session.layout.created_ms
        if None not in (created, self.end.topic_created_ms) and created != self.end.topic_created_ms:
            await reader.close()
            raise NotFoundError(f"{self.topic} was deleted; there is another of its name")
        return reader

    def convert(self, batch: MessageBatch) -> list[Any]:
        """Messages as pyarrow.RecordBatches. From any thread."""
        return self._columns.record_batches(batch)

    def table_of(self, batches: list[Any]) -> Any:
        """Record batches as a pyarrow.Table."""
        import pyarrow

        return pyarrow.Table.from_batches(batches, schema=self.schema)

    def _repr_html_(self) -> str:
        rows = [(field.name, field.type) for field in self.schema]
        return html_table(f"{self.topic}: {self._messages:,} messages at most", ("column", "type"), rows)

    @property
    def _messages(self) -> int:
        return sum(stop - start for start, stop in self._plan.ranges.values())

    def __repr__(self) -> str:
        names = ", ".join(self.schema.names)
        return f"<{type(self).__name__} of {self.topic}: {names}; {self._messages:,} messages at most>"


async def open_reader(
    client: Any,
    topic: str,
    between: tuple[Place, Place],
    schema: Schema[Any],
    columns: Iterable[str] | None,
    options: dict[str, Any],
) -> AsyncTopicReader:
    """See AsyncClient.reader. `options`: of its readers of ranges."""
    places = place_of("start", between[0]), place_of("end", between[1])
    check_choice("on_corrupt", options["on_corrupt"], ON_CORRUPT)
    table = TableColumns(schema, columns)
    async with await client.topic_view(topic) as view:
        plan = await plan_between(view, *places)
    await learn_schemas(client.pool, TopicName.parse(topic), schema)
    opening = partial(client.range_reader, topic, plan.ranges, skip_deleted=plan.skip_deleted, **options)
    return AsyncTopicReader(plan, table, opening)
