"""`TopicSession`: keeps a client's layout of a topic current.

A broker answers SCALABLE_TOPIC_LOOKUP with the layout and pushes every later one. Several changes may arrive as one,
or out of order after a reconnect; a layout is applied only when its epoch is newer (semantics 37). Of one of the same
epoch only the addresses are taken.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from engine.client.net.link import LOOKUP, Link
from engine.client.net.pool import Pool, persist
from engine.client.topic.layout import TopicLayout
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    NotFoundError,
    NotOwnerError,
    TimeoutError,
)
from engine.model.names import TopicName
from engine.wire import commands
from engine.wire.commands import Header

LOOKUP_S_MAX = 5.0  # a broker has this long to answer before another one is asked
REFUSALS_MAX = 4  # in a row, after which the layout is looked up again: the known one may be out of date

T = TypeVar("T")


async def exists(pool: Pool, topic: TopicName) -> bool:
    """Whether there is the topic; it is not created. Raises ConnectError, TimeoutError."""
    session = TopicSession(pool, topic)
    try:
        await session.open(create=False)
    except NotFoundError:
        return False
    finally:
        session.close()
    return True


class TopicSession:
    """Follows one topic's layout for one producer or consumer. Loop thread only.

    `lookups`: how many lookups were answered so far.
    """

    def __init__(self, pool: Pool, topic: TopicName) -> None:
        self.topic = topic
        self.pool = pool
        self.lookups = 0
        self._on_layout: Callable[[TopicLayout], object] | None = None
        self._on_failed: Callable[[EngineError], object] | None = None
        self._on_addresses: Callable[[TopicLayout], object] | None = None
        self._layout: TopicLayout | None = None
        self._link: Link | None = None  # while it is open
        self._url: str | None = None  # of the broker that serves the session
        self._closed = False
        self._reopening = False
        self._failure: EngineError | None = None
        self._changed: asyncio.Future[None] | None = None

    @property
    def layout(self) -> TopicLayout:
        """The newest layout known, with the newest addresses."""
        if self._layout is None:
            raise AlreadyClosedError(f"the layout of {self.topic} was never received")
        return self._layout

    @property
    def known(self) -> bool:
        """Whether there is a layout yet."""
        return self._layout is not None

    @property
    def connected(self) -> bool:
        """Whether a broker pushes changes of the layout."""
        return self._link is not None

    def follow(
        self,
        on_layout: Callable[[TopicLayout], object],
        on_failed: Callable[[EngineError], object],
        on_addresses: Callable[[TopicLayout], object] | None = None,
    ) -> None:
        """From now on call `on_layout` with every newer layout, `on_addresses` when only addresses are newer, and
        `on_failed` once when the topic is deleted.

        Raises NotFoundError if it is deleted already.
        """
        if self._failure is not None:
            raise self._failure
        self._on_layout, self._on_failed, self._on_addresses = on_layout, on_failed, on_addresses

    async def open(self, *, create: bool = True) -> TopicLayout:
        """Look the topic up (and create it where the broker allows) and follow it.

        Raises NotFoundError, ConnectError, TimeoutError.
        """
        timeout = self.pool.options.operation_timeout

        async def once() -> TopicLayout:
            await self.pool.anywhere(lambda timeout_s: self._lookup(None, create, timeout_s))
            return self.layout

        return await persist(self.pool, once, timeout, f"looking up {self.topic}")

    async def _lookup(self, url: str | None, create: bool, timeout: float) -> None:
        """Move the session to the broker at `url`, once that has answered."""

        def request_of(ident: int) -> commands.ScalableTopicLookup:
            return commands.ScalableTopicLookup(session_id=ident, topic=str(self.topic), create=create)

        link = Link(self.pool, LOOKUP, self)
        await link.open(url, request_of, timeout)
        self._drop_session()
        self._link, self._url = link, url or link.connection.url
        self.lookups += 1
        self._wake()
        if self._closed:
            self._drop_session()

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A layout, or an error: the topic was deleted."""
        if self._closed:
            return
        if isinstance(header, commands.Error):
            self._fail(EngineError.from_code(header.code, header.message))
            return
        if not isinstance(header, commands.ScalableTopicUpdate):
            return
        layout, known = TopicLayout.from_dag(self.topic, header.dag), self._layout
        if known is None or layout.epoch > known.epoch:
            self._apply(layout, self._on_layout)
        elif layout.epoch == known.epoch and (same := known.readdressed(layout)) is not known:
            self._apply(same, self._on_addresses)

    def _apply(self, layout: TopicLayout, notify: Callable[[TopicLayout], object] | None) -> None:
        self._layout = layout
        self._wake()
        if notify is not None:
            notify(layout)

    def resume_writing(self) -> None:
        """A session writes little: nothing is held back."""

    def link_ended(self, error: EngineError) -> None:
        """Look the topic up again, as often as it takes."""
        self._link = None
        self._reopen_soon()

    def refresh_soon(self) -> None:
        """Look the topic up again in the background, at another broker if one is known."""
        self._reopen_soon()

    def refused(self, times: int) -> None:
        """A session that followed the layout was refused `times` times in a row: look it up every few times."""
        if times % REFUSALS_MAX == 0:
            self.refresh_soon()

    def _reopen_soon(self) -> None:
        if not (self._closed or self._reopening or self.pool.closed) and self._failure is None:
            self._reopening = True
            self.pool.tasks.spawn(self._reopen(), name=f"lookup {self.topic}")

    async def _reopen(self) -> None:
        backoff = self.pool.retry_delays()
        lookups, tried = self.lookups, {self._url}
        try:
            while not self._closed and not self.pool.closed and (self._link is None or self.lookups == lookups):
                url, others = self._next_broker(tried)
                limit = self.pool.options.operation_timeout
                try:
                    async with asyncio.timeout(LOOKUP_S_MAX if others else None):
                        await self._lookup(url, False, limit)
                except NotFoundError as e:
                    self._fail(e)
                    return
                except (EngineError, builtins.TimeoutError):
                    await asyncio.sleep(backoff.next())
        finally:
            self._reopening = False

    def _next_broker(self, tried: set[str | None]) -> tuple[str, bool]:
        """The URL of a broker that was not tried yet, connected ones first; and whether others are known."""
        layout = self.layout
        home = self.pool.home
        urls = (home.url, *home.addresses, layout.controller_url, *(v.url for v in layout.segments.values()))
        known = [url for url in dict.fromkeys(urls) if url is not None]
        if tried.issuperset(known):
            tried.clear()
        url = min((u for u in known if u not in tried), key=lambda u: not self.pool.is_connected(u))
        tried.add(url)
        return url, len(known) > 1

    def _fail(self, error: EngineError) -> None:
        self._failure = error
        self._wake()
        if self._on_failed is not None:
            self._on_failed(error)

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _change(self) -> asyncio.Future[None]:
        """Done at the next change of anything."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def wait_newer(self, epoch: int, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a layout newer than `epoch`. Raises if the topic is deleted."""
        return await self._wait(lambda: self._layout is not None and self._layout.epoch > epoch, timeout)

    async def wait_changed(self, seen: TopicLayout, timeout: float) -> bool:
        """Wait until there is another layout than the one `seen`, or newer addresses; else as wait_newer()."""
        return await self._wait(lambda: self._layout is not seen, timeout)

    async def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout
        while not condition():
            if self._failure is not None:
                raise self._failure
            if self._closed:
                return False
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait([self._change()], timeout=left)
            if not done:
                return False
        return True

    async def at(self, place: Callable[[TopicLayout], str | None], work: Callable[[str | None], Awaitable[T]]) -> T:
        """Await `work` with the URL that `place` finds in the layout.

        Cancels `work` and raises NotOwnerError when the layout names another URL before it has ended.
        """
        url = place(self.layout)
        task = asyncio.ensure_future(work(url))
        try:
            while not task.done():
                if place(self.layout) != url:
                    raise NotOwnerError(f"{self.topic}: moved from {url} to {place(self.layout)}")
                either: list[asyncio.Future[Any]] = [task, self._change()]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved: it may have failed in this very turn

    async def place(
        self, segment_id: int, at: str | int, subscription: str | None = None, buckets: list[list[int]] | None = None
    ) -> commands.Place:
        """Ask the owner of a segment for a place in it (SEGMENT_OFFSET), with retries after errors that pass.

        Raises NotFoundError when the segment is not (or no longer) there, ConnectError, TimeoutError.
        """
        timeout = self.pool.options.operation_timeout
        refusals = 0

        async def send(url: str | None) -> commands.Place:
            view = self.layout.segments.get(segment_id)
            if view is None:
                raise NotFoundError(f"segment {segment_id} of {self.topic} is not (or no longer) there")
            connection = await self.pool.get(url)
            request = commands.SegmentOffset(topic=view.name, at=at, subscription=subscription, buckets=buckets)
            return await connection.request(request, timeout)

        async def once() -> commands.Place:
            nonlocal refusals
            try:
                return await self.at(lambda layout: layout.url_of(segment_id), send)
            except EngineError:
                refusals += 1
                self.refused(refusals)
                raise

        return await persist(self.pool, once, timeout, f"asking the owner of segment {segment_id} of {self.topic}")

    async def ever_had(self, segment_id: int) -> bool:
        """Whether the topic has or had such a segment; an id that is not known is looked up."""
        if segment_id > max(self.layout.segments):
            await self.refresh()
        return segment_id <= max(self.layout.segments)

    async def refresh(self) -> None:
        """Look the topic up again, and wait for the answer.

        Raises TimeoutError, AlreadyClosedError; NotFoundError if the topic is deleted.
        """
        lookups, timeout = self.lookups, self.pool.options.operation_timeout
        self.refresh_soon()
        if not await self._wait(lambda: self.lookups != lookups, timeout):
            self.pool.check_open()
            if self._closed:
                raise AlreadyClosedError(f"the session of {self.topic} was closed")
            raise TimeoutError(f"no broker has answered with the layout of {self.topic} within {timeout:g} s")

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed = True
        self._drop_session()
        self._wake()

    def _drop_session(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
