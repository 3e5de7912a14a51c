"""`LogWriter`: the log of the own session. Groups become objects, objects are PUT, several at once (R7, R8).

    append ──► open ──► sealed ──► flying ──► stored ──► acknowledged
               │ full, or the interval is over and the window has room
                         │ less than WAL_WINDOW objects are not acknowledged
                                               │ all below are stored, too

Each append says how long it may wait; the interval of an object is over when that of its most urgent append is.

Behind an object that was full another waits for a tenth of the interval: it is the rest of a burst, whose senders wait
for it, and the bytes of the full one pay for its request.

An object is acknowledged when it and all before it are stored. A PUT whose outcome is not known is resolved by the 16
bytes that lie at its name. When one stays unresolved, or a FENCE lies there, the session is over for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine import checks
from engine.aio.backoff import RetryDelay
from engine.aio.semaphore import AsyncSemaphore, Permit
from engine.aio.tasks import Supervisor
from engine.errors import AlreadyClosedError, EngineError, FencedError, InvalidArgumentError, UnknownOutcomeError
from engine.limits import WAL_FLUSH_BYTES, WAL_FOOTERS_SIZE_MAX, WAL_FOOTERS_STEP, WAL_PENDING_MAX, WAL_WINDOW
from engine.storage.objects.fence import first_bytes
from engine.storage.objects.format import FENCE, UUID_SIZE, LogName, WalGroup, pack_object
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError, ObjectStore

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

WAITING_MAX = 100_000  # appends that wait for room
QUIET_S = 0.05
BEHIND_FULL = 0.1  # of the interval: the wait of an object behind a full one


@dataclass(frozen=True, slots=True, kw_only=True)
class WalConfig:
    """`flush_s`: how long an append that does not say otherwise waits for the PUT of its object. `resolve_s`: R8, for
    the outcome of a PUT.
    """

    flush_s: float = 0.1
    resolve_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.01 <= self.flush_s <= 1.0:
            raise InvalidArgumentError(f"flush_s must be from 0.01 to 1 s, got {self.flush_s!r}")
        if not self.resolve_s > 0:
            raise InvalidArgumentError(f"resolve_s must be a number > 0, got {self.resolve_s!r}")


class _Object:
    """Groups that become object n together."""

    __slots__ = ("buffers", "groups", "n", "permits", "size", "stored", "uuid", "waiters")

    def __init__(self, n: int) -> None:
        self.n = n
        self.size = 0
        self.groups: list[WalGroup] = []
        self.waiters: list[asyncio.Future[int]] = []
        self.permits: list[Permit] = []
        self.stored = False
        self.uuid = b""
        self.buffers: list[Buffer] = []


class LogWriter:
    """Loop thread only. Invariant: objects are n = acknowledged, … in order; at most WAL_WINDOW of them are sent.

    Checked by _send().
    """

    def __init__(self, store: ObjectStore, log: LogName, config: WalConfig, rng: random.Random) -> None:
        self._store = store
        self._log = log
        self._config = config
        self._rng = rng
        self._room = AsyncSemaphore(WAL_PENDING_MAX, queue_max=WAITING_MAX, name=f"log {log.session}")
        self._order = asyncio.Lock()
        self._tasks = Supervisor(f"log {log.session}")
        self._open = _Object(0)
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0  # when it is over; of the loop's clock
        self._due = False  # the interval is over
        self._behind_full = False  # the object before the open one was full
        self._sealed: deque[_Object] = deque()
        self._flying: deque[_Object] = deque()  # sent and not acknowledged
        self._footers: list[bytes] = []  # of the objects since the last that has several
        self._quiet = asyncio.Event()  # nothing is on its way
        self._quiet.set()
        self.acknowledged = 0  # all n below
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()

    @property
    def flush_s(self) -> float:
        """How long an append waits that does not say otherwise."""
        return self._config.flush_s

    @property
    def next_n(self) -> int:
        """The lowest n that the next append may be in."""
        return self._open.n

    @property
    def over(self) -> EngineError | None:
        """Why nothing more is acknowledged; None: the session lives."""
        return self.ended.result() if self.ended.done() else None

    async def append(
        self, group: WalGroup, check: Callable[[], None] | None = None, flush_s: float | None = None
    ) -> int:
        """The n of the object that has the group, once it is acknowledged. Groups keep the order of the calls.

        `flush_s`: how long it may wait for others in its object; None: as the configuration says.

        `check`: called in the moment in which the group gets its place; what it raises is raised, and nothing was done.
        Raises FencedError, AlreadyClosedError: nothing was done; UnknownOutcomeError; PermitQueueFullError.
        """
        size = sum(memoryview(buffer).nbytes for buffer in group.buffers)
        self._check_lives()
        async with self._order:  # a call that waited for room goes before later ones
            permit = await self._room.acquire(size)
            try:
                self._check_lives()
                if check is not None:
                    check()
            except BaseException:
                self._room.release(permit)
                raise
            acknowledged = self._add(group, size, permit, flush_s or self._config.flush_s)
        return await acknowledged

    def _add(self, group: WalGroup, size: int, permit: Permit, flush_s: float) -> asyncio.Future[int]:
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        current = self._open
        current.groups.append(group)
        current.permits.append(permit)
        current.waiters.append(acknowledged)
        current.size += size
        if current.size >= WAL_FLUSH_BYTES:
            self._seal()
            self._behind_full = True
        elif not self._due:
            self._flush_within(flush_s * (BEHIND_FULL if self._behind_full else 1))
        return acknowledged

    def _flush_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time() + seconds
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        self._due_at = due_at
        self._timer = loop.call_at(due_at, self._interval_over)

    def holds(self, segment: str) -> bool:
        """Whether groups of a segment are not acknowledged yet."""
        return any(group.segment == segment for each in (*self._flying, *self._sealed, self._open)
                   for group in each.groups)  # fmt: skip

    async def quiet(self, within_s: float) -> None:
        """Wait until no object is on its way, and none is QUIET_S later: so not between two of a busy log. At most
        `within_s`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    await self._quiet.wait()
                    before = self.acknowledged
                    await asyncio.sleep(QUIET_S)
                    if self._quiet.is_set() and self.acknowledged == before:
                        return

    async def drain(self) -> int:
        """Wait until all that was appended is acknowledged (R9, R10); the first n that was not. UnknownOutcomeError."""
        self._check_lives()
        if self._open.groups:
            self._seal()
        last = (self._sealed or self._flying or [None])[-1]
        if last is not None:
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            last.waiters.append(stored)
            await stored
        return self.acknowledged

    def end(self, error: EngineError) -> None:
        """Acknowledge nothing more; what waits fails with UnknownOutcomeError. PUTs that are under way may arrive."""
        if self.ended.done():
            return
        self.ended.set_result(error)
        if self._timer is not None:
            self._timer.cancel()
        for waiting in (*self._flying, *self._sealed, self._open):
            self._release(waiting)
            for future in waiting.waiters:
                if not future.done():
                    text = f"object {waiting.n} of session {self._log.session} may be stored: {error}"
                    future.set_exception(UnknownOutcomeError(text))
        self._flying.clear()
        self._sealed.clear()
        self._quiet.set()

    async def close(self) -> None:
        """End the session and its tasks. Idempotent."""
        self.end(AlreadyClosedError(f"session {self._log.session} is closed"))
        await self._tasks.close()

    # -- objects ---------------------------------------------------------------------------------------------------

    def _check_lives(self) -> None:
        if (error := self.over) is not None:
            raise type(error)(*error.args)

    def _interval_over(self) -> None:
        self._timer = None
        self._due = True
        self._send()

    def _seal(self) -> None:
        """The open object takes no more groups."""
        sealed, self._open = self._open, _Object(self._open.n + 1)
        self._due = self._behind_full = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sealed.uuid = self._draw()
        repeats = (sealed.n + 1) % WAL_FOOTERS_STEP == 0
        before = self._footers if repeats else []
        sealed.groups.sort(key=lambda group: group.segment)  # in order still: what one segment has there is one range
        sealed.buffers, own = pack_object(self._log, sealed.n, sealed.uuid, sealed.groups, before)
        self._footers = [] if repeats else [*self._footers, own]
        while sum(map(len, self._footers)) > WAL_FOOTERS_SIZE_MAX:
            del self._footers[0]
        self._sealed.append(sealed)
        self._send()

    def _draw(self) -> bytes:
        while (uuid := self._rng.randbytes(UUID_SIZE)) == FENCE:
            pass
        return uuid

    def _send(self) -> None:
        """PUT what the window allows. While it is full, an object whose interval is over takes further groups."""
        if self.over is not None:
            return
        while len(self._flying) < WAL_WINDOW:
            if not self._sealed and self._due and self._open.groups:
                self._seal()  # which comes here again
            if not self._sealed:
                return
            sent = self._sealed.popleft()
            checks.check(
                sent.n == self.acknowledged + len(self._flying), "objects are sent in order, within the window"
            )
            self._flying.append(sent)
            self._quiet.clear()
            self._tasks.spawn(self._put(sent), name=self._log.object(sent.n))

    async def _put(self, sent: _Object) -> None:
        try:
            async with asyncio.timeout(self._config.resolve_s):
                stored = await self._resolved(sent)
        except TimeoutError:  # R8
            within = f"within {self._config.resolve_s:g} s"
            self.end(FencedError(f"the object store did not say {within} whether {self._log.object(sent.n)} is stored"))
            return
        except AlreadyClosedError as e:
            self.end(e)
            return
        except Exception as e:  # a fault of this program: nothing waits for ever because of it
            self.end(FencedError(f"{self._log.object(sent.n)} was not stored: {e!r}"))
            raise
        if not stored:
            self.end(FencedError(f"session {self._log.session} was fenced at or below {sent.n}"))
        elif self.over is None:
            sent.stored = True
            self._acknowledge()

    async def _resolved(self, sent: _Object) -> bool:
        """R7: True when the object is stored; False when the session is over. Until then, again and again."""
        name, delay = self._log.object(sent.n), RetryDelay(self._rng, initial=0.02, maximum=2.0)
        while True:
            try:
                await self._store.put_if_absent(name, sent.buffers)
                return True
            except AlreadyClosedError:
                raise
            except (ObjectExistsError, ObjectMissingError, EngineError):
                found = await self._found(name)
            if found is not None:
                # Another object than a FENCE is of another writer under this session's name: over as well.
                return found == sent.uuid
            await asyncio.sleep(delay.next())

    async def _found(self, name: str) -> bytes | None:
        try:
            return await first_bytes(self._store, name)
        except AlreadyClosedError:
            raise
        except EngineError:
            return None  # not known: the PUT again

    def _acknowledge(self) -> None:
        """R7: n counts when all objects up to n are stored."""
        while self._flying and self._flying[0].stored:
            done = self._flying.popleft()
            self.acknowledged = done.n + 1
            self._release(done)
            for future in done.waiters:
                if not future.done():
                    future.set_result(done.n)
        self._send()
        if not self._flying:
            self._quiet.set()

    def _release(self, done: _Object) -> None:
        for permit in done.permits:
            self._room.release(permit)
