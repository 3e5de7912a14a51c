"""What transactions write: hidden until they end, then visible or hidden for ever, for readers of every kind."""

from __future__ import annotations

import pytest
from transacting import begin, decide, end, entry, latest, send, write

from engine.errors import InvalidArgumentError, TransactionConflictError, TransactionNotFoundError
from engine.model.transactions import TransactionState
from engine.wire.commands import Command


async def test_what_a_transaction_wrote_is_read_once_it_is_committed(connect):
    peer = await connect()
    segment = await peer.segment("orders")
    producer, consumer = await peer.producer(segment), await peer.consumer(segment, "exclusive")
    transaction = await begin(peer)
    assert await write(peer, producer, 0, [b"a", b"b"], transaction) == 0
    assert await write(peer, producer, 2, [b"c"]) == 2
    assert await latest(peer, segment) == 0
    assert not [f for f in peer.frames if f[0] is Command.MESSAGE]
    await end(peer, transaction)
    assert await peer.messages(consumer, 3) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert await latest(peer, segment) == 3


async def test_what_an_aborted_transaction_wrote_is_left_out(connect):
    peer = await connect()
    segment = await peer.segment("orders")
    producer, consumer = await peer.producer(segment), await peer.consumer(segment, "exclusive")
    transaction = await begin(peer)
    await write(peer, producer, 0, [b"before"])
    await write(peer, producer, 1, [b"a", b"b"], transaction)
    await write(peer, producer, 3, [b"after"])
    await end(peer, transaction, "abort")
    assert await peer.messages(consumer, 2) == [(0, b"before"), (3, b"after")]
