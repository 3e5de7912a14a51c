"""A scripted broker that says one thing wrong: which field of which answer, and what stands there, the test says."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from engine.client.client import AsyncClient
from engine.errors import EngineError, InvalidArgumentError, NotFoundError, NotOwnerError
from engine.model.positions import Checkpoint
from engine.wire.commands import Command
from engine.wire.stream import FrameStream
from tests.kit.fake_broker import TOPIC, URL, FakeBroker, FakeConnection

MISSING = object()
WRONG: tuple[Any, ...] = (MISSING, None, "?", b"?", -2, 2**63, 1.5, float("nan"), True, [], [None], {}, {"?": 0})

Path = tuple[str | int, ...]
Spoil = Callable[[dict[str, Any]], dict[str, Any] | None]


def paths(header: Any, at: Path = ()) -> Iterator[Path]:
    """Of every field, and of the first item of every list, however deep."""
    items = header.items() if isinstance(header, dict) else enumerate(header[:1]) if isinstance(header, list) else ()
    for name, value in items:
        if name != "request_id":  # an answer to no request is one that never comes
            yield (*at, name)
            yield from paths(value, (*at, name))


def spoilt(header: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy with that in place of what is there."""
    found = copy.deepcopy(header)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


class HostileBroker(FakeBroker):
    """`spoil` makes something else of every frame of the kind `command`; None leaves it as it is.

    Only the first `times` of them. `said`: those frames, as they were meant.
    """

    def __init__(self, command: Command, request: Command | None, spoil: Spoil, times: int) -> None:
        super().__init__()
        self.command, self.request = command, request
        self.spoil, self.times = spoil, times
        self.said: list[dict[str, Any]] = []

    def _accept(self, stream: FrameStream, url: str) -> FakeConnection:
        self.connections.append(HostileConnection(self, stream, url))
        return self.connections[-1]


class _Spoiling:
    """The stream of a connection to such a broker."""

    def __init__(self, broker: HostileBroker, stream: FrameStream) -> None:
        self._broker, self._stream = broker, stream
        self.asked: dict[int, Command] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def send(self, command: Command, header: dict[str, Any], payload: Any = b"") -> None:
        broker = self._broker
        meant = broker.request is None or self.asked.get(header.get("request_id") or 0) is broker.request
        if command is broker.command and meant:
            broker.said.append(header)
            if broker.times > 0 and (found := broker.spoil(header)) is not None:
                broker.times -= 1
                header = found
        self._stream.send(command, header, payload)


class HostileConnection(FakeConnection):
    """Answers what the fake broker leaves out, too."""

    def __init__(self, broker: HostileBroker, stream: FrameStream, url: str = URL) -> None:
        self.spoiling = _Spoiling(broker, stream)
        super().__init__(broker, self.spoiling, url)  # type: ignore[arg-type]

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        self.spoiling.asked[header.get("request_id") or 0] = command
        super().frame_received(command, header, payload)

    def topic_schema(self, header: dict[str, Any], payload: memoryview) -> None:
        self.answer(header, result={"versions": [header["schema"]] if header["schema"] else []})

    def get_topics_of_namespace(self, header: dict[str, Any], payload: memoryview) -> None:
        self.answer(header, result={"topics": [str(TOPIC)], "more": False})

    def watch_topic_list(self, header: dict[str, Any], payload: memoryview) -> None:
        fields = {"request_id": header["request_id"], "session_id": header["session_id"], "hash": "h"}
        listed = {"snapshot": [str(TOPIC)], "removed": [], "added": [], "born": [1], "more": False, "restart": False}
        self.stream.send(Command.WATCH_TOPIC_LIST_UPDATE, {**fields, **listed})

    def watch_topic_list_close(self, header: dict[str, Any], payload: memoryview) -> None: ...

    def subscribe(self, header: dict[str, Any], payload: memoryview) -> None:
        super().subscribe(header, payload)
        if header["consumer_name"] == "closed":  # once: the next attachment stays
            self.broker.of(Command.SUBSCRIBE)[0]["consumer_name"] = "was closed"
            if len(self.broker.of(Command.SUBSCRIBE)) == 1:
                self.end_consumers(0, NotOwnerError("it moves"))


# What makes a broker say it. Each ends by itself when the broker is right.
Call = Callable[[HostileBroker, AsyncClient], Awaitable[object]]


async def sends(broker: HostileBroker, client: AsyncClient) -> None:
    producer = await client.producer("t", name="mine")
    await producer.send(b"v")
    producer.send_nowait(b"w")
    await producer.flush()
    await producer.close()


async def is_refused(broker: HostileBroker, client: AsyncClient) -> None:
    broker.refuse = lambda segment, sequence: InvalidArgumentError("not this one") if sequence == 0 else None
    producer = await client.producer("t")
    (outcome,) = await asyncio.gather(producer.send(b"v"), return_exceptions=True)
    assert isinstance(outcome, EngineError), repr(outcome)


async def is_moved(broker: HostileBroker, client: AsyncClient) -> None:
    producer = await client.producer("t")
    await producer.send(b"v")
    ident = next(iter(broker.last.producers))
    closing = NotOwnerError("it moves")
    closed = {"producer_id": ident, "code": closing.code, "message": str(closing), "request_id": None}
    broker.last.stream.send(Command.CLOSE_PRODUCER, closed)
    await producer.send(b"w")


