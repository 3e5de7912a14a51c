"""Clients that write and acknowledge in transactions at random, over topics: committed, aborted, forgotten.

`Transactor` writes; `Transformer` consumes, transforms and produces: what it read is acknowledged in the transaction
that has what it made of it, so that of every message one is made, whatever breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from engine.client.client import AsyncClient
from engine.errors import EngineError, TransactionConflictError, TransactionNotFoundError
from engine.model.positions import MessageId
from engine.testing.history import Call, History, value_of
from engine.testing.workload import ATTEMPTS_MAX, RETRY_S, STILL_S_MAX, SURE_FAILURES, key_text, kill

REFUSED = (*SURE_FAILURES, TransactionConflictError, TransactionNotFoundError)  # nothing of it is ever seen


async def begin(
    history: History, client: AsyncClient, client_name: str, timeout: float, name: str | None = None
) -> Any:
    """A transaction; None when there was no answer."""
    call = history.invoke(client_name, "txn_begin", timeout=timeout, name=name)
    try:
        transaction = await client.transaction(timeout=timeout, name=name)
    except EngineError as e:
        call.info(repr(e))
        return None
    call.ok(transaction=transaction.id, state=str(transaction.state))
    return transaction


async def end(
    history: History, client_name: str, transaction: Any, action: str, accepted: Sequence[str] | None = None
) -> str:
    """Commit or abort it; returns its state, as far as is known."""
    said = {} if accepted is None else {"accepted": list(accepted)}
    call = history.invoke(client_name, "txn_end", transaction=transaction.id, action=action, **said)
    try:
        if action == "abort":
            await transaction.abort()
        elif accepted is None:
            await transaction.commit()
        else:
            await transaction.commit(accepted)
    except (EngineError, asyncio.CancelledError) as e:
        call.info(repr(e))
        if isinstance(e, asyncio.CancelledError):
            raise
        if isinstance(e, TransactionConflictError) and transaction.state != "OPEN":
            history.record(client_name, "txn_state", transaction=transaction.id, state=str(transaction.state))
        return str(transaction.state)
    call.ok(state="ABORTED" if action == "abort" else "COMMITTED")
    return str(transaction.state)


async def record_write(call: Call, sending: Awaitable[MessageId]) -> None:
    """Record how a send in a transaction ends."""
    try:
        message_id = await sending
    except REFUSED as e:
        call.fail(repr(e))
    except (EngineError, asyncio.CancelledError) as e:
        call.info(repr(e))
    else:
        call.ok(segment=message_id.segment_id, offset=message_id.offset)


async def producer_of(history: History, client: AsyncClient, topic: str, name: str) -> Any:
    """A producer, however long it takes."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await client.producer(topic, name=name)
        except EngineError as e:
            history.record(name, "fault", text=f"no producer: {e!r}")
            await asyncio.sleep(RETRY_S)
    raise AssertionError(f"{name} got no producer in {ATTEMPTS_MAX} attempts")


