"""A broker made of scripts: it answers what it is told to, keeps what it got, and breaks connections on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from engine.client.client import AsyncClient
from engine.errors import ConnectError, EngineError, NotFoundError, NotOwnerError
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.testing.maps import over_maps
from engine.wire.commands import FEATURES, Command
from engine.wire.memory import connect_pair
from engine.wire.stream import FrameHandler, FrameStream
from tests.kit.fake_coordinator import FakeCoordinator, FakeTransactions
from tests.kit.fake_entries import SALT, block, entries

URL = "engine://fake"
TOPIC = TopicName.parse("t")
DURABLE = {"durability": "fsync"}


class FakeBroker:
    """One topic. `log[segment]` is what was appended: (first sequence, count) of each entry, in order."""

    def __init__(self, segments: int = 1, buckets: int = 1) -> None:
        self.segments = segments
        self.buckets = buckets
        self.epoch = 0
        self.log: dict[int, list[tuple[int, int]]] = {s: [] for s in range(segments)}
        self.ends: dict[int, int] = dict.fromkeys(range(segments), 0)
        self.connections: list[FakeConnection] = []
        self.reachable = True
        self.holding = False  # receipts wait until release()
        self.refuse: Callable[[int, int], EngineError | None] = lambda segment, sequence: None
        self.refuse_attach: Callable[[str], EngineError | None] = lambda name: None
        # For consumers: per segment the blocks there are, and where the cursor stands.
        self.blocks: dict[int, list[tuple[int, int, bytes]]] = {s: [] for s in range(segments)}
        self.cursors: dict[int, int] = dict.fromkeys(range(segments), 0)
        self.sealed: dict[int, int] = {}
        # Lineage, and who is where: an owner that is not named is any broker.
        self.parents: dict[int, list[int]] = {}
        self.pruned: set[int] = set()
        self.owners: dict[int, str] = {}
        self.controller = URL
        self.down: set[str] = set()
        self.open_door = asyncio.Event()  # nobody gets in while it is clear
        self.open_door.set()
        self.assigned: list[int] = list(range(segments))
        self.confirming = True
        self.refuse_acks: EngineError | None = None
        self.hang_up_after: Command | None = None  # once: what this command is answered with is the connection's last
        self.keep_alive = 30.0
        self.silent = False  # answers no PING
        self.features = list(FEATURES)
        self.admin: str | None = None
        self.admins: dict[str, str] = {}  # by URL, where brokers have different ones
        self.proxied = False  # it is behind proxies, whose addresses are dialled
        self.refusal: EngineError | None = None  # of the handshake
        self.transactions = FakeTransactions()  # their states
        self.lose_answers: list[Command] = []  # of each, once: it is done, and the connection breaks
        self.lose_requests: list[Command] = []  # the same, and nothing is done
        self.seen: list[tuple[Command, dict[str, Any]]] = []

    # -- a Connector -----------------------------------------------------------------------------------------

    async def connect(self, url: str, handler: Callable[[FrameStream], FrameHandler]) -> FrameStream:
        if not self.reachable or url in self.down:
            raise ConnectError("nobody is there")
        await self.open_door.wait()
        return connect_pair(handler, over_maps(lambda stream: self._accept(stream, url)))

    def _accept(self, stream: FrameStream, url: str) -> FakeConnection:
        self.connections.append(FakeConnection(self, stream, url))
        return self.connections[-1]

    def at(self, url: str) -> FakeConnection:
        """The live connection to one of several brokers."""
        return next(c for c in reversed(self.connections) if c.url == url and not c.lost)

    @property
    def last(self) -> FakeConnection:
        return self.connections[-1]

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(URL, connector=self, **options)

    def dag(self) -> dict[str, Any]:
        ranges = HashRange.divide(self.segments)
        ends = [(b + 1) * (65536 // self.buckets) - 1 for b in range(self.buckets)]
        segments = [
            {
                "segmentId": i,
                "hashRange": {"start": r.start, "end": r.end},
                "state": "SEALED" if i in self.sealed else "ACTIVE",
                "parentIds": [p for p in self.parents.get(i, []) if p not in self.pruned],
                "childIds": [c for c, parents in self.parents.items() if i in parents],
                "bucketBoundaries": ends,
            }
            for i, r in enumerate(ranges)
            if i not in self.pruned
        ]
        owners = {str(i): url for i, url in self.owners.items()}
        return {"epoch": self.epoch, "keyHash": "xxh64", "durability": "fsync", "segments": segments,
                "segmentBrokers": owners, "controllerBrokerUrl": self.controller}  # fmt: skip

    # -- what tests ask for ----------------------------------------------------------------------------------

    def release(self) -> None:
        """Send the receipts that were held."""
        self.holding = False
        for connection in self.connections:
            connection.send_held()

    def cut(self) -> None:
        """Break every connection."""
        for connection in self.connections:
            connection.stream.abort()

    def reshape(self, parents: list[int], children: int) -> list[int]:
        """Seal `parents`, put so many new segments in their place, and tell everybody."""
        born = list(range(self.segments, self.segments + children))
        self.segments += children
        for child in born:
            self.log[child], self.blocks[child], self.parents[child] = [], [], parents
            self.ends[child] = self.cursors[child] = 0
        self.sealed |= {parent: self.ends[parent] for parent in parents}
        self.changed()
        for connection in self.connections:
            connection.feed()
        return born

    def prune(self, segment: int) -> None:
        """Retention takes a sealed segment, and everybody is told."""
        self.pruned.add(segment)
        del self.blocks[segment]
        for connection in self.connections:
            connection.end_consumers(segment, NotFoundError("it was deleted"))
        self.changed()

    def changed(self) -> None:
        """There is a newer layout."""
        self.epoch += 1
        self.push()

    def push(self) -> None:
        """Tell every session how the topic is."""
        for connection in self.connections:
            for session in connection.sessions:
                if not connection.lost:
                    connection.update(session)

    def publish(self, segment: int, values: list[bytes]) -> None:
        """Put an entry into a segment, and send it to whoever reads there."""
        first = self.ends[segment]
        self.blocks[segment].append((first, len(values), block(segment, first, values)))
        self.ends[segment] = first + len(values)
        for connection in self.connections:
            connection.feed()

    def of(self, command: Command) -> list[dict[str, Any]]:
        """The headers of one command, in the order they came."""
        return [header for seen, header in self.seen if seen is command]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until it holds."""
        deadline = time.monotonic() + 60.0  # of the machine's clock: the loop's may be virtual
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the loop run until nobody has anything to do at once."""
        for _ in range(20):
            await asyncio.sleep(0)


class FakeConnection(FakeCoordinator):
    """A FrameHandler."""

    def __init__(self, broker: FakeBroker, stream: FrameStream, url: str = URL) -> None:
        self.broker = broker
        self.url = url
        self.stream = stream
        self.lost = False
        self.producers: dict[int, int] = {}
        self.consumers: dict[int, tuple[int, int]] = {}  # id: (segment, next offset)
        self.credit: dict[int, list[int]] = {}
        self.queues: set[int] = set()  # their segments end when they are acknowledged
        self.registered = 0
        self.sessions: list[int] = []
        self.held: list[dict[str, Any]] = []

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        self.broker.seen.append((command, header))
        if not self.is_lost(command):
            getattr(self, command.name.lower())(header, payload)
        if command is self.broker.hang_up_after:
            self.broker.hang_up_after = None
            self.stream.close()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def answer(self, header: dict[str, Any], command: Command = Command.SUCCESS, **fields: Any) -> None:
        self.stream.send(command, {"request_id": header["request_id"], **fields})

    def error(self, header: dict[str, Any], error: EngineError) -> None:
        self.answer(header, Command.ERROR, code=error.code, message=str(error))

    # -- commands --------------------------------------------------------------------------------------------

    def connect(self, header: dict[str, Any], payload: memoryview) -> None:
        broker = self.broker
        if broker.refusal is not None:
            refused = {"request_id": 0, "code": broker.refusal.code, "message": str(broker.refusal)}
            self.stream.send(Command.ERROR, refused)
            self.stream.close()
            return
        answer = {
            "protocol": 1,
            "features": broker.features,
            "broker": header.get("target") or "engine://behind" if broker.proxied else self.url,
            "admin": broker.admins.get(self.url, broker.admin),
            "keep_alive": broker.keep_alive,
            "frame_size_max": 1 << 24,
            "proxied": True if broker.proxied else None,
        }
        self.stream.send(Command.CONNECTED, answer)

    def ping(self, header: dict[str, Any], payload: memoryview) -> None:
        if not self.broker.silent:
            self.stream.send(Command.PONG, {})

    def pong(self, header: dict[str, Any], payload: memoryview) -> None: ...

    def scalable_topic_lookup(self, header: dict[str, Any], payload: memoryview) -> None:
        self.sessions.append(header["session_id"])
        self.update(header["session_id"], header["request_id"])

    def update(self, session_id: int, request_id: int | None = None) -> None:
        dag = self.broker.dag()
        fields = {"request_id": request_id, "session_id": session_id}
        self.stream.send(
            Command.SCALABLE_TOPIC_UPDATE, {**fields, "topic": str(TOPIC), "epoch": dag["epoch"], "dag": dag}
        )

    def scalable_topic_close(self, header: dict[str, Any], payload: memoryview) -> None:
        if header["session_id"] in self.sessions:
            self.sessions.remove(header["session_id"])

    def producer(self, header: dict[str, Any], payload: memoryview) -> None:
        error = self.broker.refuse_attach(header["topic"])
        if error is not None:
            self.error(header, error)
            return
        segment = int(header["topic"].rsplit("-", 1)[1])
        self.producers[header["producer_id"]] = segment
        last = max((first + count - 1 for first, count in self.broker.log[segment]), default=-1)
        self.answer(header, Command.PRODUCER_SUCCESS, producer_id=header["producer_id"],
                    producer_name=header["producer_name"], last_sequence=last, **DURABLE)  # fmt: skip

    def close_producer(self, header: dict[str, Any], payload: memoryview) -> None:
        self.producers.pop(header["producer_id"], None)
        self.answer(header)

    def send(self, header: dict[str, Any], payload: memoryview) -> None:
        ident = header["producer_id"]
        segment = self.producers.get(ident)
        if segment is None:
            return
        receipt: dict[str, Any] = {"producer_id": ident, "sequences": [], "offsets": [], **DURABLE}
        for first, count in entries(payload):
            error = self.broker.refuse(segment, first)
            if error is not None:
                self.stream.send(Command.SEND_ERROR, {"producer_id": ident, "sequence": first, "code": error.code,
                                                      "message": str(error)})  # fmt: skip
                if error.code not in (14, 17, 19):
                    del self.producers[ident]
                    self.stream.send(Command.CLOSE_PRODUCER, {"producer_id": ident, "code": error.code,
                                                              "message": str(error)})  # fmt: skip
                    break
                continue
            offset = -1
            if (first, count) not in self.broker.log[segment]:
                self.broker.log[segment].append((first, count))
                offset = self.broker.ends[segment]
                self.broker.ends[segment] += count
            receipt["sequences"].append(first)
            receipt["offsets"].append(offset)
        if receipt["sequences"]:
            self.held.append(receipt)
        if not self.broker.holding:
            self.send_held()

    def send_held(self) -> None:
        held, self.held = self.held, []
        for receipt in held:
            self.stream.send(Command.SEND_RECEIPT, receipt)

    def scalable_topic_subscribe(self, header: dict[str, Any], payload: memoryview) -> None:
        if self.broker.controller != self.url:
            self.error(header, NotOwnerError("another broker leads"))
            return
        self.registered = header["consumer_id"]
        self.assign(header["request_id"])

    def assign(self, request_id: int | None = None) -> None:
        ranges = HashRange.divide(self.broker.segments)
        segments = [{"segment_id": i, "topic": str(TOPIC.segment(ranges[i], i)), "mode": "exclusive"}
                    for i in self.broker.assigned]  # fmt: skip
        self.stream.send(Command.SCALABLE_TOPIC_ASSIGNMENT, {"request_id": request_id, "consumer_id": self.registered,
                                                             "layout_epoch": self.broker.epoch,
                                                             "segments": segments})  # fmt: skip

    def scalable_topic_unsubscribe(self, header: dict[str, Any], payload: memoryview) -> None:
        if self.broker.controller != self.url:
            self.error(header, NotOwnerError("another broker leads"))
        else:
            self.answer(header)

    def subscribe(self, header: dict[str, Any], payload: memoryview) -> None:
        segment = self.segment_of(header)
        if segment is None:
            return
        start = header["start"] if header["mode"] == "reader" else self.broker.cursors[segment]
        self.consumers[header["consumer_id"]] = (segment, start)
        self.credit[header["consumer_id"]] = [0, 0]
        if header["mode"] == "queue":
            self.queues.add(header["consumer_id"])
        self.answer(header, Command.SUBSCRIBE_SUCCESS, consumer_id=header["consumer_id"], position=start, first=0)

    def flow(self, header: dict[str, Any], payload: memoryview) -> None:
        credit = self.credit.get(header["consumer_id"])
        if credit is not None:
            credit[0] += header["messages"]
            credit[1] += header["bytes"]
            self.feed()

    def feed(self) -> None:
        for ident, (segment, offset) in list(self.consumers.items()):
            for first, count, data in self.broker.blocks[segment]:
                credit = self.credit[ident]
                if first + count <= offset or min(credit) <= 0 or self.lost:
                    continue
                credit[0] -= count
                credit[1] -= len(data)
                offset = first + count
                self.stream.send(Command.MESSAGE, {"consumer_id": ident, "segment_id": segment, "salt": SALT,
                                                   "messages": count}, data)  # fmt: skip
            self.consumers[ident] = (segment, offset)
            done = self.broker.cursors[segment] if ident in self.queues else offset
            if done == self.broker.sealed.get(segment):
                self.stream.send(Command.REACHED_END, {"consumer_id": ident, "end": offset})

    def end_consumers(self, segment: int, error: EngineError) -> None:
        """The broker lets go of whoever reads a segment."""
        for ident in [i for i, (read, _) in self.consumers.items() if read == segment]:
            del self.consumers[ident]
            closing = {"consumer_id": ident, "code": error.code, "message": str(error)}
            self.stream.send(Command.CLOSE_CONSUMER, closing)

    def ack(self, header: dict[str, Any], payload: memoryview) -> None:
        segment = self.consumers[header["consumer_id"]][0]
        if not self.broker.confirming:
            return
        if self.broker.refuse_acks is not None:
            self.error(header, self.broker.refuse_acks)
            return
        if header["ack_type"] == "cumulative":
            self.broker.cursors[segment] = max(self.broker.cursors[segment], header["position"])
        for first, last in header.get("ranges") or ():
            if first <= self.broker.cursors[segment]:
                self.broker.cursors[segment] = max(self.broker.cursors[segment], last + 1)
        self.answer(header)

    def redeliver(self, header: dict[str, Any], payload: memoryview) -> None: ...

    def segment_offset(self, header: dict[str, Any], payload: memoryview) -> None:
        segment = self.segment_of(header)
        if segment is not None:
            end, acknowledged = self.broker.ends[segment], self.broker.cursors[segment]
            self.answer(header, result={"offset": end, "first": 0, "end": end, "acknowledged": acknowledged})

    def segment_of(self, header: dict[str, Any]) -> int | None:
        """None, and an error, when it is not here."""
        segment = int(header["topic"].rsplit("-", 1)[1])
        if segment not in self.broker.blocks:
            self.error(header, NotFoundError("no such segment"))
        elif self.broker.owners.get(segment, self.url) != self.url:
            self.error(header, NotOwnerError("it is elsewhere"))
        else:
            return segment
        return None

    def close_consumer(self, header: dict[str, Any], payload: memoryview) -> None:
        self.consumers.pop(header["consumer_id"], None)
        self.answer(header)
