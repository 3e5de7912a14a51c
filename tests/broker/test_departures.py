"""Consumers that go while others are sent messages leave all that they held to these (C2)."""

from __future__ import annotations

import pytest

from tests.broker.sharing import FOUR, HeldReads, hosted, opened, round_trip, taken
from tests.kit.peer import Peer


@pytest.mark.parametrize("reads", [3, 7, 11])
@pytest.mark.parametrize("mode", ["shared", "queue"])
async def test_c2_what_those_held_that_go_as_messages_come_is_delivered(broker, peer: Peer, mode: str, reads: int):
    """One goes in the turn of the loop in which the wait for messages has ended, the next while blocks are read."""
    segment, publisher = await opened(peer)
    boundaries = {"bucketBoundaries": list(FOUR)} if mode == "shared" else {}
    await peer.consumer(segment, mode, name="a", **boundaries)
    await publisher.publish([0, 1, 2, 3] * 4)
    await round_trip(peer, segment)
    await peer.consumer(segment, mode, name="b", **boundaries)
    last = await peer.consumer(segment, mode, name="c", **boundaries)
    await round_trip(peer, segment)
    subscription = hosted(broker)
    consumers = {consumer.name: consumer for consumer in subscription.consumers}
    assert consumers["a"].pending == 16
    with HeldReads(subscription.hosted.segment) as held:
        subscription.hosted.segment._wake()
        consumers["a"].close()
        for _ in range(reads):
            await round_trip(peer, segment)
            assert held.finish()
        consumers["b"].close()
        await round_trip(peer, segment)
        while held.finish():
            await round_trip(peer, segment)
    assert sorted(offset for _, offset in taken(peer, last)) == list(range(16))
