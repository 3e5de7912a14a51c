"""A producer's outbox: the native batcher that takes messages, the ledger of what is on its way, a lane per segment.

It decides what goes out when. A batch that is full goes out in the same turn of the loop. With fewer than two flights
on their way, an open batch goes out at the end of the turn, so that one message does not wait and a burst goes
together; otherwise it goes when one of them has come in, or after `Batching.max_delay`.
"""

from __future__ import annotations

import asyncio
import builtins
import math
from collections.abc import Callable, Mapping, Sequence

from engine._native.format import entry as native_entry
from engine._native.produce.batcher import Batcher, SealedEntry
from engine._native.produce.hashing import MURMUR3, XXH64
from engine.client.base.compression import compressor
from engine.client.base.options import ProducerOptions
from engine.client.net.pool import Pool, call_threadsafe, persist
from engine.client.produce.in_flight import Ledger
from engine.client.produce.sender import Lane
from engine.client.produce.sender_attachment import FATAL
from engine.client.produce.succession import Succession
from engine.client.topic.declaring import declare
from engine.client.topic.session import TopicLayout, TopicSession
from engine.client.transact.scope import Scope, scope_of
from engine.errors import AlreadyClosedError, EngineError, ProtocolError, TimeoutError
from engine.model.names import TopicName
from engine.model.transactions import TRANSACTION_OVER

# Sent together and not answered; above it, batches are left open. With one, what is sent while it is on its way waits
# for a whole commit before its own begins; with two, the next commit takes it.
FLIGHTS_MAX = 2
KEY_HASHES = {"xxh64": XXH64, "murmur3": MURMUR3}
WAIT = "wait_for_exclusive"
NEWCOMER_S = 0.2  # who holds a topic claims the segments of a new layout before who wants to


