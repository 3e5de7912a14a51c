"""Transactions that acknowledge, as the tests of what is held for them begin, end and look at them."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.broker.server import Broker
from engine.metadata import keys
from engine.metadata.store import EventKind
from engine.model.names import SegmentName
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries

COUNT = 20


async def begin(peer: Peer) -> str:
    return (await peer.ask(Command.NEW_TXN, timeout=60.0, name=None))["result"]["id"]


async def end(peer: Peer, ident: str, action: str, accepted: list[str] | None = None) -> None:
    await peer.ask(Command.END_TXN, id=ident, action=action, accepted=accepted)


async def published(peer: Peer, topic: str = "work") -> str:
    segment = await peer.segment(topic)
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % i for i in range(COUNT)], per_entry=5))
    await peer.receipts(producer, COUNT // 5)
    return segment


async def offsets(peer: Peer, consumer: int, count: int) -> list[int]:
    return sorted(offset for offset, _ in await peer.messages(consumer, count))


async def applied(broker: Broker, ident: str) -> None:
    """Nothing is left of a transaction's operations."""
    left, shown = set(), False
    watch = broker.metadata.watch(keys.transaction_ops(ident) + "/")
    async with asyncio.timeout(20):
        async for event in watch:
            shown = shown or event.kind is EventKind.SNAPSHOT_END
            if event.kind is EventKind.PUT:
                left.add(event.key)
            left -= {event.key} if event.kind is EventKind.DELETE else set()
            if shown and not left:
                break
    watch.close()


def subscription(broker: Broker, segment: str, name: str = "s") -> Any:
    hosted = broker.segments.get(SegmentName.parse(segment))
    assert hosted is not None
    return hosted.subscriptions[name]


def came(peer: Peer, consumer: int) -> bool:
    """Whether messages came for a consumer and were not taken yet."""
    return any(command is Command.MESSAGE and header["consumer_id"] == consumer for command, header, _ in peer.frames)
