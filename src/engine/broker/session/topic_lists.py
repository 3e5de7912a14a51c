"""Topic lists on the wire: how a part of a list is sent, and `TopicListSession`, a client that follows a list.

A part is one frame of bounded size. It takes memory twice, with a permit for each (PIP-442):

    turn of the connection ─> heap permit ─> make the part ─> direct permit ─> encode, send ─> taken by the socket
                              fixed size     its own size     its own size                     permits are returned

The connection's turn (`list_turn`) is held until the peer has taken the part: a peer that does not read holds the
memory of one frame, whatever it asks for. The list that parts are made of is shared by all clients, and has a permit of
its own while it is made (control/topic/list_memory.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.aio.memory_limiter import LimitType
from engine.broker.pools.list_parts import HEADER_OVERHEAD, ListPart, size_of
from engine.control.topic.topic_lists import Change, TopicList
from engine.errors import EngineError, MemoryLimitError, TimeoutError
from engine.limits import (
    TOPIC_CHANGES_KEPT,
    TOPIC_LIST_INITIAL_SIZE,
    TOPIC_LIST_TAKEN_RATE_MIN,
    TOPIC_LIST_TAKEN_S_MAX,
    TOPICS_PER_FRAME_MAX,
)
from engine.model.topic_filter import TopicFilter
from engine.wire.commands import Command
from engine.wire.packing import Packed, PackedHeader, pack, pack_map, unpack

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

_CHANGES_S = 0.01  # changes within this time are sent together; it grows by as much for every so many topics
_TOPICS_PER_PAUSE = 1_000
_AGAIN_S = 1.0  # until a change is sent for which there was no memory
_START = ""  # before every name
_NEVER = -TOPIC_CHANGES_KEPT - 1  # of a list's changes: so long ago that the whole list is sent

Made = tuple[int, Callable[[], Packed]]  # the largest size of a header, and its encoder
Make = Callable[[TopicList], Made | None]


async def send_list(
    connection: Connection, command: Command, open_list: Callable[[], Awaitable[TopicList | None]], make: Make
) -> None:
    """Send the frame that `make` makes; done when the peer has taken it, or is gone.

    Raises MemoryLimitError, and what `open_list` raises. Permits are returned in any case.
    """
    memory = connection.host.memory
    limiter = memory.topic_lists
    async with connection.list_turn:
        # While it waits for the permit of a list, or of a part, it has neither: waiting requests hold no memory.
        topics = await open_list()
        heap = limiter.acquire_nowait(TOPIC_LIST_INITIAL_SIZE, LimitType.HEAP_MEMORY)
        if heap is None:
            topics = None
            heap = await limiter.acquire(TOPIC_LIST_INITIAL_SIZE, LimitType.HEAP_MEMORY)
        try:
            topics = topics or await open_list()
            await memory.list_pace.turn()
            made = None if topics is None else make(topics)
            if made is None:
                return
            size, encode = made
            await limiter.update(heap, size)
            direct = await limiter.acquire(size, LimitType.DIRECT_MEMORY)
            try:
                connection.send(PackedHeader(command, encode()))
            finally:  # a closed stream calls back as well
                connection.stream.when_taken(lambda: limiter.release(direct))
        finally:
            limiter.release(heap)
        await _taken(connection)


async def _taken(connection: Connection) -> None:
    """Wait until the peer has taken all that is queued. One that takes too long is dropped."""
    taken = asyncio.Event()
    connection.stream.when_taken(taken.set)
    allowed = seconds_to_take(connection.stream.unsent_bytes)
    timer = asyncio.get_running_loop().call_later(allowed, _drop, connection, allowed)
    try:
        await taken.wait()
    finally:
        timer.cancel()


def seconds_to_take(unsent: int) -> float:
    """How long a peer may take to read so many bytes, the last of which are a part of a list."""
    return TOPIC_LIST_TAKEN_S_MAX + unsent / TOPIC_LIST_TAKEN_RATE_MIN


def _drop(connection: Connection, allowed: float) -> None:
    connection.fail(TimeoutError(f"a part of a topic list was not read within {allowed:.0f} s"))
    connection.stream.abort()  # the peer does not read


class TopicListSession:
    """Sends WATCH_TOPIC_LIST_UPDATE: first the list, in parts, the last of which answers the request; then changes.

    It keeps only how far its client knows the list: the number of changes and, while the whole list is being sent, the
    last name that was sent. Changes that happen while the client does not read are sent as one. A TopicListListener.
    Loop thread only.
    """

    __slots__ = ("_connection", "_ident", "_list", "_namespace", "_request_id", "_seen", "_task", "_timer",
                 "_turning", "_under_way", "_upto", "closed")  # fmt: skip

    def __init__(self, connection: Connection, ident: int, namespace: str) -> None:
        self._connection = connection
        self._ident = ident
        self._namespace = namespace
        self._list: TopicList | None = None
        # What the client knows.
        self._seen = 0  # of the list's changes
        self._upto: str | None = None  # of the whole list: the last name sent; None: it is not being sent
        self._under_way = False  # an update of several parts
        self._request_id: int | None = None  # not answered yet
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._turning: asyncio.Task[Any] | None = None  # to another list
        self.closed = False

    async def open(self, request_id: int, topics: TopicFilter, known: str | None) -> None:
        """Follow the list; the request is answered by the first update. `known`: the hash of the client's list.

        Raises InvalidArgumentError, MemoryLimitError, TooManyRequestsError.
        """
        host = self._connection.host
        async with self._connection.list_turn:
            found = await host.service.topic_lists.open(self._namespace, topics)
        if self.closed:
            return
        self._list = found
        found.listeners.add(self)
        self._seen, self._request_id = found.changes, request_id
        self._upto = None if known == found.hash else _START
        self.rights_changed()  # they may have meanwhile
        self.pump()

    def rights_changed(self) -> None:
        """Go on with the topics that the principal may look up now."""
        if self._list is None or self.closed:
            return
        among = self._connection.host.rights.listed(self._connection.principal, self._namespace)
        if among != self._list.filter.among and self._turning is None:
            self._turning = self._connection.host.tasks.spawn(self._turn(), "topic list")

    async def _turn(self) -> None:
        """Follow the list of other topics: a client gets all of it, as one that is too far behind."""
        host = self._connection.host
        try:
            while self._list is not None and not self.closed:
                before = self._list
                among = host.rights.listed(self._connection.principal, self._namespace)
                if among == before.filter.among:
                    return
                async with self._connection.list_turn:
                    found = await host.service.topic_lists.open(self._namespace, before.filter.within(among))
                if self.closed:
                    return
                self._list = found
                found.listeners.add(self)
                host.service.topic_lists.leave(self._namespace, before, self)
                self._seen = _NEVER
                self.pump()
        except EngineError as e:  # rather no list than one of topics that may not be looked up
            self._connection.error(0, e, session_id=self._ident)
            self.close()
        finally:
            self._turning = None

    def list_changed(self) -> None:
        """Send changes soon."""
        if self._timer is None and self._list is not None:
            pause = _CHANGES_S * (1 + len(self._list.names) // _TOPICS_PER_PAUSE)
            self._retry_in(pause)

    def _retry_in(self, pause: float) -> None:
        if self._timer is None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(pause, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self.pump()

    def pump(self) -> None:
        """Send updates as long as there are any and the client reads."""
        if self._task is None and self._timer is None and self._behind:
            self._task = self._connection.host.tasks.spawn(self._send_all(), "topic list")

    @property
    def _behind(self) -> bool:
        if self.closed or self._list is None or not self._connection.writable:
            return False
        return self._request_id is not None or self._upto is not None or self._seen != self._list.changes

    async def _send_all(self) -> None:
        try:
            while self._behind:
                await self._send_part()
        except MemoryLimitError as e:
            if self._request_id is not None:
                self._connection.error(self._request_id, e)
                self.close()
            else:
                self._retry_in(_AGAIN_S)
        finally:
            self._task = None

    async def _send_part(self) -> None:
        """Send one part. Without memory for it, the state is as before."""
        before = self._seen, self._upto, self._under_way, self._request_id
        try:
            await send_list(self._connection, Command.WATCH_TOPIC_LIST_UPDATE, self._present, self._next)
        except MemoryLimitError:
            self._seen, self._upto, self._under_way, self._request_id = before
            raise

    async def _present(self) -> TopicList | None:
        return self._list

    def _next(self, topics: TopicList) -> Made | None:
        """The next part; None when the client knows everything."""
        changes = topics.since(self._seen, TOPICS_PER_FRAME_MAX)
        restart = changes is None and self._under_way
        if changes is None:  # too far behind: the whole list again
            changes, self._seen, self._upto = [], topics.changes, _START
        self._seen += len(changes)
        removed, added = _net(changes, self._upto)
        snapshot = None
        if self._upto is not None and len(changes) < TOPICS_PER_FRAME_MAX:
            parts = self._connection.host.memory.list_parts
            snapshot = parts.get(topics, self._upto, TOPICS_PER_FRAME_MAX - len(changes))
            self._upto = snapshot.last
        more = self._seen != topics.changes or self._upto is not None
        if snapshot is None and not (removed or added or more or self._under_way or self._request_id is not None):
            return None
        part: dict[str, Any] = {"session_id": self._ident, "hash": "", "removed": removed, "added": list(added)}
        part["more"] = more
        part |= {"restart": True} if restart else {}
        self._under_way = more
        if not more:
            part |= {"hash": topics.hash, "request_id": self._request_id}
            self._request_id = None
        size = HEADER_OVERHEAD + size_of(removed) + size_of(list(added)) + (snapshot.size if snapshot else 0)
        return size, partial(_encode, part, snapshot, list(added.values()))

    def close(self) -> None:
        """Stop following. Idempotent."""
        self.closed = True
        topics, self._list = self._list, None
        if topics is not None:
            self._connection.host.service.topic_lists.leave(self._namespace, topics, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in (self._task, self._turning):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._connection.topic_lists.get(self._ident) is self:
            del self._connection.topic_lists[self._ident]

    def connection_lost(self) -> None:
        """The connection is closed."""
        self.close()


def _net(changes: list[Change], upto: str | None) -> tuple[list[str], dict[str, int]]:
    """Names (removed, added) by changes, without those after `upto`, which later parts of the list contain."""
    removed: dict[str, None] = {}
    added: dict[str, int] = {}
    for name, born in changes:
        if upto is not None and name > upto:
            continue
        if born is not None:
            added[name] = born
        elif added.pop(name, None) is None:
            removed[name] = None
    return list(removed), added


def _encode(part: dict[str, Any], snapshot: ListPart | None, born: list[int]) -> Packed:
    """A header of WATCH_TOPIC_LIST_UPDATE. `born`: creation times of `added`."""
    names, births = (None, pack(born)) if snapshot is None else snapshot.packed
    if snapshot is not None and born:
        births = pack(unpack(births) + born)
    return pack_map({**part, "snapshot": names, "born": births})