class Transactor:
    """Writes one transaction behind the other, or some at a time."""

    timeouts_s: tuple[float, ...] = (20.0, 60.0)
    at_once = 2
    writes_max = 12
    pause_s_max = 0.5
    commit_rate = 0.6
    forget_rate = 0.1  # of those that are left to their timeout; the rest is aborted
    plain_rate = 0.2  # of what is written outside of transactions, in between

    def __init__(
        self, history: History, client: AsyncClient, name: str, topics: Sequence[str], rng: random.Random, keys: int = 6
    ) -> None:
        self.name = name
        self._history = history
        self._client = client
        self._topics = topics
        self._rng = rng
        self._keys = [None, *(f"{name}-key{i}" for i in range(keys))]
        self._producers: dict[str, Any] = {}
        self._sent = 0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self, count: int) -> None:
        """So many transactions, fewer after stop()."""
        for topic in self._topics:
            self._producers[topic] = await producer_of(self._history, self._client, topic, self.name)
        left = iter(range(count))
        await asyncio.gather(*(self._one_by_one(left) for _ in range(self.at_once)))
        for producer in self._producers.values():
            with contextlib.suppress(EngineError):
                await producer.close()

    async def _one_by_one(self, left: Any) -> None:
        for _ in left:
            if self._stopped:
                return
            await self._transact()
            await asyncio.sleep(self._rng.uniform(0, self.pause_s_max))

    async def _transact(self) -> None:
        timeout = self._rng.choice(self.timeouts_s)
        transaction = await begin(self._history, self._client, self.name, timeout)
        if transaction is None:
            return
        writes = []
        for _ in range(self._rng.randint(1, self.writes_max)):
            plain = self._rng.random() < self.plain_rate
            writes.append(asyncio.create_task(self._write(None if plain else transaction)))
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.uniform(0, self.pause_s_max))
        luck = self._rng.random()
        if luck >= self.commit_rate + self.forget_rate:
            await end(self._history, self.name, transaction, "abort")
        elif luck < self.commit_rate:
            await end(self._history, self.name, transaction, "commit")
        await asyncio.gather(*writes)

    async def _write(self, transaction: Any) -> None:
        topic, key = self._rng.choice(self._topics), self._rng.choice(self._keys)
        self._sent += 1
        value = value_of(self.name, self._sent, key, self._rng.randint(0, 200))
        inside = {} if transaction is None else {"transaction": transaction.id}
        call = self._history.invoke(self.name, "send", value=value.decode(), key=key, topic=topic, **inside)
        producer = self._producers[topic]
        await record_write(
            call, producer.send(value, key=key, **({} if transaction is None else {"transaction": transaction}))
        )


