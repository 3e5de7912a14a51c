"""`TopicLists`: the topic list requests and answers of one session, within the memory limiter (PIP-442).

A request waits for its initial permit before it is sent to a broker. An answer grows that permit to its own size,
acquires a permit of direct memory and is written to the socket; the direct permit is released when its bytes are sent.
Other frames of the connection pass waiting ones, until too many wait: then reading from the broker pauses.

A session that cannot forward an answer releases its heap memory meanwhile. So a session that holds heap memory never
waits for more while holding it, and sessions do not deadlock.

Every permit is held for a bounded time: while the client does not read, reading from the broker pauses, so that the
loss of either is not noticed. A part of a list that is not read within its time ends the session, and a request that is
not answered within its time releases its permit.
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
_AGAIN_S = 0.5  # until a part of a watched list that found no memory is tried again
_HELD = "lists"

Asking = tuple[int, asyncio.Task[None]]
Permits = list[MemoryPermit]


class TopicLists:
    """The topic lists of one session.

    A permit belongs to a request or an answer, and is released when that ends: after all sessions, the limiter has
    every permit back.
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
        """`fail` ends the session of a client that does not read its lists."""
        self._limiter = limiter
        self._tasks = tasks
        self._to_broker = to_broker
        self._to_client = to_client
        self._broker = broker
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        # Requests by id: those that wait for a permit, with their sessions, and those that were forwarded.
        self._asking: dict[int, Asking] = {}
        self._granted: dict[int, Permits] = {}
        self._deadlines: dict[int, asyncio.TimerHandle] = {}  # of the forwarded ones
        # Answers in order, each with its request's id (0: none) and permits.
        self._aside: deque[tuple[bytes, int, Permits]] = deque()
        self._aside_bytes = 0
        self._passing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()  # set while the client reads
        self._room.set()
        self._closed = False

    # -- requests --------------------------------------------------------------------------------------------------

    def wants_of_client(self, kind: int, size: int) -> bool:
        """Whether this frame of the client is for asked(). Raises ProtocolError."""
        if kind in REQUESTS and size > PROXY_LIST_REQUEST_SIZE_MAX:
            raise ProtocolError(
                f"a topic list request must be of at most {PROXY_LIST_REQUEST_SIZE_MAX} bytes, got {size}"
            )
        closes = kind == Command.WATCH_TOPIC_LIST_CLOSE and size <= PROXY_LIST_REQUEST_SIZE_MAX
        return kind in REQUESTS or (closes and bool(self._asking))

    def asked(self, kind: int, frame: Piece) -> None:
        """Take a request for a list, or the end of a watch. Raises ProtocolError."""
        if kind == Command.WATCH_TOPIC_LIST_CLOSE:
            self._unasked(frame)
            return
        request_id = field_of(frame, "request_id")
        if type(request_id) is not int or request_id in self._asking or request_id in self._granted:
            raise ProtocolError(f"the id of a topic list request must be a new int, got {request_id!r:.80}")
        waiting = len(self._asking) + len(self._granted)
        if waiting >= PROXY_LIST_REQUESTS_MAX:
            full = PermitQueueFullError(f"limit of topic list requests per connection reached ({waiting})")
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
                self._give_back(held)  # reading answers is paused
            self._to_broker.put(frame)

    def _unasked(self, frame: Piece) -> None:
        """Drop a waiting request whose watch was ended before a broker received it."""
        session = field_of(frame, "session_id")
        waiting = [ident for ident, (its, _) in self._asking.items() if session and its == session]
        for ident in waiting:
            self._asking.pop(ident)[1].cancel()
        if not waiting:
            self._to_broker.put(bytes(frame))

    # -- answers ---------------------------------------------------------------------------------------------------

    def wants_of_broker(self, kind: int, size: int) -> bool:
        """Whether this frame of the broker is for answered()."""
        if size > _ANSWER_SIZE_MAX:
            return False
        return kind == Command.WATCH_TOPIC_LIST_UPDATE or (bool(self._granted) and kind in _ANSWERS)

    def answered(self, kind: int, frame: Piece) -> None:
        """Take a part of a list, or a possible answer to a request for one. Raises ProtocolError."""
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
        """Pause or resume answers: whether the client's send queue is above the high watermark."""
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
        """Write a part to the socket; its permit is released when it was sent, or with the session."""
        allowed = seconds_to_take(self._to_client.unsent_bytes + len(frame))
        late = TimeoutError(f"a part of a topic list must be read within {allowed:.0f} s, and was not")
        timer = self._loop.call_later(allowed, self._fail, late)

        def taken() -> None:
            timer.cancel()
            self._limiter.release(direct)

        self._to_client.put(frame, taken)

    async def _permit(self, size: int, held: Permits, *, patient: bool) -> MemoryPermit:
        """Acquire direct memory of `size` bytes, and heap memory into `held`, which may hold the request's permit.

        `patient`: an unrequested part, of a watch, cannot be refused: it waits, and reading from the broker pauses.
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
        """Grow the request's permit. If there is no room, release it first and wait for the whole."""
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
        """Release the permits of this answer, of later ones, and of requests whose answers are not being read."""
        self._give_back(held)
        for _, _, others in self._aside:
            self._give_back(others)
        for others in self._granted.values():
            self._give_back(others)

    def close(self) -> None:
        """Release everything: the session has ended. Idempotent."""
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
