"""`RemoteMetadataStore`: a metadata store in another process, reached over streams of frames.

    callers            put() put() get()            calls, in order
                          │                           │
    end of the turn    one frame of requests    ──> service ──>  one frame of answers

A connection that is lost is made anew. Reads, sessions and watches go on over the next one; a write that was sent and
not answered ends with OutcomeUnknownError. The service welcomes a client when nothing of its earlier connection can
take place any more, so a read behind that error shows the outcome. A call waits for `timeout` at most; one that was
never sent ends with TimeoutError, which says that nothing was done; so does one that may be repeated, such as a read or
the begin or end of a session, which says whether it was sent. A service that does not answer in that time counts as
lost.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from engine.aio.backoff import RetryDelay
from engine.aio.shielded import shielded
from engine.clock import Clock
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, ProtocolError, TimeoutError
from engine.metadata import protocol
from engine.metadata.batch import check_version, check_writes, checked_append, checked_put
from engine.metadata.mirror import Mirror, MirrorReads
from engine.metadata.protocol import (
    Answer,
    Appended,
    Deleted,
    DeleteOne,
    DeleteRange,
    Done,
    EndSession,
    Events,
    Forget,
    Get,
    Got,
    Indexed,
    Kept,
    Listed,
    ListIndex,
    Opened,
    OpenSession,
    Ping,
    PutAlso,
    PutAndAppend,
    PutOne,
    RefreshSession,
    Refused,
    Unwatch,
    WatchFailed,
    Watching,
    WriteAll,
)
from engine.metadata.protocol import Keys as ListedKeys
from engine.metadata.protocol import List as ListRecords
from engine.metadata.protocol import Outcomes as AllOutcomes
from engine.metadata.remote_link import Link, dial
from engine.metadata.remote_session import RemoteSession
from engine.metadata.remote_watch import RemoteWatch, Watched
from engine.metadata.store import (
    ANY,
    Append,
    Delete,
    Demands,
    Expected,
    IndexedRecords,
    Indexes,
    Keys,
    Outcomes,
    OutcomeUnknownError,
    Put,
    Record,
    Session,
    Stat,
)
from engine.wire.stream import Connector

if TYPE_CHECKING:
    import random

A = TypeVar("A", bound=Answer)

TIMEOUT_S = 10.0
_CLOSE_S_MAX = 2.0
_RETRY_S_MIN = 0.01
_RETRY_S_MAX = 1.0

_list = list  # inside the classes, `list` is a method


class _Call:
    """A request that is not answered yet. `link`: over which it was sent; None: it waits for a connection."""

    __slots__ = ("begun", "due", "future", "link", "packed", "parts", "request", "sent", "writes")

    def __init__(self, request: Any, future: asyncio.Future[Any], due: float, *, writes: bool) -> None:
        """Raises InvalidArgumentError for what cannot be sent."""
        self.request = request
        self.packed = _packed(request)
        self.future = future
        self.due = due  # by the loop's clock
        self.writes = writes  # so it may not be repeated
        self.link: Link | None = None
        self.begun = False  # whether it was ever sent
        self.sent = 0.0  # when it was sent last, by the monotonic clock
        self.parts: _list[Any] = []  # of an answer that takes several frames


class RemoteMetadataStore:
    """A client of a MetadataService; see MetadataStore for the methods. Made by connect(). Loop thread only."""

    def __init__(
        self,
        connector: Connector,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        timeout: float = TIMEOUT_S,
        build: str = "",
    ) -> None:
        """Use connect()."""
        self.url = url
        self.known = Mirror()
        self.pid = 0  # of the service's process, as of the last connection; 0 where it does not say
        self._mirror = MirrorReads(self)
        self._connector = connector
        self._clock = clock
        self._timeout = timeout
        self._hello = protocol.Hello(protocol.PROTOCOL, rng.getrandbits(63), build)
        self._retry = RetryDelay(rng, initial=_RETRY_S_MIN, maximum=_RETRY_S_MAX)
        self._version = 0
        self._last_id = 0
        self._link: Link | None = None
        self._why = ""  # there is no connection
        self._calls: dict[int, _Call] = {}  # in the order in which they were made
        self._watches: dict[int, RemoteWatch] = {}
        self._sessions: dict[RemoteSession, None] = {}
        self._checking: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._takes: dict[type, Callable[[Any], None]] = {
            Events: self._events,
            Kept: self._kept,
            Watching: self._watching,
            WatchFailed: self._watch_failed,
            Listed: lambda answer: self._part(answer, answer.records),
            ListedKeys: lambda answer: self._part(answer, answer.keys),
            Indexed: lambda answer: self._part(answer, answer.records),
        }

    @classmethod
    async def connect(
        cls,
        connector: Connector,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        timeout: float = TIMEOUT_S,
        build: str = "",
    ) -> RemoteMetadataStore:
        """A store with its first connection. `timeout`: seconds that a call waits. `rng`: for retries, and its name.

        `build`: of this process, for messages. Raises ConnectError, AuthenticationError, TimeoutError;
        UnsupportedError: the service is of a build that does not understand this one.
        """
        store = cls(connector, url, clock=clock, rng=rng, timeout=timeout, build=build)
        link = await store._dial()
        store._running = asyncio.get_running_loop().create_task(store._run(link), name=f"metadata store {url}")
        return store

    @property
    def newest(self) -> RemoteMetadataStore:
        return self

    @property
    def mirror(self) -> MirrorReads:
        return self._mirror

    @property
    def version(self) -> int:
        return self._version

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._link is not None

    # -- connections -----------------------------------------------------------------------------------------------

    async def _dial(self) -> Link:
        link = await dial(self._connector, self.url, self._hello, self._timeout)
        link.received = self._received
        self._link, self.pid = link, link.pid
        self._seen(link.version)
        for watch in self._watches.values():
            link.send(_packed(watch.request()))
        for call in _list(self._calls.values()):
            if call.future.cancelled():
                del self._calls[call.request.id]
            else:
                self._send(call)
        return link

    async def _run(self, link: Link) -> None:
        """Keep a connection."""
        while True:
            await self._until_lost(link)
            self._lost(link)
            link = await self._dial_again()
            self._retry.reset()

    async def _until_lost(self, link: Link) -> None:
        """Wait for the end of a connection; a service that is silent for long is asked for a sign of life."""
        frames = link.frames
        while not link.ended.is_set():
            try:
                async with asyncio.timeout(self._timeout):
                    await link.ended.wait()
            except builtins.TimeoutError:
                if link.frames == frames:
                    self._begin(Ping(self._next_id()))
                frames = link.frames

    async def _dial_again(self) -> Link:
        while True:
            try:
                return await self._dial()
            except (EngineError, OSError) as e:  # the system refuses a socket, or a file of a certificate
                self._why = str(e)
            await asyncio.sleep(self._retry.next())

    def _lost(self, link: Link) -> None:
        """Writes that were sent end; other calls wait for the next connection."""
        self._link, self._why = None, link.why
        self.known.clear()
        for call in [call for call in self._calls.values() if call.link is link]:
            call.link = None
            if call.writes:
                self._fail(call, OutcomeUnknownError(f"the metadata store at {self.url} was lost: {link.why}"))

    # -- calls -----------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def check_open(self) -> None:
        """Raise AlreadyClosedError behind close()."""
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")

    def _begin(self, request: Any, *, writes: bool = False) -> _Call:
        loop = asyncio.get_running_loop()
        call = _Call(request, loop.create_future(), loop.time() + self._timeout, writes=writes)
        self._calls[request.id] = call
        if self._checking is None:
            self._checking = loop.call_at(call.due, self._check)
        self._send(call)
        return call

    def _send(self, call: _Call) -> None:
        if self._link is not None:
            call.link, call.begun, call.sent = self._link, True, self._clock.monotonic()
            self._link.send(call.packed)

    async def _ask(self, request: Any, kind: type[A], *, writes: bool = False) -> A:
        answer = await self._begin(request, writes=writes).future
        if not isinstance(answer, kind):
            raise ProtocolError(f"the metadata store answered {type(request).__name__} with {type(answer).__name__}")
        return answer

    def _check(self) -> None:
        """End what is overdue. Calls are in the order of their time."""
        self._checking = None
        loop = asyncio.get_running_loop()
        silent = False
        for call in _list(self._calls.values()):
            if call.due > loop.time():
                self._checking = loop.call_at(call.due, self._check)
                break
            silent = silent or call.link is not None
            if call.writes and call.begun:
                self._fail(call, OutcomeUnknownError(self._silence("the outcome is unknown")))
            else:
                outcome = "it was sent, and may have been done" if call.begun else "nothing was done"
                self._fail(call, TimeoutError(self._silence(outcome)))
        if silent and self._link is not None:
            self._link.abort(f"it did not answer within {self._timeout:g} s")

    def _silence(self, outcome: str) -> str:
        process = f" (process {self.pid})" if self.pid else ""
        why = f" ({self._why})" if self._link is None and self._why else ""
        return f"the metadata store at {self.url}{process} did not answer within {self._timeout:g} s{why}; {outcome}"

    def _fail(self, call: _Call, error: Exception) -> None:
        self._calls.pop(call.request.id, None)
        self._doubt(call.request)
        if not call.future.done():
            call.future.set_exception(error)
            call.future.exception()  # retrieved: a ping has no caller, and others may be cancelled

    # -- answers ---------------------------------------------------------------------------------------------------

    def _received(self, position: int, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._takes.get(type(answer), self._answered)(answer)
        self.known.reported(position)

    def _seen(self, version: int) -> None:
        self._version = max(self._version, version)

    def _answered(self, answer: Any) -> None:
        call = self._calls.get(answer.id)
        if call is None:
            return  # it was given up
        if isinstance(answer, Refused):
            self._fail(call, protocol.error_of(answer.code, answer.text))
            return
        del self._calls[answer.id]
        self._note(call.request, answer)
        if not call.future.done():
            call.future.set_result(answer)

    def _part(self, answer: Any, found: _list[Any]) -> None:
        call = self._calls.get(answer.id)
        if call is None:
            return
        call.parts += found
        if not answer.more:
            del self._calls[answer.id]
            if not call.future.done():
                call.future.set_result(call.parts)

    def _note(self, request: Any, answer: Any) -> None:
        """What a confirmed request has changed."""
        if isinstance(answer, Done):
            self._seen(answer.stat.version)
            self.known.wrote(request.key, request.value, answer.stat)
        elif isinstance(answer, Appended):
            self._seen(answer.appended.version)
            if answer.stat is not None:
                self._seen(answer.stat.version)
                self.known.wrote(request.put.key, request.put.value, answer.stat)
        elif isinstance(answer, AllOutcomes):
            for write, outcome in zip(request.writes, answer.outcomes, strict=True):
                if isinstance(outcome, Refused):
                    self._doubt(write)
                else:
                    self._note(write, outcome)
        elif isinstance(answer, Got):
            self._seen(answer.version)
        else:
            self._doubt(request)
            if isinstance(answer, Deleted):
                self._seen(answer.version)

    def _doubt(self, request: Any) -> None:
        """A request may have changed something, or was refused by what this process does not know."""
        if isinstance(request, PutOne | DeleteOne):
            self._doubt_keys(request)
        elif isinstance(request, PutAndAppend):
            self._doubt_keys(request.put)
        elif isinstance(request, DeleteRange):
            self.known.doubt_range(request.start, request.end)
        elif isinstance(request, EndSession):
            self.known.doubt_session(request.session)
        elif isinstance(request, WriteAll):
            for write in request.writes:
                self._doubt_keys(write)

    def _doubt_keys(self, write: PutOne | DeleteOne) -> None:
        self.known.doubt(write.key)
        if isinstance(write, PutAlso):
            for key in write.also:
                self.known.doubt(key)

    # -- reads -----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        self.check_open()
        return (await self._ask(Get(self._next_id(), key), Got)).record

    async def read_kept(self, key: str) -> Record | None:
        """Read a record that the mirror does not have, and keep it."""
        if self.known.full:
            self.known.clear()
            if self._link is not None:
                self._link.send(_packed(Forget()))
        self.known.begin(key)
        record = None
        try:
            record = (await self._ask(Get(self._next_id(), key, keep=True), Got)).record
        finally:
            self.known.end(key, record)
        return record

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        self.check_open()
        found: list[Record] = await self._begin(ListRecords(self._next_id(), start, end, limit, keys_only=False)).future
        return found

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        self.check_open()
        found: Keys = await self._begin(ListRecords(self._next_id(), start, end, limit, keys_only=True)).future
        return found

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        self.check_open()
        found: IndexedRecords = await self._begin(ListIndex(self._next_id(), index, start, end, limit)).future
        return found

    # -- writes ----------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int = ANY,
        *,
        session: Session | None = None,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
        also: Demands | None = None,
    ) -> Stat:
        self.check_open()
        put = checked_put(Put(key, value, expected, session, partition_key, indexes, also))
        return (await self._ask(protocol.put_of(self._next_id(), put), Done, writes=True)).stat

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        self.check_open()
        delete = Delete(key, check_version(expected))
        return bool((await self._ask(protocol.delete_of(self._next_id(), delete), Deleted, writes=True)).count)

    async def delete_range(self, start: str, end: str) -> int:
        self.check_open()
        return (await self._ask(DeleteRange(self._next_id(), start, end), Deleted, writes=True)).count

    async def put_sequence(
        self,
        prefix: str,
        value: bytes,
        *,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
    ) -> Record:
        self.check_open()
        append = checked_append(Append(prefix, value, partition_key, indexes))
        done = await self._ask(protocol.append_of(self._next_id(), append), Appended, writes=True)
        return Record(done.key, append.value, done.appended)

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        self.check_open()
        put, appended = checked_put(put), checked_append(appended)
        request = PutAndAppend(self._next_id(), protocol.put_of(0, put), protocol.append_of(0, appended))
        done = await self._ask(request, Appended, writes=True)
        if done.stat is None:
            raise ProtocolError("the metadata store must answer with two facts, got one")
        return done.stat, Record(done.key, appended.value, done.appended)

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        self.check_open()
        check_writes(len(writes))
        request = WriteAll(self._next_id(), [_write_of(write) for write in writes])
        if not request.writes:
            return []
        done = await self._ask(request, AllOutcomes, writes=True)
        return [protocol.outcome_of(outcome) for outcome in done.outcomes]

    # -- watches ---------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_version: int | None = None) -> RemoteWatch:
        return self._watch(prefix, from_version)

    def watch_key(self, key: str) -> RemoteWatch:
        return self._watch((key,), None)

    def watch_index(self, index: str, start: str, end: str) -> RemoteWatch:
        return self._watch((index, start, end), None)

    def _watch(self, what: Watched, from_version: int | None) -> RemoteWatch:
        self.check_open()
        watch = RemoteWatch(self._next_id(), what, from_version, self._unwatch)
        request = _packed(watch.request())
        self._watches[watch.ident] = watch
        if self._link is not None:
            self._link.send(request)
        return watch

    def _unwatch(self, ident: int) -> None:
        if self._watches.pop(ident, None) is not None and self._link is not None:
            self._link.send(_packed(Unwatch(ident)))

    def _watching(self, answer: Watching) -> None:
        if (watch := self._watches.get(answer.watch)) is not None:
            watch.begun(resumed=answer.resumed)

    def _events(self, answer: Events) -> None:
        watch = self._watches.get(answer.watch)
        for event in answer.events if watch is not None else ():
            self._seen(event.version)
            self.known.changed(event)
            self.known.heard(event.version)
            watch.received(event)  # type: ignore[union-attr]

    def _kept(self, answer: Kept) -> None:
        for event in answer.events:
            self._seen(event.version)
            self.known.changed(event)

    def _watch_failed(self, answer: WatchFailed) -> None:
        if (watch := self._watches.pop(answer.watch, None)) is not None:
            watch.fail(protocol.error_of(answer.code, answer.text))

    # -- sessions --------------------------------------------------------------------------------------------------

    async def session(self, timeout: float = 30.0) -> RemoteSession:
        self.check_open()
        call = self._begin(OpenSession(self._next_id(), timeout))
        session = RemoteSession(self, (await call.future).session, timeout, call.sent + timeout)
        self._sessions[session] = None
        return session

    async def refresh_session(self, session: RemoteSession) -> float:
        """When the request that was answered was sent, by the monotonic clock. Raises AlreadyClosedError."""
        self.check_open()
        call = self._begin(RefreshSession(self._next_id(), session.id, session.timeout))
        try:
            await call.future
        except AlreadyClosedError:
            self._sessions.pop(session, None)
            raise
        return call.sent

    async def end_session(self, session: RemoteSession) -> None:
        """End a session. Where the service cannot be reached, it expires there."""
        self._sessions.pop(session, None)
        if self._closed:
            return  # close() has ended it
        await self._ask(EndSession(self._next_id(), session.id), Opened)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish writes that were sent, end sessions and watches, disconnect. Idempotent."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        if self._link is not None and not self._link.ended.is_set():
            ending = [self._begin(EndSession(self._next_id(), session.id)).future for session in self._sessions]
            waiting = [call.future for call in self._calls.values() if call.writes]
            if ending or waiting:
                await asyncio.wait([*ending, *waiting], timeout=min(_CLOSE_S_MAX, self._timeout))
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        for watch in _list(self._watches.values()):
            watch.close()
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._checking is not None:
            self._checking.cancel()
        for call in _list(self._calls.values()):
            if call.writes and call.begun:
                self._fail(call, OutcomeUnknownError("the metadata store was closed before it had answered"))
            else:
                self._fail(call, AlreadyClosedError("the metadata store is closed"))


def _write_of(write: Put | Delete) -> PutOne | DeleteOne:
    if isinstance(write, Put):
        return protocol.put_of(0, checked_put(write))
    if isinstance(write, Delete):
        return protocol.delete_of(0, Delete(write.key, check_version(write.expected)))
    raise InvalidArgumentError(f"a write must be a Put or a Delete, got {write!r:.80}")


def _packed(request: Any) -> bytes:
    try:
        return protocol.encode(request)
    except (UnicodeEncodeError, OverflowError, TypeError) as e:
        raise InvalidArgumentError(f"a request to the metadata store must have valid text, 64-bit numbers: {e}") from e
