"""Words of a client that come late, from a connection that is dead or about something it has closed since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.errors import AlreadyClosedError, EngineError
from engine.wire.commands import Command
from tests.kit.peer import Peer


class Gate:
    """Holds up attaching to a subscription until it is opened."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = asyncio.Event()
        self.opened = asyncio.Event()
        self._pass = broker.service.ensure_subscription
        monkeypatch.setattr(broker.service, "ensure_subscription", self._hold)

    async def _hold(self, *args, **options):
        if not self.opened.is_set():
            self.held.set()
            await self.opened.wait()
        return await self._pass(*args, **options)


async def hold(peer, gate: Gate, segment: str) -> asyncio.Task[int]:
    """A SUBSCRIBE that the broker is at."""
    attaching = asyncio.ensure_future(peer.consumer(segment, "exclusive", name="one", credit=0))
    await gate.held.wait()
    return attaching


async def test_a_subscribe_held_up_past_its_connections_end_evicts_nobody(broker, connect, monkeypatch):
    old, new = await connect(), await connect()
    segment = await old.segment("orders")
    gate = Gate(broker, monkeypatch)
    attaching = await hold(old, gate, segment)
    attaching.cancel()
    monkeypatch.setattr(broker.service, "ensure_subscription", gate._pass)
    mine = await new.consumer(segment, "exclusive", name="one")
    await old.close()
    await new.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")
    gate.opened.set()
    await new.ack(mine, position=0)
    assert not [f for f in new.frames if f[0] is Command.CLOSE_CONSUMER]


async def test_a_subscribe_from_a_connection_that_is_dead_evicts_nobody(broker, connect, monkeypatch):
    """The same, when the broker has not heard of the end."""
    old, new = await connect(), await connect()
    segment = await old.segment("orders")
    gate = Gate(broker, monkeypatch)
    attaching = await hold(old, gate, segment)
    monkeypatch.setattr(broker.service, "ensure_subscription", gate._pass)
    mine = await new.consumer(segment, "exclusive", name="one")
    old.answer_pings = False
    gate.opened.set()
    await asyncio.wait_for(old.lost, 10)
    attaching.cancel()
    await new.ack(mine, position=0)
    assert not [f for f in new.frames if f[0] is Command.CLOSE_CONSUMER]


async def test_what_is_closed_before_it_is_open_is_not_opened(broker, connect, monkeypatch):
    """Or a segment would be held for nobody, as long as the connection lives."""
    peer, other = await connect(), await connect()
    segment = await peer.segment("orders")
    gate = Gate(broker, monkeypatch)
    ident = peer.next_id() + 1
    attaching = await hold(peer, gate, segment)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=ident)
    gate.opened.set()
    with pytest.raises(EngineError) as refused:
        await attaching
    assert refused.value.code == AlreadyClosedError.code
    await other.consumer(segment, "exclusive", name="two")


@pytest.mark.parametrize("waits_at", ["the topic", "the intake"])
async def test_a_lookup_that_is_closed_before_it_is_open_is_answered(
    broker: Any, peer: Peer, monkeypatch: pytest.MonkeyPatch, waits_at: str
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    service, intake = broker.service, broker.memory.intake
    real, request = service.watch_topic, intake.request

    async def watch_topic(*args: Any, **options: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await real(*args, **options)

    def turn() -> Any:
        reached.set()
        return go_on.wait() if request() is None else None

    if waits_at == "the topic":
        monkeypatch.setattr(service, "watch_topic", watch_topic)
    else:
        monkeypatch.setattr(type(intake), "request", lambda self: turn())
    fields = {"session_id": 7, "topic": "orders", "create": True}
    asked = asyncio.ensure_future(peer.ask(Command.SCALABLE_TOPIC_LOOKUP, **fields))
    await reached.wait()
    peer.send(Command.SCALABLE_TOPIC_CLOSE, {"session_id": 7})
    peer.send(Command.PING, {})
    await peer.take(Command.PONG)
    go_on.set()
    with pytest.raises(AlreadyClosedError, match="7 was closed before it was open"):
        await asked
    monkeypatch.undo()
    assert not next(iter(broker.connections)).watches
    await peer.ask(Command.SCALABLE_TOPIC_LOOKUP, **fields)  # the id may be used again
