"""Topic lists on the wire: a page of one, and `TopicListSession`, a client that follows one.

Updates are put together in one place (`_assemble`) and sent in one place (`_send`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.control.topic_lists import TopicList
from engine.errors import InvalidArgumentError
from engine.limits import TOPICS_PER_FRAME_MAX
from engine.model.topic_filter import TopicFilter
from engine.wire.commands import Command

if TYPE_CHECKING:
    from engine.broker.connection import Connection

_CHANGES_S = 0.01  # what changes within this time is told together; of every so many topics
_TOPICS_LOOKED_AT = 1_000  # the hash is of the whole list

Header = dict[str, Any]
Part = dict[str, Any]


class TopicListSession:
    """Sends WATCH_TOPIC_LIST_UPDATE: the first, or its last part, under the request's id, then one for every change.

    What changes while the client takes nothing is told as one change: what waits is never more than the topics there
    are and those the client knows. A TopicListListener. Loop thread only.
    """

    __slots__ = ("_added", "_connection", "_ident", "_list", "_namespace", "_parts", "_removed", "_timer", "closed")

    def __init__(self, connection: Connection, ident: int, namespace: str) -> None:
        self._connection = connection
        self._ident = ident
        self._namespace = namespace
        self._list: TopicList | None = None
        self._removed: dict[str, None] = {}  # since the last update, in order
        self._added: dict[str, None] = {}
        self._parts: Iterator[Part] | None = None  # of an update that is being sent
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    async def open(self, request_id: int, topics: TopicFilter, known: str | None) -> None:
        """Answer the request and follow the list from then on; `known` is the hash of what the client has.

        Raises InvalidArgumentError.
        """
        found = await self._connection.broker.service.topic_lists.open(self._namespace, topics)
        if self.closed:
            return
        self._list = found
        found.listeners.add(self)
        names = None if known == found.hash else list(found.names)
        self._parts = self._assemble(found, names, [], [], request_id)
        self.pump()

    def topic_left(self, name: str) -> None:
        """Tell soon; one that came and left unseen is not told, but that an earlier one has gone still is."""
        if name in self._added:
            del self._added[name]
        else:
            self._removed[name] = None
        self._soon()

    def topic_came(self, name: str) -> None:
        """Tell soon."""
        self._added[name] = None
        self._soon()

    def _soon(self) -> None:
        if self._timer is None and not self.closed and self._list is not None:
            pause = _CHANGES_S * (1 + len(self._list.names) // _TOPICS_LOOKED_AT)
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        self._timer = None
        self.pump()

    def pump(self) -> None:
        """Send what there is to tell, as long as the client takes it."""
        while not self.closed and self._connection.writable:
            part = None if self._parts is None else next(self._parts, None)
            if part is not None:
                self._send(part)
                continue
            self._parts = None
            if self._timer is not None or self._list is None or not (self._removed or self._added):
                return
            removed, added = list(self._removed), list(self._added)
            self._removed, self._added = {}, {}
            self._parts = self._assemble(self._list, None, removed, added, None)

    def _assemble(
        self,
        topics: TopicList,
        snapshot: list[str] | None,
        removed: list[str],
        added: list[str],
        request_id: int | None,
    ) -> Iterator[Part]:
        """One update in parts. Its names, times and hash are those of now, whenever a part is asked for."""
        names = [("snapshot", snapshot or []), ("removed", removed), ("added", added)]
        born = {name: topics.born[name] for name in (snapshot or added)}
        last = {"hash": topics.hash, "more": False, **({} if request_id is None else {"request_id": request_id})}
        return self._cut(names, snapshot is not None, born, last)

    def _cut(self, names: list[tuple[str, list[str]]], whole: bool, born: dict[str, int], last: Part) -> Iterator[Part]:
        part = self._part(whole)
        room = TOPICS_PER_FRAME_MAX
        for kind, all_of_them in names:
            at = 0
            while at < len(all_of_them):
                if not room:
                    yield part
                    part, room = self._part(whole), TOPICS_PER_FRAME_MAX
                some = all_of_them[at : at + room]
                at += len(some)
                room -= len(some)
                part[kind] = some
                if kind != "removed":
                    part["born"] = [born[name] for name in some]
        yield {**part, **last}

    def _part(self, whole: bool) -> Part:
        empty: Part = {"session_id": self._ident, "hash": "", "removed": [], "added": [], "born": [], "more": True}
        return {**empty, "snapshot": [] if whole else None}

    def _send(self, part: Part) -> None:
        self._connection.send(Command.WATCH_TOPIC_LIST_UPDATE, part)

    def close(self) -> None:
        """Follow no more. Idempotent."""
        self.closed = True
        topics, self._list = self._list, None
        if topics is not None:
            self._connection.broker.service.topic_lists.leave(self._namespace, topics, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parts = None
        if self._connection.topic_lists.get(self._ident) is self:
            del self._connection.topic_lists[self._ident]

    def connection_lost(self) -> None:
        """The client is gone."""
        self.close()


# -- requests ----------------------------------------------------------------------------------------------------------


def watch(connection: Connection, header: Header, payload: memoryview) -> None:
    """WATCH_TOPIC_LIST."""
    topics = _filter(header)
    session = TopicListSession(connection, header["session_id"], header["namespace"])
    connection.claim(header["session_id"])
    connection.start(header["request_id"], _watch(connection, session, header, topics))


async def _watch(connection: Connection, session: TopicListSession, header: Header, topics: TopicFilter) -> None:
    ident = header["session_id"]
    connection.topic_lists[ident] = session
    try:
        await session.open(header["request_id"], topics, header.get("hash"))
    except BaseException:
        session.close()
        raise
    finally:
        connection.unclaim(ident)
    if connection.closed:
        session.close()


def close(connection: Connection, header: Header, payload: memoryview) -> None:
    """WATCH_TOPIC_LIST_CLOSE."""
    session = connection.topic_lists.get(header["session_id"])
    if session is not None:
        session.close()


def get(connection: Connection, header: Header, payload: memoryview) -> None:
    """GET_TOPICS_OF_NAMESPACE."""
    connection.start(header["request_id"], _get(connection, header, _filter(header)))


async def _get(connection: Connection, header: Header, topics: TopicFilter) -> dict[str, Any]:
    found = await connection.broker.service.topic_lists.open(header["namespace"], topics)
    start = 0 if header.get("after") is None else bisect_right(found.names, header["after"])
    page = found.names[start : start + TOPICS_PER_FRAME_MAX]
    return {"topics": page, "more": start + len(page) < len(found.names)}


def _filter(header: Header) -> TopicFilter:
    properties = header.get("properties") or {}
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in properties.items()):
        raise InvalidArgumentError("properties map text to text")
    return TopicFilter(properties, header.get("pattern"))
