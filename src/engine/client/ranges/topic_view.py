"""`AsyncTopicView`: a topic's segments and their offsets, for programs that plan reads of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from engine._native.produce.hashing import KEY_HASHES, key32
from engine.client.base.html import html_table
from engine.client.base.owned import Owned
from engine.client.net.pool import Pool
from engine.client.ranges.tails import Tails
from engine.client.topic.layout import SegmentView, TopicLayout
from engine.client.topic.session import TopicSession
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, NotFoundError
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.wire import commands

if TYPE_CHECKING:
    from engine.model.schema import TopicSchema

    Schemas = tuple[TopicSchema, ...]

LISTEN_S_MIN = 0.2  # between two attempts, so that owners that refuse get few requests
Asked = dict[int, commands.Place | None]  # by segment; None for those that need not be asked
AT_ONCE_S = 1.0  # a connected owner that takes longer may have lost the segment: then it is asked with retries


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment at one point in time.

    `hash_start`, `hash_end`: inclusive, of 0..65535. `bucket_ends`: inclusive, the last is 65535. `first`: the first
    offset that is kept. `end`: behind the last message that may be read. `settled`: whether nothing can ever follow
    there: sealed, and no open transaction holds its end back.
    """

    segment_id: int
    hash_start: int
    hash_end: int
    active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    bucket_ends: tuple[int, ...]
    first: int
    end: int
    settled: bool


@dataclass(frozen=True, slots=True)
class TopicSegments:
    """A topic's segments by id, active and sealed, at one point in time. `created_ms`: of the topic."""

    topic: str
    epoch: int
    created_ms: int | None
    key_hash: str
    segments: Mapping[int, Segment]

    def holding(self, key: bytes | str) -> list[int]:
        """The segments that may hold messages of a key, in order: parents before children."""
        high = key32(key, KEY_HASHES[self.key_hash]) >> 16
        return [i for i, s in sorted(self.segments.items()) if s.hash_start <= high <= s.hash_end]

    @property
    def earliest(self) -> Checkpoint:
        """The position of the first message kept in every segment."""
        return self._checkpoint({i: s.first for i, s in self.segments.items()})

    @property
    def latest(self) -> Checkpoint:
        """The position behind the last readable message of every segment."""
        return self._checkpoint({i: s.end for i, s in self.segments.items()})

    def _repr_html_(self) -> str:
        rows = [
            (i, f"{s.hash_start:04x}-{s.hash_end:04x}", "active" if s.active else "sealed", s.first, s.end, s.parents)
            for i, s in sorted(self.segments.items())
        ]
        head = ("segment", "hashes", "state", "first offset", "end", "parents")
        return html_table(f"{self.topic}, epoch {self.epoch}", head, rows)

    def _checkpoint(self, positions: Mapping[int, int]) -> Checkpoint:
        return Checkpoint(positions, epoch=self.epoch, topic=self.topic, topic_created_ms=self.created_ms)


def _segment(view: SegmentView, said: commands.Place) -> Segment:
    """A segment as its owner has answered."""
    hashes, end = view.hash_range, said.offset
    return Segment(
        segment_id=view.segment_id,
        hash_start=hashes.start,
        hash_end=hashes.end,
        active=view.active,
        parents=view.parents,
        children=view.children,
        bucket_ends=view.bucket_ends,
        first=said.first,
        end=end,
        settled=not view.active and end >= said.end,
    )


