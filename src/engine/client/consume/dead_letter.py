"""Messages redelivered too often move to another topic, in transactions: published there and acknowledged here, or not.

There is one transaction at a time, with the letters that are there by then:

    begin         what fails here is no letter's fault: the same letters are tried again after a pause
    publish       and wait until it is durable. After a failure each is tried alone, and one that fails alone is tried
                  again later, while others go on
    acknowledge   unless this consumer has lost one of them meanwhile: the others are tried again
    commit        A transaction that failed in these two steps is aborted, and the broker delivers its messages again:
                  as dead letters, to whichever consumer gets them. Those that it believes to be here are handed back

The broker refuses to acknowledge a message in two transactions, or once more: so each is moved once, by whichever
consumers it was delivered to. What a killed consumer left open is aborted by its timeout.

Most messages are found when they are delivered once too often. One that is handed back with a reason on its last
delivery is moved at once, as only this consumer knows the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.message import Message
from engine._native.format.entry import Entry
from engine._native.format.offsets import range_set, runs
from engine.aio.backoff import RetryDelay
from engine.client.base.options import ConsumerOptions
from engine.client.consume.failure import Failure
from engine.client.consume.letter import TIMEOUT_S_FIRST, TIMEOUT_S_MAX, Letter, LetterProducer, OwnTransaction
from engine.client.consume.opening import opener
from engine.client.net.pool import Pool
from engine.errors import AlreadyClosedError, CorruptionError, DecryptionError, EngineError
from engine.limits import MIB, RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.model.redelivery import DeadLetter

if TYPE_CHECKING:
    from engine.client.transact.transaction import AsyncTransaction

log = logging.getLogger(__name__)

BATCH_MESSAGES = 100  # moved in one transaction
BATCH_BYTES = 1 * MIB
LATE_MAX = 16  # that have failed alone; no others are begun before one of these has been moved
RETRY_S_FIRST = 0.05
RETRY_S_MAX = 30.0
GOODBYE_S_MAX = 2.0
BYTES_MAX = RECEIVE_QUEUE_BYTES

Places = dict[int, BitMap64]  # by segment, offsets


class _Moving(Letter):
    """`life`: of its segment here, when it came. `delays`: after a failure alone."""

    __slots__ = ("delays", "life")

    def __init__(self, message: Message, failure: Failure | None, life: int, delays: RetryDelay) -> None:
        super().__init__(message, failure)
        self.life = life
        self.delays = delays


class DeadLetters:
    """The dead letters of one queue consumer of `source`. Loop thread only.

    `moved`: how many were published and acknowledged. `acknowledge` takes places, and the transaction; it raises
    EngineError unless all of them are acknowledged in it. `hand_back`: has the broker deliver places again.
    """

    def __init__(
        self,
        pool: Pool,
        source: TopicName,
        policy: DeadLetter,
        options: ConsumerOptions,
        *,
        begin: OwnTransaction,
        acknowledge: Callable[[Places, AsyncTransaction], Awaitable[None]],
        hand_back: Callable[[Places], None],
    ) -> None:
        self.moved = 0
        self._pool = pool
        self._source = str(source)
        self._max = policy.max_redeliveries
        self._target = policy.topic_of(source)
        self._producer = LetterProducer(pool, str(options.subscription), self._target, options.decryption_keys)
        self._begin_transaction = begin
        self._acknowledge = acknowledge
        self._hand_back = hand_back
        self._queue = EntryQueue(self._source, MessageId, None, None, opener(options))
        # On their way here: received for the last time; to be tried once more together; each alone; alone and later,
        # a heap of (when due, number, letter).
        self._failed: deque[_Moving] = deque()
        self._again: list[_Moving] = []
        self._alone: deque[_Moving] = deque()
        self._late: list[tuple[float, int, _Moving]] = []
        self._numbers = count()
        self._late_is_next = False
        self._bytes = 0  # of all these, and of those in the transaction
        self._reasons: dict[tuple[int, int], Failure] = {}  # of those that the broker delivers again
        self._lives: dict[int, int] = {}  # by segment, how often its messages were taken back by the broker
        self._pauses = self._delays()
        self._worker: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def _delays(self) -> RetryDelay:
        return RetryDelay(self._pool.options.rng, initial=RETRY_S_FIRST, maximum=RETRY_S_MAX)

    # -- what is to be moved -----------------------------------------------------------------------------------

    def select(self, redelivered: Iterable[tuple[int, int, int]] | None) -> BitMap64:
        """Of [first, last, count], the offsets that were redelivered too often."""
        dead = BitMap64()
        for first, last, times in redelivered or ():
            if times > self._max:
                dead.add_range(first, last + 1)
        return dead

    def push(self, entries: list[Entry], dead: BitMap64, redelivered: Iterable[tuple[int, int, int]]) -> None:
        """Move these messages of the entries, in the background."""
        rest = range_set(entries[0].first_offset, entries[-1].first_offset + entries[-1].count - 1) - dead
        self._queue.push(entries, [(first, last) for first, last in runs(rest)], redelivered)
        self._begin()

    def is_last(self, message: Message) -> bool:
        """Whether this is its last delivery: handed back, it becomes a dead letter."""
        return message.redelivery_count >= self._max

    def push_failed(self, message: Message, failure: Failure) -> None:
        """Move a message that was handed back on its last delivery, in the background."""
        self._failed.append(self._came(message, failure))
        self._begin()

    def _came(self, message: Message, failure: Failure | None) -> _Moving:
        self._bytes += message.size
        return _Moving(message, failure, self._lives.get(message.segment_id, 0), self._delays())

    def _begin(self) -> None:
        self._wake.set()
        if not self._closed and (self._worker is None or self._worker.done()):
            self._worker = self._pool.tasks.spawn(self._work(), name=f"dead letters of {self._source}")

    def drop(self, segment_id: int) -> None:
        """Drop what is queued of a segment: another consumer may get it."""
        self._queue.drop(segment_id)
        self._lives[segment_id] = self._lives.get(segment_id, 0) + 1
        self._failed = deque(self._held(self._failed))
        self._again = self._held(self._again)
        self._alone = deque(self._held(self._alone))
        held = set(map(id, self._held([letter for _, _, letter in self._late])))
        self._late = [one for one in self._late if id(one[2]) in held]
        heapify(self._late)
        self._reasons = {place: reason for place, reason in self._reasons.items() if place[0] != segment_id}

    def _held(self, letters: Iterable[_Moving]) -> list[_Moving]:
        """Those whose segments were not lost meanwhile; the others are given up."""
        held = []
        for letter in letters:
            if self._holds(letter):
                held.append(letter)
            else:
                self._bytes -= letter.message.size
        return held

    def _holds(self, letter: _Moving) -> bool:
        return self._lives.get(letter.message.segment_id, 0) == letter.life

    async def close(self) -> None:
        """Move what was handed back here for the last time, and begin nothing else; what is not moved soon is left to
        the next consumer of the message. Idempotent.
        """
        self._closed = True
        self._wake.set()
        if self._worker is not None:
            _, late = await asyncio.wait([self._worker], timeout=GOODBYE_S_MAX)
            for worker in late:
                worker.cancel()
        closing = asyncio.ensure_future(self._producer.close())
        _, late = await asyncio.wait([closing], timeout=GOODBYE_S_MAX)
        for task in late:
            task.cancel()

    @property
    def full(self) -> bool:
        """Whether so many are queued that no more should be added."""
        return self._queue.bytes + self._bytes >= BYTES_MAX

    # -- which are next ----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._pool.closed:
            self._wake.clear()
            letters = self._batch() if self._closed else self._next()
            if letters:
                await self._move(letters)
            elif self._late and not self._closed:
                await self._wait(self._late[0][0] - asyncio.get_running_loop().time())
            else:
                return

    async def _wait(self, delay_s: float) -> None:
        """Until there is more, or it is closed, but not longer."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _pause(self) -> None:
        """After what is no letter's fault."""
        until = asyncio.get_running_loop().time() + self._pauses.next()
        while not self._closed and (left := until - asyncio.get_running_loop().time()) > 0:
            self._wake.clear()
            await self._wait(left)

    def _next(self) -> list[_Moving]:
        """What to move in the next transaction: by turns a late letter that is due, and others."""
        if self._again:
            letters, self._again = self._again, []
            return letters
        late = bool(self._late) and self._late[0][0] <= asyncio.get_running_loop().time()
        if late and self._late_is_next:
            self._late_is_next = False
            return [heappop(self._late)[2]]
        self._late_is_next = True
        if len(self._late) < LATE_MAX:
            if self._alone:
                return [self._alone.popleft()]
            if letters := self._batch():
                return letters
        return [heappop(self._late)[2]] if late else []

    def _batch(self) -> list[_Moving]:
        letters: dict[tuple[int, int], _Moving] = {}
        size = 0
        while len(letters) < BATCH_MESSAGES and size < BATCH_BYTES:
            if self._failed:
                letter = self._failed.popleft()
            elif not self._closed and (found := self._pop()) is not None:
                letter = self._came(found, self._reasons.pop((found.segment_id, found.offset), None))
            else:
                break
            if letter.place in letters:  # delivered again before it was moved
                self._bytes -= letter.message.size
            else:
                letters[letter.place] = letter
                size += letter.message.size
        return list(letters.values())

    def _pop(self) -> Message | None:
        """The next dead letter. One that is bad, or cannot be decrypted, stays unacknowledged: there is nothing to
        publish.
        """
        while True:
            try:
                return self._queue.pop_message()
            except (CorruptionError, DecryptionError) as e:
                self._queue.damaged(drop=True, closed=isinstance(e, DecryptionError))
                log.warning("%s: a message was redelivered too often, and cannot be moved: %s", self._source, e)

    # -- moving them -------------------------------------------------------------------------------------------

    async def _move(self, letters: list[_Moving]) -> None:
        """Move them in one transaction, or arrange for what comes next."""
        failed, transaction = self._not_begun, None
        try:
            await self._producer.prepare()
            async with self._begin_transaction(self._timeout_s(letters[0])) as transaction:
                failed = self._not_published
                await self._producer.publish(letters, transaction)
                failed = self._lost
                self._check_held(letters)
                failed = self._not_acknowledged
                await self._acknowledge(_places_of(letters), transaction)
                self._check_held(letters)
                await transaction.commit()
        except EngineError as e:
            if transaction is None or transaction.state != "COMMITTED":  # the abort may have found it committed
                if isinstance(e, AlreadyClosedError) and (self._closed or self._pool.closed):
                    return
                if not isinstance(e, AlreadyClosedError):
                    self._warn(letters, e)
                await failed(letters, e)
                return
        self.moved += len(letters)
        self._bytes -= sum(letter.message.size for letter in letters)
        self._pauses.reset()

    def _timeout_s(self, letter: _Moving) -> float:
        failures = self._pauses.attempts + letter.delays.attempts
        return min(TIMEOUT_S_MAX, TIMEOUT_S_FIRST * 2.0 ** min(failures, 10))

    def _check_held(self, letters: list[_Moving]) -> None:
        if not all(map(self._holds, letters)):
            raise AlreadyClosedError(f"{self._source}: a segment was lost while its dead letters were moved")

    def _warn(self, letters: list[_Moving], error: EngineError) -> None:
        first = letters[0].message
        more = "" if len(letters) == 1 else f" and {len(letters) - 1} more"
        log.warning("%d:%d%s of %s cannot go to %s yet: %s", first.segment_id, first.offset, more, self._source,
                    self._target, error)  # fmt: skip

    async def _not_begun(self, letters: list[_Moving], error: EngineError) -> None:
        self._again = self._held(letters)
        await self._pause()

    async def _not_published(self, letters: list[_Moving], error: EngineError) -> None:
        held = self._held(letters)
        if len(letters) > 1:
            self._alone.extend(held)
            return
        for letter in held:
            if letter.make_smaller(error):
                self._again = [letter]
            else:
                due = asyncio.get_running_loop().time() + letter.delays.next()
                heappush(self._late, (due, next(self._numbers), letter))

    async def _lost(self, letters: list[_Moving], error: EngineError) -> None:
        self._again = self._held(letters)

    async def _not_acknowledged(self, letters: list[_Moving], error: EngineError) -> None:
        held = self._held(letters)
        for letter in held:
            self._bytes -= letter.message.size
            if letter.failure is not None:
                self._reasons[letter.place] = letter.failure
        self._hand_back(_places_of(held))
        await self._pause()


def _places_of(letters: Iterable[Letter]) -> Places:
    places: Places = {}
    for letter in letters:
        segment_id, offset = letter.place
        places.setdefault(segment_id, BitMap64()).add(offset)
    return places


def unreadable(entries: list[Entry]) -> BitMap64:
    """Offsets of bad entries, which cannot become dead letters: there is nothing to publish."""
    found = BitMap64()
    for entry in entries:
        if entry.failure is not None:
            found.add_range(entry.first_offset, entry.first_offset + entry.count)
    return found
