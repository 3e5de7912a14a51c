"""A raw client of frames: says exactly what a test wants said, over TCP or in memory."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any, ClassVar

from engine._native.consume.batch import decode_block
from engine._native.produce.batcher import Batcher
from engine.broker.server import Broker
from engine.errors import EngineError
from engine.model.names import TopicName
from engine.testing.maps import over_maps
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Command
from engine.wire.connector import SocketConnector
from engine.wire.memory import MemoryConnector

Frame = tuple[Command, dict[str, Any], memoryview]
WAIT_S = 60.0


async def until(condition: Callable[[], object]) -> None:
    """It is a state of the broker, which tells nobody."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def listening(broker: Broker) -> str:
    """Its URL, of a port that it opens."""
    return "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))


class Peer:
    """One connection. Frames that nobody has asked for yet are kept in order."""

    made: ClassVar[list[Peer]] = []  # in this test; ended after it

    def __init__(self) -> None:
        self.made.append(self)
        self.stream: Any = None
        self.frames: list[Frame] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.events: list[str] = []
        self._arrived = asyncio.Event()
        self._ids = itertools.count(1)
        self.answer_pings = True

    @classmethod
    async def connect(cls, broker: Broker, url: str | None = None, *, hello: bool = True) -> Peer:
        """Over TCP to `url`, or in memory; with the handshake done unless told otherwise."""
        peer = cls()
        connector: Any = SocketConnector() if url else MemoryConnector(broker.accept)
        await connector.connect(url or "engine://embedded", over_maps(peer._made))
        if hello:
            await peer.hello()
        return peer

    def _made(self, stream: Any) -> Peer:
        self.stream = stream
        return self

    # FrameHandler

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        if command is Command.PING and self.answer_pings:
            self.stream.send(Command.PONG, {})
            return
        self.frames.append((command, header, payload))
        self._arrived.set()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")
        self._arrived.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)
        self._arrived.set()

    # asking

    def send(self, command: Command, header: dict[str, Any], payload: Any = b"") -> None:
        self.stream.send(command, header, payload)

    def next_id(self) -> int:
        return next(self._ids)

    async def until(self, condition: Any) -> None:
        """Wait until something that frames or the connection's end bring about is so."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    async def take(self, *commands: Command, **fields: Any) -> Frame:
        """The first frame of one of these kinds with these fields, taken out of the kept ones."""

        def position() -> int | None:
            for i, (command, header, _) in enumerate(self.frames):
                if command in commands and all(header.get(k) == v for k, v in fields.items()):
                    return i
            return None

        await self.until(lambda: position() is not None or self.lost.done())
        found = position()
        if found is None:
            raise ConnectionError(f"lost: {self.lost.result()!r} while waiting for {commands} {fields}")
        return self.frames.pop(found)

    async def ask(self, command: Command, **header: Any) -> dict[str, Any]:
        """The answer's header; raises the broker's error."""
        request_id = self.next_id()
        self.send(command, {"request_id": request_id, **header})
        kind, answer, _ = await self.take(*Command, request_id=request_id)
        if kind is Command.ERROR:
            raise EngineError.from_code(answer["code"], answer["message"])
        return answer

    async def hello(self, **changes: Any) -> dict[str, Any]:
        header = {"magic": MAGIC, "protocol": PROTOCOL_VERSION, "features": list(FEATURES), "client": "test"}
        self.send(Command.CONNECT, {**header, **changes})
        kind, answer, _ = await self.take(Command.CONNECTED, Command.ERROR)
        if kind is Command.ERROR:
            raise EngineError.from_code(answer["code"], answer["message"])
        return answer

    def stop_reading(self) -> None:
        """Take nothing more from the system, which itself holds little for this connection."""
        self.stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.stream.pause_reading()

    def resume_reading(self) -> None:
        """Read again, with room for much: a small one closes its window again and again, until a timer opens it."""
        self.stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.stream.resume_reading()

    @classmethod
    async def end_all(cls) -> None:
        """End every connection of the test that is still there."""
        for peer in [p for p in cls.made if p.stream is not None]:
            peer.stream.abort()
            await asyncio.wait_for(peer.lost, WAIT_S)
        cls.made.clear()

    async def close(self) -> None:
        self.stream.close()
        await asyncio.wait_for(self.lost, WAIT_S)

    # what most tests do

    async def lookup(self, topic: str, create: bool = True) -> dict[str, Any]:
        return await self.ask(Command.SCALABLE_TOPIC_LOOKUP, session_id=self.next_id(), topic=topic, create=create)

    async def segment(self, topic: str, index: int = 0) -> str:
        """The name of one of a topic's segments."""
        segments = (await self.lookup(topic))["dag"]["segments"]
        return segment_name(topic, segments[index])

    async def producer(self, segment: str, name: str = "p", access: str = "shared") -> int:
        ident = self.next_id()
        await self.ask(Command.PRODUCER, producer_id=ident, topic=segment, producer_name=name, access_mode=access)
        return ident

    def publish(self, producer: int, entries: list[bytes]) -> None:
        self.send(Command.SEND, {"producer_id": producer, "entries": len(entries)}, entries)

    async def receipts(self, producer: int, count: int) -> tuple[list[int], list[int]]:
        """(sequences, offsets) of the next receipts, until `count` entries are acknowledged."""
        sequences: list[int] = []
        offsets: list[int] = []
        while len(sequences) < count:
            kind, header, _ = await self.take(Command.SEND_RECEIPT, Command.SEND_ERROR, producer_id=producer)
            if kind is Command.SEND_ERROR:
                raise EngineError.from_code(header["code"], header["message"])
            sequences += header["sequences"]
            offsets += header["offsets"]
        return sequences, offsets

    async def consumer(
        self,
        segment: str,
        mode: str,
        subscription: str | None = "s",
        *,
        name: str = "c",
        credit: int = 10**6,
        **more: Any,
    ) -> int:
        ident = self.next_id()
        await self.ask(
            Command.SUBSCRIBE,
            consumer_id=ident,
            topic=segment,
            subscription=subscription,
            consumer_name=name,
            mode=mode,
            initial_position="earliest",
            **more,
        )
        if credit:
            self.flow(ident, credit)
        return ident

    def flow(self, consumer: int, messages: int, size: int = 32 << 20) -> None:
        self.send(Command.FLOW, {"consumer_id": consumer, "messages": messages, "bytes": size})

    async def messages(self, consumer: int, count: int) -> list[tuple[int, bytes]]:
        """(offset, value) of the next messages delivered, `count` at least."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            _, header, payload = await self.take(Command.MESSAGE, consumer_id=consumer)
            found += delivered(header, payload)
        return found

    async def ack(self, consumer: int, **fields: Any) -> None:
        kind = "cumulative" if "position" in fields else "individual"
        await self.ask(Command.ACK, consumer_id=consumer, ack_type=kind, **fields)


def delivered(header: dict[str, Any], payload: memoryview) -> list[tuple[int, bytes]]:
    """(offset, value) of what a MESSAGE delivers, checked natively."""
    skip = {o for first, last in header.get("skip") or () for o in range(first, last + 1)}
    found = []
    for entry in decode_block(payload, header["salt"], header["segment_id"]):
        for i, message in enumerate(entry.messages()):
            if entry.first_offset + i not in skip:
                found.append((entry.first_offset + i, message.value))
    assert len(found) == header["messages"]
    return found


async def leader_term(broker: Broker, topic: str) -> int:
    """The term under which this broker leads the topic from now on."""
    return (await broker.service.controllers.lead(TopicName.parse(topic))).leadership.term


def segment_name(topic: str, segment: dict[str, Any]) -> str:
    full = topic.removeprefix("topic://")
    full = full if "/" in full else f"public/default/{full}"
    r = segment["hashRange"]
    return f"segment://{full}/{r['start']:04x}-{r['end']:04x}-{segment['segmentId']}"


def make_entries(
    values: list[bytes], *, producer: str = "p", key: str | None = None, per_entry: int = 1, first: int = 0
) -> list[bytes]:
    """Sealed entries of `per_entry` messages each, for a topic of one segment with one bucket."""
    batcher = Batcher(producer.encode(), first_sequence=first, pending_bytes_max=1 << 30)
    batcher.set_layout([0], [0], [[65535]])
    entries: list[bytes] = []
    for start in range(0, len(values), per_entry):
        for value in values[start : start + per_entry]:
            batcher.add(value, key)
        batcher.seal_all()
        entries += [bytes(sealed.data) for sealed in batcher.take()]
    return entries