async def is_slowed(broker: HostileBroker, client: AsyncClient) -> None:
    producer = await client.producer("t")
    await producer.send(b"v")
    credit = {"producer_id": next(iter(broker.last.producers)), "messages": 10, "bytes": 10_000}
    broker.last.stream.send(Command.PUBLISH_CREDIT, credit)
    await producer.send(b"w")


async def is_told_no(broker: HostileBroker, client: AsyncClient) -> None:
    broker.refuse_attach = lambda name: NotFoundError("not here")
    (outcome,) = await asyncio.gather(client.producer("t", name="mine"), return_exceptions=True)
    assert isinstance(outcome, EngineError), repr(outcome)


async def consumes(broker: HostileBroker, client: AsyncClient) -> None:
    broker.publish(0, [b"0"])
    consumer = await client.stream_consumer("t", "s")
    message = await consumer.receive()
    assert message is not None
    await consumer.acknowledge_cumulative(message)
    await consumer.close()


async def takes(broker: HostileBroker, client: AsyncClient) -> None:
    broker.publish(0, [b"0", b"1"])
    consumer = await client.queue_consumer("t", "s")
    message = await consumer.receive()
    assert message is not None
    await consumer.acknowledge(message)


async def loses_its_place(broker: HostileBroker, client: AsyncClient) -> None:
    broker.publish(0, [b"0"])
    consumer = await client.queue_consumer("t", "s", name="closed")
    assert await consumer.receive() is not None


async def reads_to_the_end(broker: HostileBroker, client: AsyncClient) -> None:
    broker.publish(0, [b"0"])
    consumer = await client.checkpoint_consumer("t", start=Checkpoint.earliest())
    assert await consumer.receive() is not None
    broker.reshape([0], 1)
    broker.publish(1, [b"1"])
    assert await consumer.receive() is not None


async def looks(broker: HostileBroker, client: AsyncClient) -> None:
    view = await client.topic_view("t")
    await view.segments(exact=True)


async def declares(broker: HostileBroker, client: AsyncClient) -> None:
    await (await client.producer("t", schema=str)).send("v")


async def lists(broker: HostileBroker, client: AsyncClient) -> None:
    await client.list_topics("a/b")


async def watches(broker: HostileBroker, client: AsyncClient) -> None:
    watch = await client.watch_topics("a/b")
    await watch.next_change()


async def transacts(broker: HostileBroker, client: AsyncClient) -> None:
    producer = await client.producer("t")
    async with client.transaction() as begun:
        await producer.send(b"v", transaction=begun)


async def joins(broker: HostileBroker, client: AsyncClient) -> None:
    begun = await client.transaction()
    await client.join_transaction(begun.id)
    await begun.abort()


async def connects(broker: HostileBroker, client: AsyncClient) -> None:
    await client.connect()


CASES: dict[str, tuple[Command, Command | None, Call]] = {
    "CONNECTED": (Command.CONNECTED, None, connects),
    "ERROR": (Command.ERROR, None, is_told_no),
    "SUCCESS": (Command.SUCCESS, Command.CLOSE_PRODUCER, sends),
    "SUCCESS of ACK": (Command.SUCCESS, Command.ACK, takes),
    "SCALABLE_TOPIC_UPDATE": (Command.SCALABLE_TOPIC_UPDATE, None, sends),
    "SCALABLE_TOPIC_ASSIGNMENT": (Command.SCALABLE_TOPIC_ASSIGNMENT, None, consumes),
    "WATCH_TOPIC_LIST_UPDATE": (Command.WATCH_TOPIC_LIST_UPDATE, None, watches),
    "PRODUCER_SUCCESS": (Command.PRODUCER_SUCCESS, None, sends),
    "SEND_RECEIPT": (Command.SEND_RECEIPT, None, sends),
    "SEND_ERROR": (Command.SEND_ERROR, None, is_refused),
    "CLOSE_PRODUCER": (Command.CLOSE_PRODUCER, None, is_moved),
    "PUBLISH_CREDIT": (Command.PUBLISH_CREDIT, None, is_slowed),
    "SUBSCRIBE_SUCCESS": (Command.SUBSCRIBE_SUCCESS, None, takes),
    "MESSAGE": (Command.MESSAGE, None, takes),
    "MESSAGE in order": (Command.MESSAGE, None, consumes),
    "REACHED_END": (Command.REACHED_END, None, reads_to_the_end),
    "CLOSE_CONSUMER": (Command.CLOSE_CONSUMER, None, loses_its_place),
    "SEGMENT_OFFSET": (Command.SUCCESS, Command.SEGMENT_OFFSET, looks),
    "TOPIC_SCHEMA": (Command.SUCCESS, Command.TOPIC_SCHEMA, declares),
    "GET_TOPICS_OF_NAMESPACE": (Command.SUCCESS, Command.GET_TOPICS_OF_NAMESPACE, lists),
    "NEW_TXN": (Command.SUCCESS, Command.NEW_TXN, transacts),
    "END_TXN": (Command.SUCCESS, Command.END_TXN, transacts),
    "TXN_STATE": (Command.SUCCESS, Command.TXN_STATE, joins),
}


def required(kind: type[msgspec.Struct]) -> list[str]:
    """The names of the fields that must be there."""
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def optional(kind: type[msgspec.Struct]) -> list[str]:
    """The names of the others."""
    return [field.name for field in msgspec.structs.fields(kind) if not field.required and field.name != "request_id"]
