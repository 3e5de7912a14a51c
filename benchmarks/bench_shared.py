"""What a broker pays for sharing a segment: four consumers of its buckets together, beside one that reads it alone.

Over TCP to raw clients in the broker's process: they count what comes, and acknowledge it, so little else is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from typing import Any, ClassVar

from support import TINY, directory, run

from engine._native.produce.batcher import Batcher
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.wire import commands
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION
from engine.wire.connector import SocketConnector

BUCKETS = 16
SHARERS = 4
REPEATS = 1 if TINY else 5
FRAMES_PER_ACK = 8
MUCH = 1 << 40
NAME = "segment://public/default/bench/0000-ffff-0"
ENDS = [0x10000 // BUCKETS * (i + 1) - 1 for i in range(BUCKETS)]
_ENTRY = struct.Struct("<4xI12xI64xQ")  # size, count, first offset, as in _native/format/layout.pxd


class Client:
    """One connection. Requests are answered by futures; messages are counted."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.messages = 0
        self.frames = 0
        self.upto = 0
        self.last_ack: asyncio.Future[Any] | None = None
        self.say_ack: dict[str, Any] = {}
        self.came: asyncio.Event | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)

    @classmethod
    async def connect(cls, url: str) -> Client:
        client = cls()
        await SocketConnector().connect(url, client._made)
        client.stream.send(
            commands.Connect(magic=MAGIC, protocol=PROTOCOL_VERSION, features=list(FEATURES), client="bench")
        )
        return client

    def _made(self, stream: Any) -> Client:
        self.stream = stream
        return self

    def frame_received(self, header: commands.Header, payload: memoryview) -> None:
        if isinstance(header, commands.Message):
            self._count(header, payload)
        elif isinstance(header, commands.Error):
            raise RuntimeError(header.message)
        elif isinstance(header, commands.SendReceipt):
            self.messages += len(header.sequences)
            if self.came is not None:
                self.came.set()
        elif (answer := self._answers.pop(getattr(header, "request_id", None) or 0, None)) is not None:
            answer.set_result(header)

    def _count(self, header: commands.Message, payload: memoryview) -> None:
        at = 0
        while at < len(payload):
            size, count, first = _ENTRY.unpack_from(payload, at)
            at += size
        self.upto = first + count
        self.messages += header.messages
        self.frames += 1
        if self.frames % FRAMES_PER_ACK == 0:
            self.acknowledge()
        if self.came is not None:
            self.came.set()

    def acknowledge(self) -> None:
        """All that came, of the buckets that are its own."""
        said = self.say_ack
        where = {"buckets": [[b, self.upto] for b in said["own"]]} if "own" in said else {"position": self.upto}
        self.last_ack = self.ask(commands.Ack, consumer_id=said["consumer_id"], ack_type="cumulative", **where)

    def ask(self, kind: type[commands.Request[Any]], **fields: Any) -> asyncio.Future[Any]:
        request_id = next(self._ids)
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        self.stream.send(kind(request_id=request_id, **fields))
        return answer

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


def entries_of(per_entry: int, count: int) -> list[bytes]:
    """Entries of 100-byte messages with keys all over the ring, each full but the last ones."""
    batcher = Batcher(b"p", messages_max=per_entry, pending_bytes_max=1 << 40)
    batcher.set_layout([0], [0], [ENDS])
    value = bytes(100)
    for i in range(count):
        batcher.add(value, b"key-%d" % (i * 7919 % 100_003))
    batcher.seal_all()
    return [bytes(sealed.data) for sealed in batcher.take()]


async def publish(broker: Broker, url: str, entries: list[bytes]) -> None:
    """A topic with these entries."""
    await broker.admin.create_topic("bench", entry_buckets=BUCKETS, durability="os")
    client = await Client.connect(url)
    client.came = asyncio.Event()
    await client.ask(commands.Producer, producer_id=1, topic=NAME, producer_name="p", access_mode="shared")
    for start in range(0, len(entries), 32):
        some = entries[start : start + 32]
        client.stream.send(commands.Send(producer_id=1, entries=len(some)), some)
        while client.messages < start + len(some) - 256:
            client.came.clear()
            await client.came.wait()
    while client.messages < len(entries):
        client.came.clear()
        await client.came.wait()


async def rate(broker: Broker, url: str, subscription: str, mode: str, count: int) -> float:
    """Messages per second of processor time, from the first credit until all of it is acknowledged."""
    clients = [await Client.connect(url) for _ in range(SHARERS if mode == "shared" else 1)]
    came = asyncio.Event()
    for number, client in enumerate(clients):
        ident = next(client._ids)
        client.came = came
        client.say_ack = {"consumer_id": ident}
        subscribe = {"consumer_id": ident, "topic": NAME, "subscription": subscription, "mode": mode}
        if mode == "shared":
            subscribe["bucketBoundaries"] = ENDS
        await client.ask(commands.Subscribe, consumer_name=f"c{number}", initial_position="earliest", **subscribe)
    if mode == "shared":
        (hosted,) = [h for h in broker.segments if h.subscriptions]
        dispatcher = hosted.subscriptions[subscription]._shared
        for client, sharer in zip(clients, dispatcher.consumers, strict=True):
            client.say_ack["own"] = [b for b, owner in enumerate(dispatcher._owners) if owner == sharer.number]
    start = time.process_time()
    for client in clients:
        client.stream.send(commands.Flow(consumer_id=client.say_ack["consumer_id"], messages=MUCH, bytes=MUCH))
    while sum(client.messages for client in clients) < count:
        came.clear()
        await came.wait()
    for client in clients:
        client.acknowledge()
        await client.last_ack
    seconds = time.process_time() - start
    for client in clients:
        client.stream.close()
    return count / seconds


class Shared:
    """A segment of 16 buckets read from the start: by four sharers, and by one consumer alone, in turns."""

    timeout = 600
    params: ClassVar = [10, 100] if TINY else [10, 1000]
    param_names: ClassVar = ["messages an entry"]

    def rates(self, per_entry: int) -> list[tuple[float, float]]:
        """(alone, shared) in messages per second, time after time."""
        count = 2_000 if TINY else 500_000 if per_entry < 100 else 2_000_000
        entries = entries_of(per_entry, count)

        async def main(path: str) -> list[tuple[float, float]]:
            broker = Broker(path, config=BrokerConfig())
            await broker.start()
            try:
                host, port = await broker.serve("127.0.0.1", 0)
                url = f"engine://{host}:{port}"
                await publish(broker, url, entries)
                found = []
                for turn in range(REPEATS):
                    alone = await rate(broker, url, f"alone-{turn}", "exclusive", count)
                    found.append((alone, await rate(broker, url, f"shared-{turn}", "shared", count)))
                return found
            finally:
                await broker.close()

        with directory() as path:
            return run(main(path))

    def track_ratio(self, per_entry: int) -> float:
        """Shared over alone, median of the turns; 0.7 is wanted."""
        ratios = sorted(shared / alone for alone, shared in self.rates(per_entry))
        return ratios[len(ratios) // 2]

    track_ratio.unit = "ratio"  # type: ignore[attr-defined]

    def track_shared(self, per_entry: int) -> float:
        """Messages per second of processor time to all four, best of the turns."""
        return max(shared for _, shared in self.rates(per_entry))

    track_shared.unit = "messages/s"  # type: ignore[attr-defined]
