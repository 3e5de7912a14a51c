"""`AsyncTableView`: the latest value of each key of a topic, followed as it changes.

It is a dict that a checkpoint consumer fills, from the earliest message on: parents before children, so that the last
message of a key is the last one sent, across splits and merges. Connections that are lost and segments that move are
the consumer's matter.

What the view has applied is known as a position in each segment. refresh() asks the owners of the segments where these
end, and waits until the view is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar

from engine.client.base.html import HtmlRecord
from engine.client.base.options import Keys, check_count, consumer_options
from engine.client.base.owned import Owned
from engine.client.base.schema import Schema
from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from engine.client.ranges.topic_view import AsyncTopicView
from engine.errors import AlreadyClosedError, EngineError, InvalidArgumentError, MemoryLimitError, TimeoutError
from engine.model.positions import Checkpoint

if TYPE_CHECKING:
    from engine._native.consume.batch import MessageBatch
    from engine.client.net.pool import Pool
    from engine.model.names import TopicName

log = logging.getLogger(__name__)

V = TypeVar("V")
BATCH_MESSAGES = 8_192
IDLE_S = 1.0  # after which positions are looked at without a message: behind the last may be what was aborted
COST = 120  # bytes of a key and a value beside their text

Changed = Callable[[bytes, Any], object]


class TableViewKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.table_view, without the schema."""

    max_bytes: int | None
    create: bool
    on_corrupt: str
    decryption_keys: Keys | None


@dataclass(frozen=True, slots=True)
class TableViewStatistics(HtmlRecord):
    """`keys`, `bytes`: what the view holds now; bytes of keys and values, and about what Python takes for them.
    `messages`: that it has read; of these `removals`, and `keyless` ones, which it leaves out.
    """

    keys: int
    bytes: int
    messages: int
    removals: int
    keyless: int


