"""Frames of several transactions: one append to the log, and each transaction's messages as if they had come alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.transactions.buffer import TransactionBuffer
from engine.errors import CorruptionError, InvalidArgumentError, TransactionConflictError
from engine.model.transactions import TransactionState, parse_id
from engine.wire.commands import Command
from tests.broker.transacting import begin, decide, end, entry, hosted, latest, send, write
from tests.kit.peer import Peer, until


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each frame of several transactions was one append."""
    found: list[bool] = []
    jointly = TransactionBuffer.append_jointly

    def noted(*arguments: Any) -> bool:
        found.append(jointly(*arguments))
        return found[-1]

    monkeypatch.setattr(TransactionBuffer, "append_jointly", noted)
    return found


async def known(peer: Peer, producer: int, sequence: int) -> str:
    """A transaction that the owner of the producer's segment knows."""
    transaction = await begin(peer)
    await write(peer, producer, sequence, [b"known"], transaction)
    return transaction


def send_jointly(peer: Peer, producer: int, *entries: bytes) -> None:
    peer.send(Command.SEND, {"producer_id": producer, "entries": len(entries), "several": True}, list(entries))


async def test_they_share_an_append_and_each_is_visible_with_its_own_transaction(
    broker: Broker, peer: Peer, segment: str, joined: list[bool]
) -> None:
    producer, consumer = await peer.producer(segment), await peer.consumer(segment, "reader", None, start=0)
    one, other = await known(peer, producer, 0), await known(peer, producer, 1)
    send_jointly(
        peer, producer, entry(2, [b"a", b"b"], one), entry(4, [b"c"], other), entry(5, [b"d"], one, "second"),
        entry(6, [b"e"], one),
    )  # fmt: skip
    assert await peer.receipts(producer, 4) == ([2, 4, 5, 6], [2, 4, 5, 6])
    assert joined == [True]
    assert hosted(broker, segment).transactions.open_transactions == {parse_id(one): 5, parse_id(other): 2}
    await end(peer, other, "abort")
    assert await latest(peer, segment) == 0
    await end(peer, one, accepted=["second"])
    await until(lambda: hosted(broker, segment).readable == 7)
    assert await peer.messages(consumer, 1) == [(5, b"d")]


async def test_each_is_committed_behind_its_own_run(peer: Peer, segment: str, joined: list[bool]) -> None:
    """Runs of a transaction count as its frames, whatever else is in the frame."""
    producer = await peer.producer(segment)
    await write(peer, producer, 0, [b"x"], await begin(peer))
    one, other, third = [await begin(peer) for _ in range(3)]
    send_jointly(
        peer, producer, entry(1, [b"a"], one), entry(2, [b"b"], other), entry(3, [b"c"], one), entry(4, [b"d"], third)
    )
    ends = [
        asyncio.ensure_future(peer.ask(Command.END_TXN, id=ident, action="commit", sent=sent, mark=1))
        for ident, sent in ((one, 2), (other, 1), (third, 2))
    ]
    states = [(await ended)["result"]["state"] for ended in ends]
    assert states == [TransactionState.COMMITTED, TransactionState.COMMITTED, TransactionState.OPEN]


async def test_one_that_nobody_here_knows_is_looked_up(peer: Peer, segment: str, joined: list[bool]) -> None:
    producer = await peer.producer(segment)
    one, other = await begin(peer), await begin(peer)
    send_jointly(peer, producer, entry(0, [b"a"], one), entry(1, [b"b"], other))
    assert await peer.receipts(producer, 2) == ([0, 1], [0, 1])
    assert joined == []
    await end(peer, one)
    await end(peer, other)
    assert await latest(peer, segment) == 2


async def test_one_that_has_ended_refuses_its_run_and_what_is_behind(
    broker: Broker, peer: Peer, segment: str, joined: list[bool]
) -> None:
    producer = await peer.producer(segment)
    one, other = await known(peer, producer, 0), await known(peer, producer, 1)
    await decide(broker, other, TransactionState.ABORTED)
    await until(lambda: parse_id(other) not in hosted(broker, segment).transactions.open_transactions)
    send_jointly(peer, producer, entry(2, [b"a"], one), entry(3, [b"b"], other), entry(4, [b"c"], one))
    assert await peer.receipts(producer, 1) == ([2], [2])
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
    assert (refusal["sequence"], refusal["code"]) == (3, TransactionConflictError.code)
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    again = await peer.producer(segment)
    send_jointly(peer, again, entry(4, [b"c"], one), entry(5, [b"d"], await begin(peer)))
    assert await peer.receipts(again, 2) == ([4, 5], [3, 4])
    await end(peer, one)


async def test_duplicates_are_answered_with_their_originals(peer: Peer, segment: str, joined: list[bool]) -> None:
    producer = await peer.producer(segment)
    one, other = await known(peer, producer, 0), await known(peer, producer, 1)
    frames = [entry(2, [b"a"], one), entry(3, [b"b"], other)]
    send_jointly(peer, producer, *frames)
    assert await peer.receipts(producer, 2) == ([2, 3], [2, 3])
    send_jointly(peer, producer, *frames, entry(4, [b"c"], other))
    assert await peer.receipts(producer, 3) == ([2, 3, 4], [2, 3, 4])
    send_jointly(peer, producer, *frames)
    assert await peer.receipts(producer, 2) == ([2, 3], [2, 3])
    assert joined == [True, True, True]
    await end(peer, one)
    await end(peer, other)
    assert await latest(peer, segment) == 5


@pytest.mark.parametrize("fault", ["none", "cut", "damaged"])
async def test_what_is_no_such_frame_is_refused(peer: Peer, segment: str, fault: str) -> None:
    """And only where the damage is, if the entries can be told apart."""
    producer = await peer.producer(segment)
    one, other = await known(peer, producer, 0), await known(peer, producer, 1)
    good, bad = entry(2, [b"a"], one), bytearray(entry(3, [b"b"], None if fault == "none" else other))
    if fault == "damaged":
        bad[-1] ^= 1
    send_jointly(peer, producer, good, bytes(bad[:-8] if fault == "cut" else bad))
    if fault == "damaged":
        assert await peer.receipts(producer, 1) == ([2], [2])
    else:
        await peer.take(Command.SEND_ERROR, producer_id=producer, sequence=2)
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer, sequence=3)
    assert refusal["code"] == (InvalidArgumentError if fault == "none" else CorruptionError).code
    send(peer, producer, [entry(4, [b"c"], one)], one)
    assert (await peer.receipts(producer, 1))[0] == [4]
    answer = await peer.ask(Command.END_TXN, id=one, action="commit", sent=3, mark=1)
    assert answer["result"]["state"] == (TransactionState.COMMITTED if fault == "damaged" else TransactionState.OPEN)


async def test_what_is_dropped_is_not_committed(peer: Peer, segment: str) -> None:
    """A frame for a producer that is not attached: its transactions stay open."""
    producer = await peer.producer(segment)
    one = await known(peer, producer, 0)
    send_jointly(peer, producer + 100, entry(1, [b"a"], one))
    answer = await peer.ask(Command.END_TXN, id=one, action="commit", sent=1, mark=1)
    assert answer["result"]["state"] == TransactionState.OPEN