class Transformer:
    """Of each message it makes one in another topic, in the transaction that acknowledges the message."""

    batch_max = 8
    timeout_s = 20.0
    abort_rate = 0.15
    kill_rate = 0.2  # of its lives
    life_s_max = 10.0
    idle_s = 5.0

    def __init__(
        self,
        history: History,
        connect: Callable[[], AsyncClient],
        name: str,
        topics: tuple[str, str],
        subscription: str,
        rng: random.Random,
        *,
        queue: bool = False,
    ) -> None:
        """`topics`: that it consumes, that it produces to. `connect`: a client for the next life."""
        self.name = name
        self.subscription = subscription
        self._history = history
        self._connect = connect
        self._source, self._target = topics
        self._rng = rng
        self._kind = "queue" if queue else "stream"
        self._made = 0
        self._lives = 0
        self._stopped = False

    def stop(self) -> None:
        """End the present life soon."""
        self._stopped = True

    async def run(self) -> None:
        """Run one life after another until stop()."""
        while not self._stopped:
            await self._live(self._rng.uniform(0.5, self.life_s_max), drain=False)

    async def drain(self) -> None:
        """Live until everything there is was transformed."""
        self.abort_rate = self.kill_rate = 0.0
        while not await self._live(float("inf"), drain=True):
            pass
        self._history.record(self.name, "drained", subscription=self.subscription, made=self._target)

    async def _live(self, seconds: float, drain: bool) -> bool:
        """Whether it came to the end of what there is."""
        client = self._connect()
        self._lives += 1
        attach = self._history.invoke(
            self.name, "attach", subscription=self.subscription, kind=self._kind, topic=self._source
        )
        try:
            consumer = await self._attach(client)
            producer = await client.producer(self._target, name=f"{self.name}-{self._lives}")
        except EngineError as e:
            attach.fail(repr(e))
            await client.close()
            await asyncio.sleep(RETRY_S)
            return False
        attach.ok()
        done = False
        try:
            done = await self._transform(client, consumer, producer, attach, seconds, drain)
        except EngineError as e:
            self._history.record(self.name, "fault", text=f"life ended: {e!r}")
        killed = not drain and self._rng.random() < self.kill_rate
        self._history.record(self.name, "detach", attachment=attach.number, killed=killed)
        await (kill(client) if killed else client.close())
        return done

    async def _attach(self, client: AsyncClient) -> Any:
        make = client.queue_consumer if self._kind == "queue" else client.stream_consumer
        return await make(self._source, self.subscription, name=self.name, initial_position="earliest")

    async def _transform(
        self, client: AsyncClient, consumer: Any, producer: Any, attach: Call, seconds: float, drain: bool
    ) -> bool:
        loop = asyncio.get_running_loop()
        until, still_s = loop.time() + seconds, 0.0
        while loop.time() < until and (drain or not self._stopped):
            wait = self.idle_s if drain else min(1.0, max(until - loop.time(), 0.01))
            batch = await consumer.receive_batch(max_messages=self._rng.randint(1, self.batch_max), timeout=wait)
            for message in batch:
                self._write_delivery(attach, message)
            still_s = 0.0 if len(batch) else still_s + wait
            if len(batch):
                await self._transform_batch(client, consumer, producer, attach, batch)
            elif drain and not (self._history.undelivered(self.subscription, self._source) and still_s < STILL_S_MAX):
                return True
        return False

    async def _transform_batch(
        self, client: AsyncClient, consumer: Any, producer: Any, attach: Call, batch: Any
    ) -> None:
        """Raises EngineError when this life is to end, since the batch was not transformed."""
        transaction = await begin(self._history, client, self.name, self.timeout_s)
        if transaction is None:
            raise TransactionNotFoundError("none could be begun")
        sends = [asyncio.create_task(self._make(producer, transaction, message)) for message in batch]
        await asyncio.gather(*sends, self._acknowledge(consumer, attach, transaction, batch))
        action = "abort" if self._rng.random() < self.abort_rate else "commit"
        state = await end(self._history, self.name, transaction, action)
        if state != "COMMITTED" and self._kind == "queue":
            return
        if state == "OPEN":
            raise TransactionConflictError("its outcome is unknown")

    async def _make(self, producer: Any, transaction: Any, message: Any) -> None:
        self._made += 1
        source = message.value.decode()
        self._history.record(self.name, "txn_read", transaction=transaction.id, value=source)
        key = key_text(message.key)
        value = value_of(self.name, self._made, key)
        call = self._history.invoke(
            *(self.name, "send"), value=value.decode(), key=key, topic=self._target, transaction=transaction.id,
            source=source,
        )  # fmt: skip
        await record_write(call, producer.send(value, key=key, transaction=transaction))

    async def _acknowledge(self, consumer: Any, attach: Call, transaction: Any, batch: Any) -> None:
        if self._kind == "queue":
            await asyncio.gather(*(self._acknowledge_one(consumer, attach, transaction, message) for message in batch))
            return
        positions = {str(place): position for place, position in batch.positions.items()}
        said = {"subscription": self.subscription, "positions": positions, "transaction": transaction.id}
        call = self._history.invoke(self.name, "ack", **said)
        await _record_ack(call, consumer.acknowledge_cumulative(batch, transaction=transaction))

    async def _acknowledge_one(self, consumer: Any, attach: Call, transaction: Any, message: Any) -> None:
        place = {"segment": message.segment_id, "offset": message.offset, "attachment": attach.number}
        said = {"subscription": self.subscription, "transaction": transaction.id, **place}
        call = self._history.invoke(self.name, "ack_one", **said)
        await _record_ack(call, consumer.acknowledge(message, transaction=transaction))

    def _write_delivery(self, attach: Call, message: Any) -> None:
        where = {"segment": message.segment_id, "offset": message.offset}
        self._history.record(
            *(self.name, "deliver"), attachment=attach.number, topic=self._source, value=message.value.decode(),
            key=key_text(message.key), **where,
        )  # fmt: skip


async def _record_ack(call: Call, acknowledging: Awaitable[None]) -> None:
    try:
        await acknowledging
    except EngineError as e:
        call.info(repr(e))
    else:
        call.ok()