class AsyncTableView(Owned, Generic[V]):
    """The latest value of each key. Made by `client.table_view()`; usable with `async with`.

    A Mapping but for being awaited where it may wait: `view[key]`, `get`, `in`, `len`, `keys()`, `values()`, `items()`
    and iteration read what is there, and never wait. Keys are given as bytes or text, and come back as bytes. Every
    method raises AlreadyClosedError after close(), and the reason when the view could not go on.
    """

    def __init__(
        self, consumer: AsyncCheckpointConsumer[V], ends: AsyncTopicView, schema: Schema[V], max_bytes: int | None
    ) -> None:
        self._consumer, self._ends, self._schema, self._max_bytes = consumer, ends, schema, max_bytes
        self._latest: dict[bytes, bytes] = {}
        self._applied: Mapping[int, int] = {}
        self._bytes = self._messages = self._removals = self._keyless = 0
        self._listeners: dict[object, Changed] = {}
        self._waiting: set[asyncio.Future[None]] = set()  # for whatever comes next
        self._failure: EngineError | None = None
        self._closed = False
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is there. Raises as refresh()."""
        try:
            await self._consumer.start(Checkpoint.earliest())
            await self._ends.start()
        except BaseException:
            await self.close()
            raise
        self._following = asyncio.get_running_loop().create_task(
            self._follow(), name=f"engine: table view of {self.topic}"
        )
        try:
            await self.refresh()
        except BaseException:
            await self.close()
            raise

    # -- following ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            while True:
                batch = await self._consumer.receive_batch(BATCH_MESSAGES, timeout=IDLE_S)
                self._apply(batch)
                self._applied = self._consumer.checkpoint_now().positions
                self._wake()
                if len(batch):
                    await asyncio.sleep(0)
        except EngineError as e:
            self._failure = self._failure or e
        finally:
            self._wake()

    def _apply(self, batch: MessageBatch[V]) -> None:
        """The last of a batch's messages of one key is all that is told of it."""
        changed: dict[bytes, bytes | None] = {}
        for key, value in ((message.key, message.encoded_value) for message in batch):
            self._messages += 1
            if key is None:
                self._keyless += 1
                continue
            self._put(key, value)
            changed[key] = value or None
        for key, one in changed.items() if self._listeners else ():
            self._tell(key, one)
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise MemoryLimitError(
                f"the table view of {self.topic} has {self._bytes:,} bytes in {len(self._latest):,} keys, over its "
                f"max_bytes of {self._max_bytes:,}"
            )

    def _put(self, key: bytes, value: bytes) -> None:
        before = self._latest.get(key)
        if before is not None:
            self._bytes -= len(key) + len(before) + COST
        if value:
            self._latest[key] = value
            self._bytes += len(key) + len(value) + COST
        else:
            self._latest.pop(key, None)
            self._removals += 1

    def _tell(self, key: bytes, value: bytes | None) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(key, None if value is None else self._decoded(value))
            except Exception:  # a listener's own, or a value that the schema cannot read: the view goes on
                log.exception("%s: a listener of the table view failed for the key %r", self.topic, key)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def _until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Whether `reached` has come true in time. Raises the failure of the view."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not reached():
            self._check_open()
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return False
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            await asyncio.wait([future], timeout=left)
            self._waiting.discard(future)
        return True

    # -- reading -----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError(f"the table view of {self.topic} was closed")
        if self._failure is not None:
            raise self._failure

    def _decoded(self, value: bytes) -> V:
        return self._schema.decode(value)  # type: ignore[no-any-return]

    def __getitem__(self, key: bytes | str) -> V:
        """The latest value. Raises KeyError; SchemaError for a value that the schema cannot read."""
        self._check_open()
        return self._decoded(self._latest[_key(key)])

    def get(self, key: bytes | str, default: V | None = None) -> V | None:
        """The latest value, or `default`. Raises SchemaError."""
        self._check_open()
        value = self._latest.get(_key(key))
        return default if value is None else self._decoded(value)

    def __contains__(self, key: object) -> bool:
        self._check_open()
        return isinstance(key, bytes | str) and _key(key) in self._latest

    def __len__(self) -> int:
        self._check_open()
        return len(self._latest)

    def __iter__(self) -> Iterator[bytes]:
        """The keys, as they are now."""
        return iter(self.keys())

    def keys(self) -> list[bytes]:
        """The keys, as they are now. A new list, as those of values() and items()."""
        self._check_open()
        return list(self._latest)

    def values(self) -> list[V]:
        """The latest value of every key. Raises SchemaError."""
        self._check_open()
        return [self._decoded(value) for value in list(self._latest.values())]

    def items(self) -> list[tuple[bytes, V]]:
        """Keys and their latest values. Raises SchemaError."""
        self._check_open()
        return [(key, self._decoded(value)) for key, value in list(self._latest.items())]

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._ends.topic

    def statistics(self) -> TableViewStatistics:
        """A frozen record of what it holds and has read."""
        return TableViewStatistics(len(self._latest), self._bytes, self._messages, self._removals, self._keyless)

    # -- waiting -----------------------------------------------------------------------------------------------

    async def refresh(self, timeout: float | None = None) -> None:
        """Wait until the view has all that was acknowledged to its producers before this call.

        Raises TimeoutError after `timeout` seconds (None: as long as it takes), NotFoundError when the topic is gone,
        ConnectError, and what the view failed with.
        """
        self._check_open()
        facts = await self._ends.segments()
        ends = {i: (s.first, s.end) for i, s in facts.segments.items()}

        def reached() -> bool:
            return all(max(first, self._applied.get(i, 0)) >= end for i, (first, end) in ends.items() if self._has(i))

        if not await self._until(reached, timeout):
            raise TimeoutError(f"the table view of {self.topic} is not up to date within {timeout:g} s")

    def _has(self, segment_id: int) -> bool:
        """Whether there is such a segment still: one that retention has deleted is not waited for."""
        return segment_id in self._consumer.session.layout.segments

    async def wait(self, condition: Callable[[Self], object], timeout: float | None = None) -> bool:
        """Wait until `condition(view)` is true, asking after every change; whether it was within `timeout` seconds."""
        return await self._until(lambda: bool(condition(self)), timeout)

    def listen(self, changed: Changed, *, existing: bool = False) -> Callable[[], None]:
        """Call `changed(key, value)` for every change from now on, on the loop's thread; a removed key has the value
        None. Of messages that came together, the last of each key is told. Returns what ends it.

        `existing`: what the view holds now is told first, at once. What it raises is logged.
        """
        self._check_open()
        if not callable(changed):
            raise InvalidArgumentError(f"changed must be callable, got {type(changed).__name__}")
        token = object()
        if existing:
            for key, value in list(self._latest.items()):
                changed(key, self._decoded(value))
        self._listeners[token] = changed
        return lambda: _forget(self._listeners, token)

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._closed

    async def close(self) -> None:
        """Stop following. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._consumer.close()
        await self._ends.close()
        if self._following is not None:
            await asyncio.wait([self._following])
        self._latest.clear()
        if self.on_closed is not None:
            self.on_closed()

    def __repr__(self) -> str:
        held = "closed" if self._closed else f"{len(self._latest):,} keys, {self._bytes:,} bytes"
        return f"<{type(self).__name__} of {self.topic}: {held}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _key(key: bytes | str) -> bytes:
    if not isinstance(key, bytes | str):
        raise InvalidArgumentError(f"a key must be bytes or text, got {type(key).__name__}")
    return key.encode() if isinstance(key, str) else key


def _forget(listeners: dict[object, Changed], token: object) -> None:
    listeners.pop(token, None)


def make_table_view(
    pool: Pool,
    topic: TopicName,
    make_name: Callable[[str], str],
    schema: object,
    *,
    max_bytes: int | None = None,
    create: bool = True,
    on_corrupt: str = "stop",
    decryption_keys: Keys | None = None,
) -> AsyncTableView[Any]:
    """See AsyncClient.table_view; it is not started yet. Raises InvalidArgumentError."""
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    options = consumer_options(
        make_name, None, schema=schema, create_topic=create, on_corrupt=on_corrupt, decryption_keys=decryption_keys,
        receive_queue_size="auto",
    )  # fmt: skip
    consumer = AsyncCheckpointConsumer[Any](pool, topic, options)
    return AsyncTableView[Any](consumer, AsyncTopicView(pool, topic, make_name("view")), options.schema, max_bytes)
