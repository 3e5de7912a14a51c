"""Requests for topic lists: get a page, or follow a list. Those of one connection run one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.broker.pools.list_parts import HEADER_OVERHEAD
from engine.broker.session.topic_lists import Made, TopicListSession, send_list
from engine.control.topic.topic_lists import TopicList
from engine.errors import InvalidArgumentError, TooManyRequestsError
from engine.limits import TOPIC_LISTS_PER_CONNECTION_MAX, TOPICS_PER_FRAME_MAX
from engine.model.topic_filter import TopicFilter
from engine.wire import commands
from engine.wire.commands import Command
from engine.wire.packing import Packed, pack_map

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

_EVERYTHING = TopicFilter()

Work = Callable[[], Coroutine[Any, Any, None]]


class ListRequests:
    """The queue of one connection, with one task. Loop thread only.

    They count as requests in flight, which are limited for each connection.
    """

    __slots__ = ("_connection", "_task", "_waiting")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[int, Work, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, request_id: int, work: Work) -> None:
        """Run it in its turn. It answers itself, except with errors."""
        self._waiting.append((request_id, work, self._connection.answers.begun()))
        if self._task is None:
            self._task = self._connection.host.tasks.spawn(self._run(), "topic lists")

    async def _run(self) -> None:
        try:
            while self._waiting:
                request_id, work, size = self._waiting.popleft()
                await self._connection.answers.work(request_id, work(), size)
        finally:
            self._task = None

    def connection_lost(self) -> None:
        """Drop the requests."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()


def watch(connection: Connection, header: commands.WatchTopicList, payload: memoryview) -> None:
    """WATCH_TOPIC_LIST."""
    topics, ident = _filter(connection, header), header.session_id
    if len(connection.topic_lists) >= TOPIC_LISTS_PER_CONNECTION_MAX:
        raise TooManyRequestsError(f"limit of topic lists of a connection reached ({TOPIC_LISTS_PER_CONNECTION_MAX})")
    connection.check_unused(ident)
    session = connection.topic_lists[ident] = TopicListSession(connection, ident, header.namespace)
    request_id = header.request_id
    connection.lists.add(request_id, partial(_watch, session, request_id, topics, header.hash))


async def _watch(session: TopicListSession, request_id: int, topics: TopicFilter, known: str | None) -> None:
    if not session.closed:
        try:
            await session.open(request_id, topics, known)
        except BaseException:
            session.close()
            raise


def close(connection: Connection, header: commands.WatchTopicListClose, payload: memoryview) -> None:
    """WATCH_TOPIC_LIST_CLOSE."""
    session = connection.topic_lists.get(header.session_id)
    if session is not None:
        session.close()


def get(connection: Connection, header: commands.GetTopicsOfNamespace, payload: memoryview) -> None:
    """GET_TOPICS_OF_NAMESPACE."""
    request_id = header.request_id
    work = partial(_get, connection, request_id, header.namespace, _filter(connection, header), header.after or "")
    connection.lists.add(request_id, work)


async def _get(connection: Connection, request_id: int, namespace: str, topics: TopicFilter, after: str) -> None:
    def page(found: TopicList) -> Made:
        part = connection.host.memory.list_parts.get(found, after, TOPICS_PER_FRAME_MAX)

        def encode() -> Packed:
            result = pack_map({"topics": part.packed[0], "more": part.last is not None})
            return pack_map({"request_id": request_id, "result": result})

        return HEADER_OVERHEAD + part.size, encode

    lists = connection.host.service.topic_lists
    await send_list(connection, Command.SUCCESS, partial(lists.open, namespace, topics), page)


def _filter(connection: Connection, header: commands.WatchTopicList | commands.GetTopicsOfNamespace) -> TopicFilter:
    """What the header asks for, of the topics that the principal may look up."""
    properties, pattern = header.properties, header.pattern
    among = connection.host.rights.listed(connection.principal, header.namespace)
    if not properties and pattern is None:
        return _EVERYTHING.within(among)
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in (properties or {}).items()):
        raise InvalidArgumentError("properties must map text to text")
    return TopicFilter(properties, pattern, among)
