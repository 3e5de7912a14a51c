"""A producer's outbox: the native batcher that takes messages, what is in flight, and a sender per segment.

The way of a message. The batcher puts it into the open batch of its bucket, by the hash of its key and the layout in
use. A closed batch is a sealed entry: pump() compresses and encrypts it, adds it to what is in flight, and queues it at
the sender of its segment, which sends it when it is attached. All this happens in the order of the sequence numbers, so
the messages of a key stay in order.

When a batch is sent. A full batch at the end of this turn of the loop. With fewer than two flights outstanding, an open
batch too, so that a single message does not wait and a burst is sent together; otherwise when a flight is answered, or
after `Batching.max_delay`. With one, a message sent meanwhile would wait for a whole commit before its own begins; with
two, the next commit includes it.

When the layout changes. What is sealed was routed by the old layout, and is queued at the old senders first. Then the
batcher routes by the new layout; senders of sealed segments retire, and hand on to their successors what was not stored
(succession.py).
"""

from __future__ import annotations

import asyncio
import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine._native.format import entry as native_entry
from engine._native.produce.batcher import Batcher
from engine._native.produce.hashing import KEY_HASHES
from engine._native.produce.outgoing import Turns
from engine._native.produce.sealed import SealedEntry
from engine.client.base.options import ProducerOptions
from engine.client.net.pool import Pool, call_threadsafe, persist
from engine.client.produce.in_flight import InFlight
from engine.client.produce.sender import FATAL
from engine.client.produce.succession import Succession
from engine.client.topic.declaring import declare
from engine.client.topic.layout import TopicLayout
from engine.client.topic.session import TopicSession
from engine.client.transact.scope import Scope, scope_of
from engine.errors import AlreadyClosedError, EngineError, ProtocolError, TimeoutError
from engine.limits import ENTRY_SIZE_MAX, ENVELOPE_SIZE_MAX
from engine.model.access import AccessMode
from engine.model.compression import compressor, decompressor
from engine.model.generated_names import drawn, generated
from engine.model.names import TopicName
from engine.model.transactions import TRANSACTION_OVER

if TYPE_CHECKING:
    from engine.client.base.encryption import Encryptor
    from engine.clock import Clock

NEWCOMER_S = 0.2  # the pause that lets a topic's present producer claim the segments of a new layout first


