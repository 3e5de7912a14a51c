"""Clients that send, read and acknowledge at random and write a history, against simulated and real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.client.client import AsyncClient
from engine.errors import EngineError, InvalidArgumentError, MessageTooLargeError, QueueFullError
from engine.model.positions import Checkpoint, MessageId, split_position
from engine.testing.history import Call, History, parse_value, value_of

SURE_FAILURES = (InvalidArgumentError, MessageTooLargeError, QueueFullError)  # nothing was sent
RETRY_S = 0.5
ATTEMPTS_MAX = 120
IDLE_S = 5.0  # after this long without a message everything there is counts as read
STILL_S_MAX = 60.0  # a final reading that has not reached the end, and gets nothing for so long, gives up
DRAINS_MAX = 3  # lives, where the one before did not come to the end


async def kill(client: AsyncClient) -> None:
    """As if its process had died: its connections break, and it says and does nothing more."""
    pool = client._pool
    pool.closed = True
    for connection in {*pool._connections.values(), *pool._aside}:
        connection.stream.abort()
    await pool.tasks.close()


def key_text(key: bytes | None) -> str | None:
    """The form of a key in a history."""
    return None if key is None else key.decode()


async def record_outcome(call: Call, sending: Awaitable[MessageId]) -> None:
    """Record how a send ends."""
    try:
        message_id = await sending
    except SURE_FAILURES as e:
        call.fail(repr(e))
    except (EngineError, asyncio.CancelledError) as e:
        call.info(repr(e))
    else:
        call.ok(segment=message_id.segment_id, offset=message_id.offset)


class Sender:
    """One producer's life: sends under a few keys, many at a time."""

    def __init__(
        self, history: History, client: AsyncClient, name: str, topic: str, rng: random.Random, keys: int = 4
    ) -> None:
        """`keys`: how many of its own it sends under, beside none."""
        self.name = name
        self.pause_s_max = 0.2
        self.size_max = 300
        self._history = history
        self._client = client
        self._topic = topic
        self._rng = rng
        self._keys = [None, *(f"{name}-key{i}" for i in range(keys))]
        self._sent = 0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self, count: int) -> None:
        """Send `count` messages, fewer after stop(), and wait for all outcomes."""
        producer = await self._producer()
        sends = []
        for _ in range(count):
            if self._stopped:
                break
            sends.append(asyncio.create_task(self._send(producer)))
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.uniform(0, self.pause_s_max))
        await asyncio.gather(*sends)
        with contextlib.suppress(EngineError):  # what failed is in the history, send by send
            await producer.close()

    async def _producer(self) -> Any:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._client.producer(self._topic, name=self.name)
            except EngineError as e:
                self._history.record(self.name, "fault", text=f"no producer: {e!r}")
                await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{self.name} got no producer in {ATTEMPTS_MAX} attempts")

    async def _send(self, producer: Any) -> None:
        key = self._rng.choice(self._keys)
        self._sent += 1
        value = value_of(self.name, self._sent, key, self._rng.randint(0, self.size_max))
        call = self._history.invoke(self.name, "send", value=value.decode(), key=key, topic=self._topic)
        await record_outcome(call, producer.send(value, key=key))


