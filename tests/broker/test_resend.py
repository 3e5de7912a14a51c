"""Entries that come again in other batches than before (semantics 24), with raw frames."""

from __future__ import annotations

from engine.errors import PartlyStoredError
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


async def test_nothing_overtakes_an_entry_that_is_stored_in_part(peer: Peer, segment: str, producer: int):
    """What was sent behind it would count as everything before it: its other messages would be taken for duplicates."""
    peer.publish(producer, make_entries(numbers(0, 5), per_entry=6, key="k"))
    await peer.receipts(producer, 1)
    peer.publish(producer, make_entries(numbers(4, 9), per_entry=6, first=4, key="k"))
    peer.publish(
        producer, make_entries(numbers(10, 12), per_entry=3, first=10, key="k")
    )  # before the answer to the other one
    _, refusal, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
    assert (refusal["code"], refusal["sequence"]) == (PartlyStoredError.code, 4)
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)

    again = await peer.producer(segment)
    pieces = make_entries(numbers(4, 9), first=4, key="k")
    peer.publish(again, [*pieces, *make_entries(numbers(10, 12), per_entry=3, first=10, key="k")])
    sequences, offsets = await peer.receipts(again, 7)
    assert sequences == [4, 5, 6, 7, 8, 9, 10]
    assert offsets[2:] == [6, 7, 8, 9, 10]
    consumer = await peer.consumer(segment, "exclusive")
    assert await peer.messages(consumer, 13) == list(enumerate(numbers(0, 12)))