class Outbox(Turns):
    """Loop thread only, but for the batcher's own methods. start() makes `batcher` and `in_flight`."""

    in_flight: InFlight

    def __init__(
        self, pool: Pool, topic: TopicName, name: str | None, options: ProducerOptions, secret: bytes | None = None
    ) -> None:
        """`name`: None for one that is generated. `secret`: of which the given name was generated, if it was."""
        # Fixed.
        self.pool = pool
        self.name_proof = secret if name else drawn(pool.options.rng)  # the secret of a generated name
        self.name = name or generated(self.name_proof or b"")
        self.access_mode = options.access_mode
        self.properties: Mapping[str, str] = dict(options.properties)
        self.session = TopicSession(pool, topic)
        self._topic = str(topic)
        self._options = options
        self._codec, self._compressor = compressor(options.compression)
        self._encryptor = encryptor(options, pool.options.clock)
        loop = asyncio.get_running_loop()

        self.started = False
        self.claim: list[int] | None = None
        self._begun = loop.time()
        self.acknowledged_below = 0  # before start() has made the batcher
        opened = decompressor() if self._encryptor is None else self._encryptor.open
        self._succession = Succession(self, self.pack, opened)
        seals = self._compressor is not None or self._encryptor is not None
        super().__init__(loop, options.batching.max_delay, seals, self._succession.senders)
        self._shape: object = None  # active segments of the layout that messages are routed by

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, on_full: Callable[[], None] | None) -> None:
        """Look the topic up, attach where the access mode or the name asks for it, take messages.

        With a name of the program's own the sequence continues: the first message gets the id after the largest
        durable one.
        """
        options = self._options
        await self.session.open()
        try:
            await declare(self.session, options.schema, producer=True)
            if options.name is not None or options.access_mode != AccessMode.SHARED:
                waits = options.access_mode == AccessMode.WAIT_FOR_EXCLUSIVE
                patience = math.inf if waits else self.pool.options.operation_timeout
                await persist(self.pool, self._claim, patience, f"attaching to the segments of {self._topic}")
            last = max((sender.last_sequence for sender in self.senders.values()), default=-1)
            least = self.acknowledged_below
            if options.initial_sequence_id is not None:
                last = options.initial_sequence_id
                least = last + 1
            self._make_batcher(self.session.layout, last + 1, least, on_full)
            self.started = True
            self._set_layout(self.session.layout)
            self.session.follow(self._set_layout, self.fail, self._set_layout)
            if self.failure is not None:
                raise self.failure
        except BaseException:
            await self.release()
            raise

    async def _claim(self) -> None:
        """Attach to every active segment. Raises what the broker answers."""
        while True:
            layout = self.session.layout
            if self._succession.drop_sealed(layout):
                await asyncio.sleep(NEWCOMER_S)
                continue
            self._succession.adopt(layout)
            senders = [self.senders[segment.segment_id] for segment in layout.active]  # the first one decides
            for sender in senders:
                if not sender.attached:
                    await sender.attach()
            if self.session.layout is layout and all(sender.attached for sender in senders):
                return

    def waited_ms(self) -> int:
        """See SenderOwner."""
        return 0 if self.started else int((self.loop.time() - self._begun) * 1000)

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
            on_open=self._on_loop(self.opened),
            on_sealed=self._on_loop(self.sealed),
            on_full=on_full,
            now_ms=self.pool.options.clock.time_ms,
            admit=self._admit,
            account=self.pool.memory.sending,
            entry_size_max=ENTRY_SIZE_MAX if self._encryptor is None else ENTRY_SIZE_MAX - ENVELOPE_SIZE_MAX,
        )
        self._leave_memory = self.pool.memory.producer_came()
        self.in_flight = InFlight(
            self.batcher,
            self._topic,
            send_timeout=options.send_timeout,
            pending_bytes_max=limit,
            memory=self.pool.memory,
            batching=options.batching,
            on_error=options.on_error,
            on_failed=self._message_failed,
            on_expired=self.settle_retired,
            asked=self.pool.process,
            slowed=lambda: (entry for sender in self.senders.values() for entry in sender.slowed()),
        )

    def _admit(self, transaction: object) -> Scope:
        """The batcher takes a message of another transaction than the one before. From any thread."""
        scope = scope_of(transaction, self.pool)
        scope.join(self)
        return scope

    def _on_loop(self, function: Callable[[], None]) -> Callable[[], None]:
        """`function`, made callable from any thread where the client is threadsafe."""
        if not self.pool.options.threadsafe:
            return function
        loop = self.loop
        return lambda: call_threadsafe(loop, function)

    async def release(self) -> None:
        """End every attachment."""
        if self.started:
            self.in_flight.stop()
            self.batcher.leave_account()
            self._leave_memory()
        if self.delay is not None:
            self.delay.cancel()
        self.session.close()
        await asyncio.gather(*(sender.close() for sender in self.senders.values()))

    async def wait_room(self, timeout: float | None) -> None:
        """Send what has to be sent for it, and wait for room. Raises TimeoutError after `timeout` seconds."""
        if self.in_flight.has_memory:  # else only what is in flight is too much, and open batches may fill meanwhile
            self.pump()
        else:
            self.send_open()
        if not self.in_flight.has_room:
            try:
                async with asyncio.timeout(timeout):
                    await self.in_flight.wait_room()
            except builtins.TimeoutError as e:
                raise TimeoutError(f"the pending limit was reached, and no room was freed within {timeout:g} s") from e

    # -- what is sent ----------------------------------------------------------------------------------------

    def pack(self, entries: Sequence[SealedEntry]) -> None:
        """See Turns: compress them, and then encrypt them."""
        for entry in entries:
            if self._compressor is not None:
                entry.data = native_entry.compress(entry.data, self._codec, self._compressor)
            if self._encryptor is not None:
                entry.data = self._encryptor.encrypt(entry.data)

    def take_apart(self, entry: SealedEntry) -> list[SealedEntry]:
        """See SenderOwner."""
        entry.data = self._succession.expanded(entry)
        pieces = self.batcher.take_apart(entry)
        self.pack(pieces)
        self.in_flight.replace(entry, pieces)
        return pieces

    # -- layout ----------------------------------------------------------------------------------------------

    def _set_layout(self, layout: TopicLayout) -> None:
        """Route by this layout from now on. Open batches were routed by the one before, and are sent there first."""
        active = layout.active
        shape = [(s.hash_range.start, s.segment_id, list(s.bucket_ends)) for s in active]
        self._succession.adopt(layout)
        if shape != self._shape:
            self._shape = shape
            self.batcher.set_layout([s[0] for s in shape], [s[1] for s in shape], [s[2] for s in shape])
            self.pump()
            self.settle_retired()
            self._succession.attach_eager()
        self._succession.move_retired(layout)

    def settle_retired(self) -> None:
        """See SenderOwner."""
        self._succession.settle(self.batcher, self.in_flight)

    def _message_failed(self, error: Exception) -> None:
        """End a named producer that was given sequence ids: the program sends the failed message again, with a new
        producer of the name. If a later message was stored first, it would be taken for a duplicate (semantics 24).
        """
        if isinstance(error, TRANSACTION_OVER):
            return
        if self.failure is None and self.batcher.numbered and self._options.name is not None:
            text = f"an earlier message failed ({error}): make a new producer, and continue behind"
            ended = AlreadyClosedError(f"{text} its acknowledged_sequence_id")
            self.fail(error if isinstance(error, FATAL) else ended)

    def refuse(self, error: EngineError) -> None:
        """Take nothing more; what was taken is sent."""
        self.batcher.refuse(error)

    def fail(self, error: EngineError) -> None:
        """Fenced, refused or deleted: nothing more is sent."""
        self.failure = self.failure or error
        if not self.started:
            return  # start() raises it
        self.batcher.refuse(self.failure)
        self.send_open()
        for sender in self.senders.values():
            sender.fail_queued(error)


def encryptor(options: ProducerOptions, clock: Clock) -> Encryptor | None:
    """What encrypts its entries; None without keys. Raises InvalidArgumentError, UnsupportedError."""
    if options.encryption_keys is None:
        return None
    from engine.client.base.encryption import Encryptor  # loads cryptography

    return Encryptor(options.encryption_keys, clock)


def _key_hash(layout: TopicLayout) -> int:
    if layout.key_hash not in KEY_HASHES:
        raise ProtocolError(f"the topic's key hash is {layout.key_hash!r}; this client knows {', '.join(KEY_HASHES)}")
    return KEY_HASHES[layout.key_hash]
