"""`ServedConnection`: the service's end of a client's connection: requests begin in order, are answered as they end.

Memory is bounded for slow clients: events that a client does not take collapse in the store's own watches, per key, and
its requests are not read while its answers wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import AlreadyClosedError, EngineError, ProtocolError, UnsupportedError
from engine.limits import METADATA_WRITE_ALL_MAX, MIB
from engine.metadata import protocol
from engine.metadata.protocol import (
    Answer,
    Appended,
    AppendOne,
    Deleted,
    DeleteOne,
    DeleteRange,
    Done,
    EndSession,
    Events,
    Forget,
    Get,
    Got,
    Hello,
    Indexed,
    Kept,
    Keys,
    List,
    Listed,
    ListIndex,
    Opened,
    OpenSession,
    Outcomes,
    Ping,
    PutAndAppend,
    PutOne,
    RefreshSession,
    Refused,
    Request,
    Unwatch,
    Watch,
    WatchFailed,
    WatchIndex,
    Watching,
    Welcome,
    WriteAll,
)
from engine.metadata.store import (
    ConflictError,
    Delete,
    Event,
    EventKind,
    MetadataStore,
    OutcomeUnknownError,
    Put,
    Record,
    Stat,
)
from engine.metadata.store import Watch as StoreWatch
from engine.metadata.watches import TableWatch
from engine.wire.commands import Header, Metadata
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.metadata.service import MetadataService

log = logging.getLogger(__name__)

_PENDING_MAX = 4_096  # requests of one connection under way; above it, nothing is read from it
_ANSWER_SIZE = MIB // 4  # of records in one answer, and of answers in one frame
_HEADER = Metadata()

_Handlers = dict[type, Callable[[Any], Coroutine[Any, Any, Answer]]]


class ServedConnection:
    """The service's end of one connection (a FrameHandler). Loop thread only."""

    def __init__(self, service: MetadataService, stream: FrameStream) -> None:
        self.before: ServedConnection | None = None  # of the same client, while its writes may be under way
        self._service = service
        self._stream = stream
        self._client: int | None = None
        self._greeted = False
        self._ended = False
        self._writes: set[asyncio.Task[None]] = set()
        self._reads: set[asyncio.Task[None]] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._watches: dict[int, StoreWatch] = {}
        # What is sent at the end of this turn, and its size without what is small.
        self._out: list[Answer] = []
        self._out_size = 0
        self._due = False
        self._room = asyncio.Event()
        self._room.set()
        # Keys whose changes are reported. `_position`: the version up to which they were, or are about to be.
        self._kept: set[str] = set()
        self._position = 0
        self._keeping: StoreWatch | None = None
        self._reading: _Handlers = {Get: self._get, List: self._list, ListIndex: self._list_index}
        self._writing: _Handlers = {
            DeleteRange: self._delete_range,
            AppendOne: self._append,
            PutAndAppend: self._put_and_append,
            WriteAll: self._write_all,
            OpenSession: self._open_session,
            RefreshSession: self._refresh_session,
            EndSession: self._end_session,
        }
        self._at_once: dict[type, Callable[[Any], object]] = {
            Watch: self._begin_watch,
            WatchIndex: self._begin_watch,
            Unwatch: self._unwatch,
            Forget: lambda request: self._kept.clear(),
            Ping: lambda request: self._answer(Opened(request.id)),
        }

    @property
    def _store(self) -> MetadataStore:
        return self._service.store

    # -- the stream ------------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        if self._ended:
            return
        try:
            if not isinstance(header, Metadata):
                raise ProtocolError(f"a metadata service takes METADATA, got {header.command.name}")
            self._received(protocol.decode_requests(payload))
        except ProtocolError as e:
            log.warning("the connection of %s to the metadata service is dropped: %s", self._stream.peer, e)
            self._stream.abort()
            self._end()

    def pause_writing(self) -> None:
        self._room.clear()
        self._stream.pause_reading()

    def resume_writing(self) -> None:
        self._room.set()
        self._resume()

    def _resume(self) -> None:
        if self._room.is_set() and len(self._writes) + len(self._reads) < _PENDING_MAX:
            self._stream.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        """Read and report nothing more. Writes that have begun go on."""
        if self._ended:
            return
        self._ended = True
        self._service.lost(self)
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        if self._keeping is not None:
            self._keeping.close()
        for task in (*self._reads, *self._reports):
            task.cancel()
        self._out.clear()
        self._forgotten()

    def _forgotten(self) -> None:
        """Leave the service once nothing of this connection, or of one before it, can take place any more."""
        if self._client is not None and not self._writes and self.before is None:
            self._service.forget(self._client, self)

    async def retire(self) -> None:
        """End the connection, and wait for its writes, and for those of the connection that it followed."""
        self._stream.abort()
        self._end()
        while self._writes:
            await asyncio.wait(self._writes)
        if self.before is not None:
            await self.before.retire()

    # -- requests --------------------------------------------------------------------------------------------------

    def _received(self, requests: Sequence[Request]) -> None:
        """Begin all requests of a frame, in order. Writes that follow each other are handed over as one."""
        group: list[PutOne | DeleteOne] = []
        for request in requests:
            if isinstance(request, Hello):
                self._hello(request)
                continue
            if not self._greeted:
                raise ProtocolError("the first request must be a Hello that was answered")
            if isinstance(request, PutOne | DeleteOne):
                group.append(request)
                if len(group) == METADATA_WRITE_ALL_MAX:
                    self._write_group(group)
                    group = []
                continue
            if group:
                self._write_group(group)
                group = []
            self._begin(request)
        if group:
            self._write_group(group)
        if len(self._writes) + len(self._reads) >= _PENDING_MAX:
            self._stream.pause_reading()

    def _hello(self, hello: Hello) -> None:
        if self._client is not None:
            raise ProtocolError("a connection is greeted once")
        self._client = hello.client
        if hello.protocol != protocol.PROTOCOL:
            text = f"{hello.build or 'the client'} speaks protocol {hello.protocol} of the metadata store, "
            code, text = UnsupportedError.code, f"{text}{self._service.build or 'this process'} {protocol.PROTOCOL}"
            self._answer(Refused(0, code, text))
            return
        self._service.tasks.spawn(self._welcome(hello.client), "welcome")

    async def _welcome(self, client: int) -> None:
        await self._service.claim(client, self)
        if self._ended:
            self._forgotten()
            return
        self._greeted = True
        self._answer(Welcome(protocol.PROTOCOL, self._service.build, self._service.pid, self._store.version))

    def _begin(self, request: Any) -> None:
        kind = type(request)
        if (write := self._writing.get(kind)) is not None:
            self._spawn(self._writes, self._answered(write, request))
        elif (read := self._reading.get(kind)) is not None:
            self._spawn(self._reads, self._answered(read, request))
        else:
            self._at_once[kind](request)

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        for tasks in (self._writes, self._reads, self._reports):
            tasks.discard(task)
        if self._ended:
            self._forgotten()
        elif len(self._writes) + len(self._reads) == _PENDING_MAX - 1:
            self._resume()

    async def _answered(self, handler: Callable[[Any], Coroutine[Any, Any, Answer]], request: Any) -> None:
        try:
            self._answer(await handler(request))
        except Exception as e:
            self._refuse([request.id], e)

    def _refuse(self, idents: Sequence[int], error: Exception) -> None:
        if not isinstance(error, EngineError | ConflictError | OutcomeUnknownError):
            log.exception("a request to the metadata service failed", exc_info=error)
        code, text = protocol.refusal_of(error)
        for ident in idents:
            self._answer(Refused(ident, code, text))

    # -- writes ----------------------------------------------------------------------------------------------------

    def _write_group(self, group: list[PutOne | DeleteOne]) -> None:
        self._spawn(self._writes, self._write_each(group))

    async def _write_each(self, group: list[PutOne | DeleteOne]) -> None:
        """Independent writes, with one call of the store."""
        try:
            outcomes = await self._outcomes(group)
        except Exception as e:
            self._refuse([one.id for one in group], e)
            return
        for outcome in outcomes:
            self._answer(outcome)

    async def _write_all(self, request: WriteAll) -> Answer:
        protocol.check_count(len(request.writes))
        return Outcomes(request.id, await self._outcomes(request.writes))

    async def _outcomes(self, group: Sequence[PutOne | DeleteOne]) -> list[Done | Deleted | Refused]:
        found: list[Done | Deleted | Refused | None] = []
        writes: list[Put | Delete] = []
        for one in group:
            try:
                writes.append(protocol.as_delete(one) if isinstance(one, DeleteOne) else self._as_put(one))
                found.append(None)
            except AlreadyClosedError as e:
                found.append(Refused(one.id, *protocol.refusal_of(e)))
        outcomes = iter(await self._store.write_all(writes)) if writes else iter(())
        return [
            self._outcome(one.id, next(outcomes)) if refused is None else refused
            for one, refused in zip(group, found, strict=True)
        ]

    def _as_put(self, put: PutOne) -> Put:
        return protocol.as_put(put, None if put.session is None else self._service.sessions.get(put.session))

    def _outcome(self, ident: int, outcome: Stat | bool | Exception) -> Done | Deleted | Refused:
        if isinstance(outcome, Stat):
            return Done(ident, outcome)
        if isinstance(outcome, bool):
            return Deleted(ident, int(outcome), self._store.version)
        return Refused(ident, *protocol.refusal_of(outcome))

    async def _delete_range(self, request: DeleteRange) -> Answer:
        return Deleted(request.id, await self._store.delete_range(request.start, request.end), self._store.version)

    async def _append(self, request: AppendOne) -> Answer:
        append = protocol.as_append(request)
        record = await self._store.put_sequence(
            append.prefix, append.value, partition_key=append.partition_key, indexes=append.indexes
        )
        return Appended(request.id, record.key, record.stat)

    async def _put_and_append(self, request: PutAndAppend) -> Answer:
        put, append = self._as_put(request.put), protocol.as_append(request.append)
        stat, record = await self._store.put_with_sequence(put, append)
        return Appended(request.id, record.key, record.stat, stat)

    # -- sessions --------------------------------------------------------------------------------------------------

    async def _open_session(self, request: OpenSession) -> Answer:
        return Opened(request.id, await self._service.sessions.open(request.timeout))

    async def _refresh_session(self, request: RefreshSession) -> Answer:
        await self._service.sessions.refresh(request.session, request.timeout)
        return Opened(request.id, request.session)

    async def _end_session(self, request: EndSession) -> Answer:
        await self._service.sessions.end(request.session)
        return Opened(request.id, request.session)

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _get(self, request: Get) -> Answer:
        if request.keep:
            self._keep(request.key)
        version = self._store.version
        return Got(request.id, await self._store.newest.get(request.key), version)

    async def _list(self, request: List) -> Answer:
        if request.keys_only:
            keys = await self._store.newest.list_keys(request.start, request.end, request.limit)
            rest = await self._parts(keys, len, lambda part: Keys(request.id, part, more=True))
            return Keys(request.id, rest, more=False)
        records = await self._store.newest.list(request.start, request.end, request.limit)
        return Listed(
            request.id, await self._parts(records, _size, lambda part: Listed(request.id, part, more=True)), more=False
        )

    async def _list_index(self, request: ListIndex) -> Answer:
        found = await self._store.newest.list_index(request.index, request.start, request.end, request.limit)
        rest = await self._parts(
            found, lambda one: len(one[0]) + _size(one[1]), lambda part: Indexed(request.id, part, more=True)
        )
        return Indexed(request.id, rest, more=False)

    async def _parts(self, found: list[Any], size_of: Callable[[Any], int], answer: Callable[[Any], Answer]) -> Any:
        """Send all but the last part of a long result, as fast as the client takes it; the last part."""
        start = size = 0
        for at, one in enumerate(found):
            size += size_of(one)
            if size >= _ANSWER_SIZE:
                self._answer(answer(found[start : at + 1]), size)
                start, size = at + 1, 0
                await asyncio.sleep(0)
                await self._room.wait()
        self._out_size += size
        return found[start:]

    # -- watches ---------------------------------------------------------------------------------------------------

    def _begin_watch(self, request: Watch | WatchIndex) -> None:
        ident = request.watch
        if ident in self._watches:
            raise ProtocolError(f"the watch {ident} is running")
        try:
            if isinstance(request, Watch) and request.alone:
                watch = self._store.watch_key(request.prefix)
            elif isinstance(request, Watch):
                watch = self._store.watch(request.prefix, request.from_version)
            else:
                watch = self._store.watch_index(request.index, request.start, request.end)
        except EngineError as e:
            self._answer(WatchFailed(ident, *protocol.refusal_of(e)))
            return
        self._watches[ident] = watch
        self._answer(Watching(ident, isinstance(watch, TableWatch) and watch.resumed))
        self._spawn(self._reports, self._report(ident, watch))

    def _unwatch(self, request: Unwatch) -> None:
        watch = self._watches.pop(request.watch, None)
        if watch is not None:
            watch.close()

    async def _report(self, ident: int, watch: StoreWatch) -> None:
        """Report the events of a watch as fast as the client takes them; meanwhile they collapse in the watch."""
        try:
            async for event in watch:
                if self._watches.get(ident) is not watch:
                    return
                self._event(ident, event)
                await self._room.wait()
        except (EngineError, OutcomeUnknownError) as e:
            if self._watches.get(ident) is watch:
                del self._watches[ident]
                self._answer(WatchFailed(ident, *protocol.refusal_of(e)))
        finally:
            watch.close()

    def _event(self, ident: int, event: Event) -> None:
        last = self._out[-1] if self._out else None
        if isinstance(last, Events) and last.watch == ident:
            last.events.append(event)
        else:
            self._answer(Events(ident, [event]))
        self._grown(_size(event.record))

    def _keep(self, key: str) -> None:
        self._kept.add(key)
        if self._keeping is None:
            self._position = self._store.version
            self._keeping = self._store.watch("", self._position)
            self._spawn(self._reports, self._report_kept(self._keeping))

    async def _report_kept(self, watch: StoreWatch) -> None:
        try:
            async for event in watch:
                if event.key in self._kept and event.kind is not EventKind.SNAPSHOT_END:
                    self._kept_changed(event)
                self._position = max(self._position, event.version)
                await self._room.wait()
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the metadata service lost its watch, and drops the connection of %s: %s", self._stream.peer, e)
            self._stream.abort()  # what the client knows would not be kept up to date
        finally:
            watch.close()

    def _kept_changed(self, event: Event) -> None:
        last = self._out[-1] if self._out else None
        if isinstance(last, Kept):
            last.events.append(event)
        else:
            self._answer(Kept([event]))
        self._grown(_size(event.record))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, answer: Answer, size: int = 0) -> None:
        if self._ended:
            return
        self._out.append(answer)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush_soon)
        if isinstance(answer, Got):
            size = _size(answer.record)
        self._grown(size)

    def _grown(self, size: int) -> None:
        self._out_size += size
        if self._out_size >= _ANSWER_SIZE:
            self._send()

    def _flush_soon(self) -> None:
        """Events of a write reach their watch a turn behind its answer, and go in the same frame."""
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._send()

    def _send(self) -> None:
        answers, self._out, self._out_size = self._out, [], 0
        if answers and not self._ended:
            self._stream.send(_HEADER, protocol.encode((self._position, answers)))


def _size(record: Record | None) -> int:
    return 64 if record is None else 128 + len(record.key) + len(record.value)
