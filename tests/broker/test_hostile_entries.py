"""Entries that lie under good checksums, sent by a client: refused one by one, and nobody else is concerned."""

from __future__ import annotations

import pytest
from hostile_entries import COUNT, FORMS, good
from peer import make_entries

from engine.errors import CorruptionError, MessageTooLargeError
from engine.limits import FRAME_SIZE_MAX
from engine.model.names import SegmentName
from engine.wire.commands import Command


async def test_each_is_refused_alone_with_a_typed_error(connect, broker):
    peer = await connect()
    segment = await peer.segment("orders")
    producer, other = await peer.producer(segment, "hostile"), await peer.producer(segment, "other")
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
    assert broker.hosting.get(SegmentName.parse(segment)).refused_entries == sum(not form.taken for form in FORMS)


async def test_what_came_in_one_frame_is_refused_as_one(connect):
    peer = await connect()
    producer = await peer.producer(await peer.segment("orders"), "hostile")
    [form] = [form for form in FORMS if form.name == "value offsets that fall"]
    peer.publish(producer, [good(0), form.make(COUNT), good(2 * COUNT)])
    for _ in range(3):
        _, header, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
        assert header["code"] == CorruptionError.code
        assert "sequence ids 5 to 9" in header["message"]
    peer.publish(producer, [good(0)])
    assert (await peer.receipts(producer, 1))[1] == [0]