class AsyncTopicView(Owned):
    """Follows one topic. Made by `client.topic_view()`; usable with `async with`."""

    def __init__(self, pool: Pool, topic: TopicName, name: str) -> None:
        self._session = TopicSession(pool, topic)
        self._name = name
        self._topic = str(topic)
        self._closed = False
        self._failure: EngineError | None = None
        self._settled: dict[int, Segment] = {}  # sealed ones, of which only the start changes
        self._known: TopicSegments | None = None  # the last answer
        self._tails: Tails | None = None
        self._listened_at = -LISTEN_S_MIN

    async def start(self) -> None:
        """Look the topic up. Raises NotFoundError, ConnectError, TimeoutError."""
        try:
            await self._session.open(create=False)
            self._session.follow(lambda layout: None, self._failed)
        except BaseException:
            self._session.close()
            raise

    def _failed(self, error: EngineError) -> None:
        self._failure = error

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    async def segments(self, *, exact: bool = False) -> TopicSegments:
        """All present segments and their offsets; the same object as before if nothing has changed.

        Each active segment's owner is asked, all at the same time: what was acknowledged before the call is in it.
        `exact`: so are those of settled segments, of whose beginning retention may have deleted something since they
        were asked first; and the layout is looked up anew rather than as of the last word about it. Raises
        NotFoundError once the topic is gone, ConnectError, TimeoutError, AlreadyClosedError.
        """
        self._check_open()
        if exact:
            await self._session.refresh()
            self._settled.clear()
        layout, asked = await self._ask_all()
        if any(view.active and (place := asked.get(i)) and place.sealed for i, view in layout.segments.items()):
            await self._session.refresh()  # it has children that are not known yet
            layout, asked = await self._ask_all()
        wanted = [view for i, view in layout.segments.items() if i in asked]
        found = {view.segment_id: self._known_or(view, asked[view.segment_id]) for view in wanted}
        self._settled = {i: s for i, s in found.items() if s.settled}
        snapshot = TopicSegments(self._topic, layout.epoch, layout.created_ms, layout.key_hash, found)
        if self._known is None or snapshot != self._known:
            self._known = snapshot
        return self._known

    def _known_or(self, view: SegmentView, place: commands.Place | None) -> Segment:
        return self._settled[view.segment_id] if place is None else _segment(view, place)

    async def schemas(self) -> Schemas:
        """The schemas with which the topic's messages were written, the oldest first; none: bytes as they are.

        Raises NotFoundError, ConnectError, TimeoutError, AlreadyClosedError.
        """
        from engine.client.topic.declaring import recorded

        self._check_open()
        return await recorded(self._session)

    def listen(self) -> None:
        """Follow changes from the last result of segments() on, instead of requesting it again; see `unchanged`.

        It ends with the first change, and with whatever keeps an owner from telling; call it again when segments() has
        said the same twice. It waits for nothing.
        """
        self._check_open()
        now = asyncio.get_running_loop().time()
        heard = self._tails is not None and not self._tails.over
        if self._known is None or heard or now < self._listened_at + LISTEN_S_MIN:
            return
        self._listened_at = now
        layout = self._session.layout
        ends = {i: s.end for i, s in self._known.segments.items() if not s.settled and i in layout.segments}
        self._tails = Tails(self._session, self._name, ends)

    @property
    def unchanged(self) -> bool:
        """Whether the last result of segments() still holds, as far as followed since listen(). False: request it.

        They tell of a message before they acknowledge it. So all that was acknowledged is known that has had the time
        to come here.
        """
        return self._tails is not None and self._tails.quiet and not self._closed and self._failure is None

    async def _ask_all(self) -> tuple[TopicLayout, Asked]:
        """The layout, and the owners' answers for segments that may change. Without deleted ones."""
        layout = self._session.layout
        unsettled = [view for i, view in layout.segments.items() if i not in self._settled]
        asked: Asked = dict.fromkeys(i for i in layout.segments if i in self._settled)
        asked.update(await self._ask_connected(unsettled))
        late = [view for view in unsettled if view.segment_id not in asked]
        for view, result in zip(late, await asyncio.gather(*(self._ask(v, "latest") for v in late)), strict=True):
            if result is not None:
                asked[view.segment_id] = result
        return layout, asked

    async def _ask_connected(self, views: Iterable[SegmentView]) -> dict[int, commands.Place]:
        """The answers of connected owners that answer soon, without a task for each: this is called often."""
        pool, layout = self._session.pool, self._session.layout
        asked: dict[int, asyncio.Future[commands.Place]] = {}
        for view in views:
            url = layout.url_of(view.segment_id) or pool.home.url
            if pool.is_connected(url):
                connection = await pool.get(url)
                asked[view.segment_id] = connection.start_request(commands.SegmentOffset(topic=view.name, at="latest"))
        if asked:
            await asyncio.wait(asked.values(), timeout=AT_ONCE_S)
        for future in asked.values():
            future.cancel()  # no effect on those that have ended
        answered = {i: f for i, f in asked.items() if not f.cancelled() and f.exception() is None}
        return {i: f.result() for i, f in answered.items()}

    async def _ask(self, view: SegmentView, at: str | int) -> commands.Place | None:
        try:
            return await self._session.place(view.segment_id, at)
        except NotFoundError:
            if self._failure is not None:
                raise
            await self._session.refresh()
            now = self._session.layout.segments.get(view.segment_id)
            if now is not None and now.active:
                raise
            return None

    async def resolve(self, place: Checkpoint) -> Checkpoint:
        """A place (earliest, latest, a time) as a position in every segment; positions unchanged.

        Raises InvalidArgumentError for positions in another topic, also in an earlier one of the same name; and as
        segments().
        """
        if not isinstance(place, Checkpoint):
            raise InvalidArgumentError(f"place must be an engine.Checkpoint, got {type(place).__name__}")
        if place.form == "positions":
            self._check_same(place)
            return place
        if place.timestamp_ms is None:
            segments = await self.segments(exact=True)
            return segments.earliest if place.form == "earliest" else segments.latest
        self._check_open()
        await self._session.refresh()
        layout, at = self._session.layout, place.timestamp_ms
        results = await asyncio.gather(*(self._ask(view, at) for view in layout.segments.values()))
        offsets = {i: r.offset for i, r in zip(layout.segments, results, strict=True) if r is not None}
        return Checkpoint(offsets, epoch=layout.epoch, topic=self._topic, topic_created_ms=layout.created_ms)

    def _check_same(self, place: Checkpoint) -> None:
        here, there = self._session.layout.created_ms, place.topic_created_ms
        if place.topic not in (None, self._topic) or (None not in (here, there) and here != there):
            raise InvalidArgumentError(f"{place!r} is not of this {self._topic}, but of another or an earlier one")

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError(f"the view of {self._topic} was closed")
        if self._failure is not None:
            raise self._failure

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._closed

    async def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed = True
        if self._tails is not None:
            self._tails.close()
        self._session.close()
        if self.on_closed is not None:
            self.on_closed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._topic}{' (closed)' if self._closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