class Reader:
    """A consumer that repeatedly attaches, reads, acknowledges some, and closes."""

    kind = ""

    def __init__(
        self,
        history: History,
        connect: Callable[[], AsyncClient],
        name: str,
        topic: str,
        subscription: str,
        rng: random.Random,
    ) -> None:
        """`connect`: a client for the next life."""
        self.name = name
        self.subscription = subscription
        self.life_s_max = 10.0
        self.ack_rate = 0.5
        self.kill_rate = 0.0  # of the lives that end without a close
        self.idle_s = IDLE_S
        self._history = history
        self._connect = connect
        self._topic = topic
        self._rng = rng
        self._stopped = False

    async def run(self) -> None:
        """Run one life after another until stop()."""
        while not self._stopped:
            await self._live(self._rng.uniform(0.1, self.life_s_max), drain=False)

    def stop(self) -> None:
        """End the present life soon."""
        self._stopped = True

    async def drain(self) -> None:
        """One more life that reads and acknowledges everything there is.

        That is what a final reading has shown, if there was one: a server that takes its time does not end it.
        """
        for _ in range(DRAINS_MAX):
            await self._live(float("inf"), drain=True)
            if not self._history.undelivered(self.subscription, self._topic):
                break
        self._history.record(self.name, "drained", subscription=self.subscription)

    async def _live(self, seconds: float, drain: bool) -> None:
        client = self._connect()
        attach = self._history.invoke(
            self.name, "attach", subscription=self.subscription, kind=self.kind, topic=self._topic, **self._origin()
        )
        try:
            consumer = await self._attach(client)
        except EngineError as e:
            attach.fail(repr(e))
            await client.close()
            await asyncio.sleep(RETRY_S)
            return
        attach.ok()
        try:
            await self._read(consumer, attach, seconds, drain)
        except EngineError as e:
            self._history.record(self.name, "fault", text=f"consumer ended: {e!r}")
        killed = not drain and self.kill_rate > 0 and self._rng.random() < self.kill_rate
        self._write_detach(attach, killed)
        await (kill(client) if killed else client.close())

    async def _read(self, consumer: Any, attach: Call, seconds: float, drain: bool) -> None:
        loop = asyncio.get_running_loop()
        end, still_s = loop.time() + seconds, 0.0
        while loop.time() < end and (drain or not self._stopped):
            wait = self.idle_s if drain else min(1.0, end - loop.time())
            batch = await consumer.receive_batch(max_messages=self._rng.randint(1, 40), timeout=wait)
            still_s = 0.0 if len(batch) else still_s + wait
            if drain and still_s and self._is_drained(still_s):
                return
            for message in batch:
                self._write_delivery(attach, message)
            if len(batch) and (drain or self._rng.random() < self.ack_rate):
                await self._acknowledge(consumer, attach, batch)

    def _is_drained(self, still_s: float) -> bool:
        return still_s >= STILL_S_MAX or not self._history.undelivered(self.subscription, self._topic)

    def _write_detach(self, attach: Call, killed: bool) -> None:
        self._history.record(self.name, "detach", attachment=attach.number, killed=killed)

    def _write_delivery(self, attach: Call, message: Any) -> None:
        self._history.record(
            self.name,
            "deliver",
            attachment=attach.number,
            topic=self._topic,
            value=message.value.decode(),
            key=key_text(message.key),
            segment=message.segment_id,
            offset=message.offset,
            **self._where(message),
        )

    def _where(self, message: Any) -> dict[str, Any]:
        """Further fields of a delivery."""
        return {}

    def _origin(self) -> dict[str, Any]:
        """Further fields of an attach."""
        return {}

    async def _attach(self, client: AsyncClient) -> Any:
        raise NotImplementedError

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        raise NotImplementedError


class StreamReader(Reader):
    """Reads in order, and acknowledges cumulatively."""

    kind = "stream"

    async def _attach(self, client: AsyncClient) -> Any:
        return await client.stream_consumer(self._topic, self.subscription, name=self.name, initial_position="earliest")

    def _where(self, message: Any) -> dict[str, Any]:
        segment, behind = message.segment_id, message.offset + 1
        places = [place for place, position in message.id.positions.items() if position == behind]
        return {"place": max(place for place in places if split_position(place)[0] == segment)}

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        positions = {str(place): position for place, position in batch.positions.items()}
        call = self._history.invoke(self.name, "ack", subscription=self.subscription, positions=positions)
        try:
            await consumer.acknowledge_cumulative(batch)
        except EngineError as e:
            call.info(repr(e))
        else:
            call.ok()


class QueueReader(Reader):
    """Acknowledges one by one, in any order, and negatively acknowledges some."""

    kind = "queue"

    async def _attach(self, client: AsyncClient) -> Any:
        return await client.queue_consumer(self._topic, self.subscription, name=self.name, initial_position="earliest")

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        kept: list[Any] = []
        returned: list[Any] = []
        for message in batch:
            (returned if self._rng.random() < 0.1 else kept).append(message)
        for message in returned:
            await consumer.negative_acknowledge(message)
        await asyncio.gather(*(self._acknowledge_one(consumer, message) for message in kept))

    async def _acknowledge_one(self, consumer: Any, message: Any) -> None:
        call = self._history.invoke(
            self.name, "ack_one", subscription=self.subscription, segment=message.segment_id, offset=message.offset
        )
        try:
            await consumer.acknowledge(message)
        except EngineError as e:
            call.info(repr(e))
        else:
            call.ok()


