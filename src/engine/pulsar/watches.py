"""Lists of topics that clients of one connection follow: of scalable topics, and of classic ones by a pattern.

Both are topic lists of ours, which come in parts, and then as changes. A change is passed on as it comes. A whole list
has to be one frame in this protocol: its parts are collected here, within the pools of topic lists (PIP-442), from the
first part until the client has taken the frame. Where there is no memory for one, the watch is refused: a client asks
again, or asks for the list now and then.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.aio.memory_limiter import LimitType, MemoryPermit
from engine.broker.pools.list_parts import size_of
from engine.errors import EngineError, InvalidArgumentError, MemoryLimitError, NotFoundError, UnsupportedError
from engine.limits import MESSAGE_SIZE_MAX
from engine.model.names import CLASSIC_SCHEME, parse_namespace
from engine.pulsar.messages import framed
from engine.pulsar.server_errors import number_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session
    from engine.wire.stream import Payload

log = logging.getLogger(__name__)

_ALTERNATIVES = re.compile(r"\\|\[")  # with these it is not simple to say where a `|` stands


class HeldList:
    """The memory of a list while it is collected, and until the frame that is made of it is taken. Loop thread only."""

    def __init__(self, session: Session) -> None:
        self._stream = session.stream
        self._limiter = session.host.memory.topic_lists
        self._permits: list[MemoryPermit] = []
        self._size = 0

    def add(self, names: list[str]) -> None:
        """Raises MemoryLimitError: there is no room now; UnsupportedError: it would not fit into a frame."""
        size = size_of(names)
        self._size += size
        if self._size > MESSAGE_SIZE_MAX:
            raise UnsupportedError(f"a list of topics must fit into {MESSAGE_SIZE_MAX:,} bytes: use a narrower pattern")
        # Without waiting: what waits here would keep what others wait for.
        for kind in (LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY):
            permit = self._limiter.acquire_nowait(size, kind)
            if permit is None:
                raise MemoryLimitError("there is no memory for a list of topics now; try again")
            self._permits.append(permit)

    def release(self) -> None:
        """Idempotent."""
        permits, self._permits, self._size = self._permits, [], 0
        for permit in permits:
            self._limiter.release(permit)

    def release_when_taken(self) -> None:
        """Once the client has taken the frame that is about to be sent, or is gone."""
        asyncio.get_running_loop().call_soon(lambda: self._stream.when_taken(self.release))


class _Watch:
    """A list that a client follows. `request`: of the client, 0 for none. `asked`: ours, while it is not answered."""

    __slots__ = ("asked", "classic", "held", "names", "number", "request")

    def __init__(self, session: Session, number: int, *, classic: bool, request: int) -> None:
        self.number = number
        self.classic = classic
        self.request = request
        self.asked: int | None = None
        self.names: dict[str, None] | None = {}  # of the list that is being collected; None: none is
        self.held = HeldList(session)


class _Wanted(NamedTuple):
    namespace: str
    pattern: str | None = None
    properties: dict[str, str] | None = None


class Watches:
    """Loop thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watches: dict[int, _Watch] = {}  # by the id at the Connection

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about lists that a client follows."""
        return {
            "watch_topics": self._watch_scalable,
            "watch_topics_close": lambda header, payload: self._close(list_ident(header.watch, classic=False)),
            "watch_topic_list": self._watch_classic,
            "watch_topic_list_close": self._close_classic,
        }

    def _watch_scalable(self, header: Any, payload: memoryview) -> None:
        def failed(error: EngineError) -> None:
            self._session.say("watch_topics_update", watch=header.watch, error=number_of(error), message=str(error))

        properties = {one.key: one.value for one in header.filters}
        wanted = _Wanted(header.namespace, None, properties or None)
        watch = _Watch(self._session, header.watch, classic=False, request=0)
        self._session.start(0, self._follow(watch, wanted), failed)

    def _watch_classic(self, header: Any, payload: memoryview) -> None:
        watch = _Watch(self._session, header.watcher, classic=True, request=header.request)
        wanted = _Wanted(header.namespace, own_pattern(header.pattern, header.namespace))
        self._session.start(header.request, self._follow(watch, wanted), None)

    async def _follow(self, watch: _Watch, wanted: _Wanted) -> None:
        session, ident = self._session, list_ident(watch.number, classic=watch.classic)
        if ident in self._watches:
            raise InvalidArgumentError(f"the id of a watch must be unused, got {watch.number}")
        self._watches[ident] = watch

        def make(number: int) -> commands.WatchTopicList:
            watch.asked = number
            return commands.WatchTopicList(
                request_id=number,
                session_id=ident,
                namespace=wanted.namespace,
                pattern=wanted.pattern,
                properties=wanted.properties,
            )

        try:
            await session.ask(make)
        except BaseException:
            watch.asked = None
            self._close(ident)
            raise

    def updated(self, header: commands.WatchTopicListUpdate, payload: Payload) -> bytes:
        """A part of a list, or of its changes."""
        watch = self._watches.get(header.session_id)
        if watch is None:
            return b""
        try:
            made = self._made(watch, header)
        except EngineError as e:
            return self.ended(header.session_id, e) or b""
        if header.request_id:
            watch.asked = None
            self._session.resolve(header.request_id, header)
        return made

    def _made(self, watch: _Watch, header: commands.WatchTopicListUpdate) -> bytes:
        if header.restart or (header.snapshot is not None and watch.names is None):
            watch.held.release()
            watch.names = {}
        if watch.names is None:
            return _changed(watch, _shown(watch, header.added), _shown(watch, header.removed), header.hash)
        fresh = _shown(watch, [*header.added, *(header.snapshot or ())])
        watch.held.add(fresh)
        for name in header.removed:
            watch.names.pop(name, None)
        watch.names.update(dict.fromkeys(fresh))
        if header.more:
            return b""
        names, watch.names = list(watch.names), None
        watch.held.release_when_taken()
        return self._whole(watch, names, header.hash)

    def _whole(self, watch: _Watch, names: list[str], of: str) -> bytes:
        if not watch.classic:
            return framed("watch_topics_update", watch=watch.number, snapshot={"topics": names})
        if watch.asked is None:
            return self._cut("it is too far behind")
        return framed("watch_topic_list_success", request=watch.request, watcher=watch.number, topics=names, hash=of)

    def _cut(self, why: object) -> bytes:
        """The protocol has no word for it: where the connection ends, the client asks for the list."""
        stream = self._session.stream
        log.info("a client at %s has to ask for its list of topics again: %s", stream.peer, why)
        asyncio.get_running_loop().call_soon(stream.close)
        return b""

    def ended(self, ident: int, error: EngineError) -> bytes | None:
        """The frame for a list that the broker follows no longer; None: the id is not of one."""
        watch = self._watches.get(ident)
        if watch is None:
            return None
        pending = watch.asked is not None
        self._close(ident, error)
        if pending:  # it is answered where the answer is awaited
            return b""
        if watch.classic:
            return self._cut(error)
        return framed("watch_topics_update", watch=watch.number, error=number_of(error), message=str(error))

    def _close_classic(self, header: Any, payload: memoryview) -> None:
        self._close(list_ident(header.watcher, classic=True))
        self._session.say("success", request=header.request)

    def _close(self, ident: int, error: EngineError | None = None) -> None:
        watch = self._watches.pop(ident, None)
        if watch is not None:
            watch.held.release()
            if watch.asked is not None:
                self._session.reject(watch.asked, error or NotFoundError("the watch was closed"))
            self._session.native(commands.WatchTopicListClose(session_id=ident))

    def connection_lost(self) -> None:
        """Nothing is held."""
        for watch in self._watches.values():
            watch.held.release()
        self._watches.clear()


def list_ident(number: int, *, classic: bool) -> int:
    """The id of a list at the Connection. Raises InvalidArgumentError."""
    from engine.pulsar.session import ident

    return ident(number, 5 if classic else 4)


def _shown(watch: _Watch, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(CLASSIC_SCHEME) is watch.classic]


def _changed(watch: _Watch, added: list[str], removed: list[str], of: str) -> bytes:
    if not added and not removed:
        return b""
    if watch.classic:
        return framed("watch_topic_update", watcher=watch.number, added=added, removed=removed, hash=of)
    return framed("watch_topics_update", watch=watch.number, diff={"added": added, "removed": removed})


def own_pattern(pattern: str, namespace: str) -> str:
    """A pattern of classic topics' whole names, with or without a scheme, as one of own names. Raises UnsupportedError.

    It is as a client of Apache Pulsar writes it: the namespace stands there as it is, and the pattern behind it.
    """
    rest = pattern.removeprefix("^").removeprefix(CLASSIC_SCHEME)
    before = "/".join(parse_namespace(namespace)) + "/"
    if not rest.startswith(before):
        raise UnsupportedError(f"the pattern of a watch must begin with {before}, got {pattern!r:.300}")
    rest = rest.removeprefix(before)
    if _has_alternatives(rest):
        raise UnsupportedError(f"the `|` of a watch's pattern must stand in simple parentheses, got {pattern!r:.300}")
    return f"persistent:(?:{rest})"


def _has_alternatives(rest: str) -> bool:
    """Whether a `|` may stand outside of all parentheses, so that what follows it would be another whole name."""
    if "|" not in rest:
        return False
    depth = 0
    for character in rest:
        depth += (character == "(") - (character == ")")
        if character == "|" and depth < 1:
            return True
    return _ALTERNATIVES.search(rest) is not None
