"""The topics of a namespace as a client sees them: the session that follows the list, and the public watch.

A broker answers WATCH_TOPIC_LIST with the whole list and sends every change after it. After a reconnect the client
sends the hash of its list; when the list is unchanged, it is not sent again (semantics 40).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypedDict, overload

from engine.client.base.options import check_timeout
from engine.client.base.owned import Owned
from engine.client.net.link import TOPIC_LIST, Link
from engine.client.net.pool import Pool, persist
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, ProtocolError
from engine.model.names import TopicName, parse_namespace
from engine.wire import commands
from engine.wire.commands import Header


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Changes of a list of topics: first `removed`, then `added`, names "topic://…", each sorted.

    A topic in both was deleted and created again: it is another topic of that name.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]


class QueryFields(TypedDict):
    """A TopicQuery, in the header of a request."""

    namespace: str
    properties: dict[str, str] | None
    pattern: str | None


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """Which topics: of "tenant/namespace", with all of `properties`, whose local name the RE2 `pattern` matches whole.

    Raises InvalidArgumentError. The broker checks the pattern.
    """

    namespace: str
    properties: Mapping[str, str] | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        parse_namespace(self.namespace)
        if self.pattern is not None and not isinstance(self.pattern, str):
            raise InvalidArgumentError(f"pattern must be text, got {type(self.pattern).__name__}")
        pairs = self.properties.items() if isinstance(self.properties, Mapping) else [(None, None)]
        if self.properties is not None and not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
            raise InvalidArgumentError(f"properties must be a mapping of text to text, got {self.properties!r:.80}")

    def fields(self) -> QueryFields:
        """For the header of a request."""
        properties = None if self.properties is None else dict(self.properties)
        return {"namespace": self.namespace, "properties": properties, "pattern": self.pattern}


Topics = str | Sequence[str] | None  # an argument: a topic, several, or None with a namespace


def chosen(
    topics: Topics, namespace: str | None, properties: Mapping[str, str] | None, pattern: str | None
) -> TopicName | list[TopicName] | TopicQuery:
    """What a consumer receives from. Raises InvalidArgumentError where the arguments contradict each other."""
    if namespace is not None:
        if topics is not None:
            raise InvalidArgumentError("either topic or namespace must be None, got both")
        return TopicQuery(namespace, properties or None, pattern)
    if properties or pattern is not None:
        raise InvalidArgumentError("namespace must be given with properties or pattern, got None")
    if topics is None:
        raise InvalidArgumentError("topic must be a topic, a list of topics, or None beside a namespace, got None")
    if isinstance(topics, str | TopicName):
        return TopicName.parse(topics)
    if not isinstance(topics, Sequence | set | frozenset) or isinstance(topics, bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"topic must be the name of a topic or a list of names, got {type(topics).__name__}")
    names = list(dict.fromkeys(TopicName.parse(topic) for topic in topics))
    if not names:
        raise InvalidArgumentError("topic must be a list of at least one topic, got an empty one")
    return names


async def list_topics(pool: Pool, query: TopicQuery) -> list[str]:
    """The names "topic://…", sorted. They are fetched in pages: a topic that exists throughout is among them.

    Raises ConnectError, TimeoutError, InvalidArgumentError.
    """
    found: list[str] = []
    timeout = pool.options.operation_timeout

    async def page() -> commands.TopicNames:
        request = commands.GetTopicsOfNamespace(**query.fields(), after=found[-1] if found else None)
        return await pool.ask_any(request)

    more = True
    while more:
        result = await persist(pool, page, timeout, f"listing the topics of {query.namespace}")
        found.extend(result.topics)
        more = bool(result.more and result.topics)
    return found


class TopicListSession:
    """Keeps a list of topics current for one consumer or watch, over reconnects. Loop thread only.

    `born`: {name: when it was created, milliseconds}. `on_changed(removed, added)` is called with every change after
    open(); both are lists of names, and a name in both is another topic.
    """

    def __init__(self, pool: Pool, query: TopicQuery, on_changed: Callable[[list[str], list[str]], object]) -> None:
        self.query = query
        self.born: dict[str, int] = {}
        self._pool = pool
        self._on_changed = on_changed
        self._hash: str | None = None  # of `born`, as the broker has sent it
        self._parts: list[commands.WatchTopicListUpdate] = []  # of an update that is not complete
        self._link: Link | None = None  # while it is open
        self._opened = False
        self._reopening = False
        self._closed = False

    async def open(self) -> None:
        """Fetch the list and follow it. Raises ConnectError, TimeoutError, InvalidArgumentError."""
        pool = self._pool
        once = partial(pool.anywhere, partial(self._watch, None))
        await persist(pool, once, pool.options.operation_timeout, f"watching the topics of {self.query.namespace}")
        self._opened = True

    async def _watch(self, url: str | None, timeout_s: float) -> None:
        link = Link(self._pool, TOPIC_LIST, self)
        await link.open(url, self._request, timeout_s)
        self._link = link
        if self._closed:
            self._drop_session()

    def _request(self, ident: int) -> commands.WatchTopicList:
        self._parts = []  # of an attempt before this one
        return commands.WatchTopicList(**self.query.fields(), session_id=ident, hash=self._hash)

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """A part of an update, which is applied with its last part."""
        if self._closed or not isinstance(header, commands.WatchTopicListUpdate):
            return
        if header.restart:
            self._parts.clear()  # a snapshot begins again
        self._parts.append(header)
        if not header.more:
            parts, self._parts = self._parts, []
            self._hash = header.hash
            self._apply(parts)

    def _apply(self, parts: list[commands.WatchTopicListUpdate]) -> None:
        """Apply the parts of an update in order, as one change."""
        now: dict[str, int | None] = {} if parts[0].snapshot is None else dict.fromkeys(self.born)
        for part in parts:
            now.update(dict.fromkeys(part.removed))
            names = [*(part.snapshot or ()), *part.added]
            if len(names) != len(part.born):
                raise ProtocolError("WATCH_TOPIC_LIST_UPDATE: `born` is not as long as the lists it goes with")
            now.update(zip(names, part.born, strict=True))
        changed = {name: born for name, born in now.items() if self.born.get(name) != born}
        removed = [name for name in changed if name in self.born]
        added = {name: born for name, born in changed.items() if born is not None}
        for name in removed:
            del self.born[name]
        self.born.update(added)
        if changed and self._opened:
            self._on_changed(removed, list(added))

    def resume_writing(self) -> None:
        """A session writes little: nothing is held back."""

    def link_ended(self, error: EngineError) -> None:
        """Watch again, as often as it takes. Meanwhile the list is unchanged."""
        self._link = None
        self._reopen_soon()

    def _reopen_soon(self) -> None:
        if not (self._closed or self._reopening or self._pool.closed):
            self._reopening = True
            self._pool.tasks.spawn(self._reopen(), name=f"topics of {self.query.namespace}")

    async def _reopen(self) -> None:
        """Any broker can serve the list: try the one in use, and connected ones."""
        backoff = self._pool.retry_delays()
        turn = 0
        try:
            while self._link is None and not (self._closed or self._pool.closed):
                urls = [None, *self._pool.connected_urls()]
                url = urls[turn % len(urls)]
                try:
                    if url is None:
                        await self._pool.anywhere(partial(self._watch, None))
                    else:
                        await self._watch(url, self._pool.options.operation_timeout)
                except EngineError:
                    await asyncio.sleep(backoff.next())
                turn += 1
        finally:
            self._reopening = False

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed = True
        self._drop_session()

    def _drop_session(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class AsyncTopicWatch(Owned):
    """Follows the topics of a namespace. Made by `client.watch_topics()`; iterate it, with `async with`.

    The first TopicsChanged has every present topic as `added`. Changes between two calls are merged into one.
    """

    def __init__(self, pool: Pool, query: TopicQuery) -> None:
        self._session = TopicListSession(pool, query, self._changed)
        self._removed: set[str] = set()
        self._added: set[str] = set()
        self._untold = True  # the first change is reported even when there is no topic
        self._came = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Fetch the list."""
        try:
            await self._session.open()
        except BaseException:
            await self.close()
            raise
        self._changed([], list(self._session.born))

    def _changed(self, removed: list[str], added: list[str]) -> None:
        for name in removed:
            if name in self._added:
                self._added.discard(name)
            else:
                self._removed.add(name)
        self._added.update(added)
        self._came.set()

    @property
    def namespace(self) -> str:
        """The "tenant/namespace" that it follows."""
        return self._session.query.namespace

    @property
    def topics(self) -> list[str]:
        """The present topics, as far as known, sorted."""
        return sorted(self._session.born)

    @overload
    async def next_change(self, timeout: None = None) -> TopicsChanged: ...
    @overload
    async def next_change(self, timeout: float | None) -> TopicsChanged | None: ...
    async def next_change(self, timeout: float | None = None) -> TopicsChanged | None:
        """The changes since the last call; None when there were none within `timeout` seconds (None: no limit).

        Raises AlreadyClosedError when the watch is closed, also meanwhile; InvalidArgumentError (`timeout`).
        """
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                while not (self._removed or self._added or self._untold):
                    self._check_open()
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return None
        self._check_open()
        self._untold = False
        changed = TopicsChanged(tuple(sorted(self._removed)), tuple(sorted(self._added)))
        self._removed, self._added = set(), set()
        return changed

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError(f"the watch of the topics of {self.namespace} was closed")

    def __aiter__(self) -> AsyncIterator[TopicsChanged]:
        """Every change, until the watch is closed."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[TopicsChanged]:
        while True:
            try:
                changed = await self.next_change()
            except AlreadyClosedError:
                return
            yield changed

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._closed

    async def close(self) -> None:
        """Stop following; waiting calls raise AlreadyClosedError. Idempotent."""
        if not self._closed:
            self._closed = True
            self._session.close()
            self._came.set()
            if self.on_closed is not None:
                self.on_closed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.namespace}{' (closed)' if self._closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