class CheckpointReader(Reader):
    """Keeps its own positions: each life goes on from a checkpoint of the one before."""

    kind = "reader"
    _start = Checkpoint.earliest()
    _resumes = -1

    def _origin(self) -> dict[str, Any]:
        return {"resumes": self._resumes}

    async def _attach(self, client: AsyncClient) -> Any:
        return await client.checkpoint_consumer(self._topic, start=self._start)

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        self._start = Checkpoint.from_bytes((await consumer.checkpoint()).to_bytes())
        self._resumes = self._history.record(self.name, "checkpoint", attachment=attach.number)


class Shaper:
    """Changes a topic's shape at random: splits, merges, rebuckets, and asks for what cannot be."""

    def __init__(self, history: History, topic: str, rng: random.Random, segments_max: int = 8) -> None:
        self.done = 0
        self._history = history
        self._topic = topic
        self._rng = rng
        self._segments_max = segments_max

    async def change(self, admin: Any) -> bool:
        """One change through an admin, of whatever kind; whether it was made. Its layout goes into the history."""
        try:
            write_layout(self._history, self._topic, metadata := await admin.get_metadata(self._topic))
            what, method, *arguments = self._choose(admin, metadata)
            after = await method(self._topic, *arguments)
        except EngineError as e:
            self._history.record("shaper", "fault", text=f"no change: {e!r}")
            return False
        write_layout(self._history, self._topic, after)
        self._history.record("shaper", "fault", text=f"{what} {arguments}")
        self.done += 1
        return True

    def _choose(self, admin: Any, metadata: dict[str, Any]) -> tuple[Any, ...]:
        active = [s for s in metadata["segments"].values() if s["state"] == "ACTIVE"]
        active.sort(key=lambda s: s["hashRange"]["start"])
        place = self._rng.randrange(len(active))
        segment = active[place]["segmentId"]
        luck = self._rng.random()
        if luck < 0.15:
            return "rebucket", admin.rebucket_segment, segment, self._rng.randint(1, 8)
        if len(active) > 1 and (luck < 0.5 or len(active) >= self._segments_max):
            place = min(place, len(active) - 2)
            pair = [active[place]["segmentId"], active[place + 1]["segmentId"]]
            return "merge", admin.merge_segments, *self._rng.sample(pair, 2)
        return "split", admin.split_segment, segment


async def read_all(
    history: History, client: AsyncClient, topic: str, reading: int | str, idle_s: float = IDLE_S
) -> int:
    """One final reading, from earliest to the ends that the topic's segments have; how many messages.

    It is over when these are reached: a server that takes its time does not end it. After `idle_s` without a message
    the ends are asked for again; one that stands still for STILL_S_MAX is given up, and says so. Raises what reading
    raises.
    """
    history.record("final", "reading", reading=reading)
    ends, count, still_s = await _ends(client, topic), 0, 0.0
    consumer = await client.checkpoint_consumer(topic, start=Checkpoint.earliest())
    while missing := _missing(ends, (await consumer.checkpoint()).positions):
        batch = await consumer.receive_batch(max_messages=1000, timeout=idle_s)
        for message in batch:
            _write_final(history, topic, reading, message)
        count, still_s = count + len(batch), 0.0 if len(batch) else still_s + idle_s
        if still_s >= STILL_S_MAX:
            history.record("final", "fault", text=f"reading {reading} stands still before {missing}")
            break
        if still_s:
            ends = await _ends(client, topic)
    await consumer.close()
    return count


async def _ends(client: AsyncClient, topic: str) -> Mapping[int, int]:
    """{segment id: offset behind its last message}, as the segments' owners say."""
    consumer = await client.checkpoint_consumer(topic, start=Checkpoint.latest())
    positions = (await consumer.checkpoint()).positions
    await consumer.close()
    return positions


def _missing(ends: Mapping[int, int], positions: Mapping[int, int]) -> dict[int, int]:
    """The ends that the reading has not reached."""
    return {segment: end for segment, end in ends.items() if positions.get(segment, 0) < end}


def _write_final(history: History, topic: str, reading: int | str, message: Any) -> None:
    parse_value(message.value)
    history.record(
        "final",
        "final",
        reading=reading,
        topic=topic,
        value=message.value.decode(),
        key=key_text(message.key),
        segment=message.segment_id,
        offset=message.offset,
    )


def write_layout(history: History, topic: str, metadata: dict[str, Any]) -> None:
    """Put a topic's metadata (the specification's JSON) into a history."""
    segments = [
        {"id": s["segmentId"], "start": s["hashRange"]["start"], "end": s["hashRange"]["end"], "state": s["state"]}
        for s in metadata["segments"].values()
    ]
    history.record("admin", "layout", topic=topic, epoch=metadata["epoch"], segments=segments)