class Outbox:
    """Loop thread only, but for the batcher's own methods. start() makes `batcher` and `ledger`."""

    batcher: Batcher
    ledger: Ledger

    def __init__(self, pool: Pool, topic: TopicName, name: str, options: ProducerOptions) -> None:
        # Fixed.
        self.pool = pool
        self.name = name
        self.access_mode = options.access_mode
        self.properties: Mapping[str, str] = dict(options.properties)
        self.session = TopicSession(pool, topic)
        self._topic = str(topic)
        self._options = options
        self._codec, self._compressor = compressor(options.compression)
        self._loop = asyncio.get_running_loop()

        self.started = False
        self.claim: list[int] | None = None
        self._begun = self._loop.time()
        self.acknowledged_below = 0  # before the batcher is there; it knows then
        self.failure: EngineError | None = None  # why it takes nothing more
        self._succession = Succession(self, self._compress)
        self._lanes = self._succession.lanes
        self._shape: object = None  # of the layout that messages are routed by
        # What is scheduled already.
        self.pumping = False
        self._turning = False
        self._delay: asyncio.TimerHandle | None = None

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, on_full: Callable[[], None] | None) -> None:
        """Look the topic up, attach where the access mode or the name asks for it, take messages.

        A name of the user's own continues its sequence: the first message gets the id after the largest one that is
        durable.
        """
        options = self._options
        await self.session.open()
        try:
            await declare(self.session, options.schema, producer=True)
            if options.name is not None or options.access_mode != "shared":
                patience = self.pool.options.operation_timeout if options.access_mode != WAIT else math.inf
                await persist(self.pool, self._claim, patience, f"attaching to the segments of {self._topic}")
            last = max((lane.last_sequence for lane in self._lanes.values()), default=-1)
            least = self.acknowledged_below
            if options.initial_sequence_id is not None:
                last = options.initial_sequence_id
                least = last + 1
            self._make_batcher(self.session.layout, last + 1, least, on_full)
            self.started = True
            self._set_layout(self.session.layout)
            self.session.follow(self._set_layout, self.lane_fatal, self._set_layout)
            if self.failure is not None:
                raise self.failure
        except BaseException:
            await self.release()
            raise

    async def _claim(self) -> None:
        """Attach to every segment that takes messages now. Raises what the broker answers."""
        while True:
            layout = self.session.layout
            if self._succession.drop_sealed(layout):
                await asyncio.sleep(NEWCOMER_S)
                continue
            self._succession.adopt(layout)
            lanes = [self._lanes[segment.segment_id] for segment in layout.active]  # the first one decides
            for lane in lanes:
                if not lane.attached:
                    await lane.attach()
            if self.session.layout is layout and all(lane.attached for lane in lanes):
                return

    def waited_ms(self) -> int:
        """See LaneOwner."""
        return 0 if self.started else int((self._loop.time() - self._begun) * 1000)

    def _make_batcher(
        self, layout: TopicLayout, first_sequence: int, least_sequence: int, on_full: Callable[[], None] | None
    ) -> None:
        options = self._options
        limit = min(options.max_pending_bytes, self.pool.options.memory_limit)
        self.batcher = Batcher(
            self.name.encode(),
            key_hash=_key_hash(layout),
            bytes_max=options.batching.max_bytes,
            messages_max=options.batching.max_messages,
            pending_bytes_max=limit,
            first_sequence=first_sequence,
            least_sequence=least_sequence,
            steady=options.name is not None,
            on_open=self._on_loop(self._opened),
            on_sealed=self._on_loop(self._sealed),
            on_full=on_full,
            now_ms=self.pool.options.clock.time_ms,
            admit=self._admit,
            account=self.pool.memory.sending,
        )
        self._leave_memory = self.pool.memory.producer_came()
        self.ledger = Ledger(
            self.batcher,
            self._topic,
            send_timeout=options.send_timeout,
            pending_bytes_max=limit,
            memory=self.pool.memory,
            batching=options.batching,
            on_error=options.on_error,
            on_failed=self._message_failed,
            on_expired=self.lane_retiring,
        )

    def _admit(self, transaction: object) -> Scope:
        """The batcher takes messages in another transaction than before. From any thread."""
        scope = scope_of(transaction, self.pool)
        scope.join(self)
        return scope

    def _on_loop(self, function: Callable[[], None]) -> Callable[[], None]:
        """`function`, to be called from any thread where the client is used from several."""
        if not self.pool.options.threadsafe:
            return function
        loop = self._loop
        return lambda: call_threadsafe(loop, function)

    async def release(self) -> None:
        """End every attachment."""
        if self.started:
            self.ledger.stop()
            self.batcher.leave_account()
            self._leave_memory()
        if self._delay is not None:
            self._delay.cancel()
        self.session.close()
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def wait_room(self, timeout: float | None) -> None:
        """Send what is open and wait for room. Raises TimeoutError after `timeout` seconds."""
        self.send_open()
        if not self.ledger.has_room:
            try:
                async with asyncio.timeout(timeout):
                    await self.ledger.wait_room()
            except builtins.TimeoutError as e:
                raise TimeoutError(f"the pending limit was reached and no room came free within {timeout:g} s") from e

    # -- what is scheduled -----------------------------------------------------------------------------------

    def _opened(self) -> None:
        """The batcher holds an open batch again."""
        if self.ledger.flights >= FLIGHTS_MAX or self.pumping:
            if self._delay is None:
                self._delay = self._loop.call_later(self._options.batching.max_delay, self._delay_over)
        elif not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn_over)

    def _sealed(self) -> None:
        """The batcher holds sealed entries again."""
        if not self.pumping:
            self.pumping = True
            self._loop.call_soon(self._pump_scheduled)

    def _turn_over(self) -> None:
        self._turning = False
        self.send_open()

    def _delay_over(self) -> None:
        self._delay = None
        self.send_open()

    def send_open(self) -> None:
        """Close every open batch and send it."""
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        upto = self.batcher.next_sequence  # before the batches close: a message that comes meanwhile stays open
        self.batcher.seal_all()
        self.pump()
        self.ledger.all_entered(upto)

    def _pump_scheduled(self) -> None:
        if self.pumping:
            self.pump()

    def pump(self) -> None:
        """Move sealed entries into their lanes and send."""
        self.pumping = False
        entries = self.batcher.take()
        if not entries:
            return
        if self._compressor is not None:
            self._compress(entries)
        self.ledger.enter(entries)
        if self.failure is not None:
            self.ledger.fail(entries, self.failure)
            return
        lanes = self._lanes
        touched: dict[Lane, None] = {}  # in order, so that a simulation repeats
        for entry in entries:
            lane = lanes[entry.segment_id]
            lane.backlog.queue.append(entry)
            touched[lane] = None
        for lane in touched:
            lane.transmit()

    def _compress(self, entries: Sequence[SealedEntry]) -> None:
        if self._compressor is not None:
            for entry in entries:
                entry.data = native_entry.compress(entry.data, self._codec, self._compressor)

    def take_apart(self, entry: SealedEntry) -> list[SealedEntry]:
        """See LaneOwner."""
        entry.data = self._succession.expanded(entry)
        pieces = self.batcher.take_apart(entry)
        self._compress(pieces)
        self.ledger.replace(entry, pieces)
        return pieces

    def receipts_came(self) -> None:
        """A lane has handed in receipts: where a flight may leave, what is open does, after those who just woke have
        sent.
        """
        if self.ledger.flights < FLIGHTS_MAX and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn_over)

    # -- layout ----------------------------------------------------------------------------------------------

    def _set_layout(self, layout: TopicLayout) -> None:
        """Route by this layout from now on. What is open was routed by the one before, and goes there first."""
        active = layout.active
        shape = [(s.hash_range.start, s.segment_id, list(s.bucket_ends)) for s in active]
        self._succession.adopt(layout)
        if shape != self._shape:
            self._shape = shape
            self.batcher.set_layout([s[0] for s in shape], [s[1] for s in shape], [s[2] for s in shape])
            self.pump()
            self.lane_retiring()
            self._succession.attach_eager()
        self._succession.move_retired(layout)

    def lane_retiring(self) -> None:
        """A retired lane may have heard all that it will hear."""
        self._succession.settle(self.batcher, self.ledger)

    def _message_failed(self, error: Exception) -> None:
        """Who numbers its messages, and has a name to go on under, sends this one again in its next life. Until then
        nothing may overtake it, or it would be taken for something that is stored (semantics 24).
        """
        if isinstance(error, TRANSACTION_OVER):
            return
        if self.failure is None and self.batcher.numbered and self._options.name is not None:
            text = f"an earlier message failed ({error}): make the producer anew, and go on behind"
            ended = AlreadyClosedError(f"{text} its acknowledged_sequence_id")
            self.lane_fatal(error if isinstance(error, FATAL) else ended)

    def refuse(self, error: EngineError) -> None:
        """Take nothing more; what was taken goes out."""
        self.batcher.refuse(error)

    def lane_fatal(self, error: EngineError) -> None:
        """Fenced, refused or deleted: nothing more goes out."""
        self.failure = self.failure or error
        if not self.started:
            return  # start() raises it
        self.batcher.refuse(self.failure)
        self.send_open()
        for lane in self._lanes.values():
            lane.fail_queued(error)


def _key_hash(layout: TopicLayout) -> int:
    if layout.key_hash not in KEY_HASHES:
        raise ProtocolError(f"the topic's key hash is {layout.key_hash!r}; this client knows {', '.join(KEY_HASHES)}")
    return KEY_HASHES[layout.key_hash]
