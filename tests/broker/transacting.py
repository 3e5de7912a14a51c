"""Writing in transactions with raw frames."""

from __future__ import annotations

import struct
from typing import Any

from engine._native.format.crc32c import crc32c
from engine._native.produce.hashing import xxh64
from engine.broker.segment.hosted import HostedSegment
from engine.broker.server import Broker
from engine.control.transactions.coordinator import TransactionCoordinator
from engine.model.names import SegmentName
from engine.model.transactions import PARTITIONS, TransactionState, attempt_number, parse_id
from engine.wire.commands import Command
from tests.kit.peer import Peer

_HEAD = struct.Struct("<BBBBIIHHHHHHQQQQQ")
TRANSACTIONAL = 2


def entry(
    sequence: int,
    values: list[bytes],
    transaction: str | None = None,
    attempt: str | None = None,
    *,
    producer: str = "p",
    hashes: tuple[int, int] = (0, 0),
) -> bytes:
    """One sealed keyless entry, in a transaction or in none."""
    offsets, at = [0], 0
    for value in values:
        at += len(value)
        offsets.append(at)
    name = producer.encode()
    body = _pad(struct.pack(f"<{len(values) + 1}i", *offsets)) + _pad(b"".join(values)) + _pad(name)
    txn = (0, 0) if transaction is None else (parse_id(transaction), attempt_number(attempt))
    head = _HEAD.pack(
        1, 0 if transaction is None else TRANSACTIONAL, 0, 0, len(values), len(body), 0, 0, *hashes, len(name), 0,
        xxh64(name), sequence, sequence + len(values) - 1, *txn,
    )  # fmt: skip
    sealed = struct.pack("<I", crc32c(body)) + head
    return struct.pack("<III", 0x52544E45, 128 + len(body), crc32c(sealed)) + sealed + bytes(48) + body


def _pad(data: bytes) -> bytes:
    return data.ljust((len(data) + 7) & ~7, b"\0")


async def begin(peer: Peer, timeout: float = 60.0, **more: Any) -> str:
    """A transaction's id."""
    return str((await peer.ask(Command.NEW_TXN, timeout=timeout, **more))["result"]["id"])


async def end(peer: Peer, transaction: str, action: str = "commit", **more: Any) -> None:
    await peer.ask(Command.END_TXN, id=transaction, action=action, **more)


def send(peer: Peer, producer: int, entries: list[bytes], transaction: str | None = None, **more: Any) -> None:
    """One frame."""
    header = {"producer_id": producer, "entries": len(entries), "transaction": transaction, **more}
    peer.send(Command.SEND, header, entries)


async def write(
    peer: Peer, producer_id: int, sequence: int, values: list[bytes], transaction: str | None = None, **more: Any
) -> int:
    """One entry of these values; the offset of the first, once it is acknowledged."""
    name = more.pop("producer", "p")
    image = entry(sequence, values, transaction, more.get("attempt"), producer=name)
    send(peer, producer_id, [image], transaction, **more)
    _, offsets = await peer.receipts(producer_id, 1)
    return offsets[0]


def coordinator(broker: Broker) -> TransactionCoordinator:
    return broker.transactions.coordinator


async def decide(broker: Broker, transaction: str, state: TransactionState, attempts: list[str] | None = None) -> None:
    """Behind everybody's back."""
    await coordinator(broker).end(parse_id(transaction), state, attempts)


async def latest(peer: Peer, segment: str) -> int:
    return int((await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest"))["result"]["offset"])


def hosted(broker: Broker, segment: str) -> HostedSegment:
    """The open segment."""
    found = broker.segments.get(SegmentName.parse(segment))
    assert found is not None
    return found


async def collect(broker: Broker) -> None:
    """Forget what nobody needs."""
    await coordinator(broker).collect(range(PARTITIONS))
