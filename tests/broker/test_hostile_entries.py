"""Entries that lie under good checksums, sent by a client: refused one by one, and nobody else is concerned."""

from __future__ import annotations

import pytest

from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError
from engine.limits import FRAME_SIZE_MAX
from engine.model.names import SegmentName
from engine.wire.commands import Command
from tests.broker.transacting import begin, entry, send
from tests.kit.peer import Peer, make_entries
from tests.reference.hostile_entries import COUNT, FORMS, good


async def test_each_is_refused_alone_with_a_typed_error(broker, peer: Peer, segment: str):
    producer, other = await peer.producer(segment, "producer"), await peer.producer(segment, "p")
    others = make_entries([b"from another producer"] * len(FORMS))
    sequence = taken = 0
    for form, theirs in zip(FORMS, others, strict=True):
        image = form.make(sequence)
        assert len(image) < FRAME_SIZE_MAX
        peer.publish(producer, [image])
        peer.publish(other, [theirs])
        if form.taken:
            assert (await peer.receipts(producer, 1))[1] == [taken], form.name
            taken, sequence = taken + COUNT, sequence + COUNT
        else:
            with pytest.raises((CorruptionError, MessageTooLargeError)):
                await peer.receipts(producer, 1)
        assert (await peer.receipts(other, 1))[1] == [taken], form.name
        taken += 1
    peer.publish(producer, [good(sequence + 100)])
    assert (await peer.receipts(producer, 1))[1] == [taken]
    assert not [frame for frame in peer.frames if frame[0] is Command.CLOSE_PRODUCER]
    assert broker.segments.get(SegmentName.parse(segment)).refused_entries == sum(not form.taken for form in FORMS)


async def test_what_came_in_one_frame_is_refused_as_one(peer: Peer):
    producer = await peer.producer(await peer.segment("orders"), "producer")
    [form] = [form for form in FORMS if form.name == "value offsets that fall"]
    peer.publish(producer, [good(0), form.make(COUNT), good(2 * COUNT)])
    for _ in range(3):
        _, header, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
        assert header["code"] == CorruptionError.code
        assert "sequence ids 5 to 9" in header["message"]
    peer.publish(producer, [good(0)])
    assert (await peer.receipts(producer, 1))[1] == [0]


@pytest.mark.parametrize("inside", [False, True])
async def test_a_producer_writes_under_its_own_name_alone(inside: bool, peer: Peer, segment: str):
    """What another would send next would be taken for a duplicate."""
    forger, other = await peer.producer(segment, "forger"), await peer.producer(segment, "p")
    transaction = await begin(peer) if inside else None
    send(peer, forger, [entry(0, [b"forged"], transaction, producer="p")], transaction)
    with pytest.raises(InvalidArgumentError, match="producer_id of an entry must be "):
        await peer.receipts(forger, 1)
    send(peer, other, [entry(0, [b"own"], transaction, producer="p")], transaction)
    assert await peer.receipts(other, 1) == ([0], [0])
    send(peer, forger, [entry(0, [b"own"], transaction, producer="forger")], transaction)
    assert await peer.receipts(forger, 1) == ([0], [1])
