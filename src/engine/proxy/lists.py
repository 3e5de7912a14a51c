"""`TopicLists`: what one session asks of topic lists and is answered, through the memory limiter (PIP-442).

A request waits for its initial permit before a broker sees it. An answer grows that permit to its own size, waits for
one of direct memory and is handed to the socket; the direct one goes back when its bytes have left. What waits lets
everything else of the connection pass, until too much of it waits: then nothing is read from the broker.

A session that cannot pass on what it has holds no heap memory meanwhile. So who holds some goes on without any, and
sessions do not wait for each other in a ring.

Nothing is held without an end: while the client takes nothing the broker is not read from, so that the end of neither
is noticed. A part of a list that is not taken in its time ends the session, and a request that is not answered in its
time gives its permit back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryPermit
from engine.aio.tasks import Supervisor
from engine.broker.session.topic_lists import seconds_to_take
from engine.errors import EngineError, MemoryLimitError, PermitQueueFullError, ProtocolError, TimeoutError
from engine.limits import (
    FRAME_HEADER_SIZE_MAX,
    FRAME_PREFIX_SIZE,
    PROXY_ANSWER_S_MAX,
    PROXY_LIST_REQUEST_SIZE_MAX,
    PROXY_LIST_REQUESTS_MAX,
    PROXY_LISTS_ASIDE_MAX,
    TOPIC_LIST_INITIAL_SIZE,
)
from engine.proxy.frames import Piece, error_frame, field_of
from engine.proxy.lane import Lane
from engine.proxy.side import Side
from engine.wire.commands import Command

REQUESTS = frozenset((Command.GET_TOPICS_OF_NAMESPACE, Command.WATCH_TOPIC_LIST))
_ANSWERS = frozenset((Command.SUCCESS, Command.ERROR))
_ANSWER_SIZE_MAX = FRAME_HEADER_SIZE_MAX + FRAME_PREFIX_SIZE + 7  # it has no payload
_AGAIN_S = 0.5  # after a part of a watched list found no memory, when it is tried again
_HELD = "lists"

Asking = tuple[int, asyncio.Task[None]]
Permits = list[MemoryPermit]


class TopicLists:
    """Of one session. Loop thread only.

    A permit is in the list of a request or of an answer, and goes back when that ends: the limiter has given out
    nothing when all sessions have gone.
    """

    def __init__(
        self,
        limiter: AsyncDualMemoryLimiter,
        tasks: Supervisor,
        to_broker: Lane,
        to_client: Lane,
        broker: Side,
        fail: Callable[[EngineError], None],
    ) -> None:
        """`fail` ends the session, of a client that does not take its lists."""
        self._limiter = limiter
        self._tasks = tasks
        self._to_broker = to_broker
        self._to_client = to_client
        self._broker = broker
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        # Requests by their ids: those that wait for a permit, with their sessions, and those that were sent on.
        self._asking: dict[int, Asking] = {}
        self._granted: dict[int, Permits] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}  # of those that were sent on
        # Answers in order, each with its request's id (0: none) and what that has got.
        self._aside: deque[tuple[bytes, int, Permits]] = deque()
        self._aside_bytes = 0
        self._passing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()  # the client takes what it is sent
        self._room.set()
        self._closed = False

    # -- requests --------------------------------------------------------------------------------------------------

    def wants_of_client(self, kind: int, size: int) -> bool:
        """Whether this frame of the client's is for asked(). Raises ProtocolError."""
        if kind in REQUESTS and size > PROXY_LIST_REQUEST_SIZE_MAX:
            raise ProtocolError(f"a request of {size} bytes for a topic list; at most {PROXY_LIST_REQUEST_SIZE_MAX}")
        closes = kind == Command.WATCH_TOPIC_LIST_CLOSE and size <= PROXY_LIST_REQUEST_SIZE_MAX
        return kind in REQUESTS or (closes and bool(self._asking))

    def asked(self, kind: int, frame: Piece) -> None:
        """A request for a list, or the end of a session. Raises ProtocolError."""
        if kind == Command.WATCH_TOPIC_LIST_CLOSE:
            self._unasked(frame)
            return
        request_id = field_of(frame, "request_id")
        if type(request_id) is not int or request_id in self._asking or request_id in self._granted:
            raise ProtocolError(
                f"a request for a topic list has the id {request_id!r:.80}; a new whole number is right"
            )
        waiting = len(self._asking) + len(self._granted)
        if waiting >= PROXY_LIST_REQUESTS_MAX:
            full = PermitQueueFullError(f"{waiting} requests for topic lists are under way on this connection")
            self._to_client.put(error_frame(request_id, full))
            return
        session = field_of(frame, "session_id") if kind == Command.WATCH_TOPIC_LIST else 0
        task = self._tasks.spawn(self._ask(request_id, bytes(frame)), "topic list")
        if task is not None:
            self._asking[request_id] = (session if type(session) is int else 0, task)

    async def _ask(self, request_id: int, frame: bytes) -> None:
        try:
            permit = await self._limiter.acquire(TOPIC_LIST_INITIAL_SIZE, LimitType.HEAP_MEMORY)
        except MemoryLimitError as e:
            self._to_client.put(error_frame(request_id, e))
            return
        finally:
            self._asking.pop(request_id, None)
        if self._closed:
            self._limiter.release(permit)
        else:
            held = self._granted[request_id] = [permit]
            self._deadlines[request_id] = self._loop.call_later(PROXY_ANSWER_S_MAX, self._give_back, held)
            if not self._room.is_set():
                self._give_back(held)  # its answer is not read for now
            self._to_broker.put(frame)

    def _unasked(self, frame: Piece) -> None:
        """A session that no broker has heard of need not be ended there, and must not begin there any more."""
        session = field_of(frame, "session_id")
        waiting = [ident for ident, (its, _) in self._asking.items() if session and its == session]
        for ident in waiting:
            self._asking.pop(ident)[1].cancel()
        if not waiting:
            self._to_broker.put(bytes(frame))

    # -- answers ---------------------------------------------------------------------------------------------------

    def wants_of_broker(self, kind: int, size: int) -> bool:
        """Whether this frame of the broker's is for answered()."""
        if size > _ANSWER_SIZE_MAX:
            return False
        return kind == Command.WATCH_TOPIC_LIST_UPDATE or (bool(self._granted) and kind in _ANSWERS)

    def answered(self, kind: int, frame: Piece) -> None:
        """A part of a list, or what may be the answer to a request for one. Raises ProtocolError."""
        request_id = field_of(frame, "request_id")
        held = self._granted.pop(request_id, None) if type(request_id) is int else None
        if held is not None:
            self._deadlines.pop(request_id).cancel()
        if kind == Command.ERROR and held is not None:
            self._give_back(held)
        if kind == Command.ERROR or (kind == Command.SUCCESS and held is None):
            self._to_client.put(bytes(frame))
            return
        self._aside.append((bytes(frame), 0 if held is None else request_id, held or []))
        self._aside_bytes += len(frame)
        if self._aside_bytes > PROXY_LISTS_ASIDE_MAX:
            self._broker.hold(_HELD)
        if self._passing is None:
            self._passing = self._tasks.spawn(self._pass_all(), "topic lists")

    def full(self, is_full: bool) -> None:
        """Whether the client takes what it is sent."""
        if is_full:
            self._room.clear()
            self._give_back_all([])
        else:
            self._room.set()

    async def _pass_all(self) -> None:
        try:
            while self._aside:
                frame, request_id, held = self._aside.popleft()
                await self._pass(frame, request_id, held)
                self._aside_bytes -= len(frame)
                if self._aside_bytes <= PROXY_LISTS_ASIDE_MAX // 2:
                    self._broker.release(_HELD)
        finally:
            self._passing = None

    async def _pass(self, frame: bytes, request_id: int, held: Permits) -> None:
        try:
            if not self._room.is_set():
                self._give_back_all(held)
                await self._room.wait()
            direct = await self._permit(len(frame), held, patient=not request_id)
        except MemoryLimitError as e:
            self._to_client.put(error_frame(request_id, e))
        else:
            self._send(frame, direct)
        finally:
            self._give_back(held)

    def _send(self, frame: bytes, direct: MemoryPermit) -> None:
        """Hand a part to the socket; its permit goes back when it was taken, or with the session."""
        allowed = seconds_to_take(self._to_client.unsent_bytes + len(frame))
        late = TimeoutError(f"a part of a topic list must be taken within {allowed:.0f} s, and it was not")
        timer = self._loop.call_later(allowed, self._fail, late)

        def taken() -> None:
            timer.cancel()
            self._limiter.release(direct)

        self._to_client.put(frame, taken)

    async def _permit(self, size: int, held: Permits, *, patient: bool) -> MemoryPermit:
        """Direct memory for so many bytes; the heap's is in `held` then, which may have the request's to begin with.

        `patient`: what nobody has asked for cannot be refused; it waits, and the broker with it.
        """
        while True:
            try:
                await self._permit_heap(size, held)
                return await self._limiter.acquire(size, LimitType.DIRECT_MEMORY)
            except MemoryLimitError:
                if not patient:
                    raise
            self._give_back_all(held)
            await asyncio.sleep(_AGAIN_S)

    async def _permit_heap(self, size: int, held: Permits) -> None:
        """Grow what the request has got. Where there is no room it is given back first, and the whole is waited for."""
        pool = self._limiter.pool(LimitType.HEAP_MEMORY)
        mine = held[0].size if held else 0
        if size > mine and (pool.queue or pool.used - mine + size > pool.limit):
            self._give_back_all(held)
        if held:
            await self._limiter.update(held[0], size)
        else:
            held.append(await self._limiter.acquire(size, LimitType.HEAP_MEMORY))

    def _give_back(self, held: Permits) -> None:
        while held:
            self._limiter.release(held.pop())

    def _give_back_all(self, held: Permits) -> None:
        """Of this answer, of those behind it, and of requests whose answers may not be read for now."""
        self._give_back(held)
        for _, _, others in self._aside:
            self._give_back(others)
        for others in self._granted.values():
            self._give_back(others)

    def close(self) -> None:
        """The session has ended: nothing is held any more. Idempotent."""
        self._closed = True
        for _, task in self._asking.values():
            task.cancel()
        if self._passing is not None:
            self._passing.cancel()
        self._give_back_all([])
        self._granted.clear()
        for timer in self._deadlines.values():
            timer.cancel()
        self._aside.clear()
