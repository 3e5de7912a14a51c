"""Acknowledgements in a shared segment, and what who reads it alone afterwards is sent (semantics 12, 18, 19, C4)."""

from __future__ import annotations

import pytest

from engine.errors import FencedError, InvalidArgumentError
from engine.wire.commands import Command
from tests.broker.sharing import ack, hosted, opened, round_trip, share, taken, taken_until
from tests.kit.peer import Peer

# -- acknowledging -----------------------------------------------------------------------------------------------------


async def test_semantics_19_a_cumulative_ack_is_individual_acks_of_what_lies_at_or_before_it(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        segment, publisher = await opened(peer)
        a = await share(peer, segment, "a")
        await publisher.publish([0, 1, 2, 3] * 5, per_entry=2)
        await taken_until(peer, a, 40)
        await ack(peer, a, buckets=[[0, 17], [2, 40], [3, 7]])
        answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest", subscription="s")
        assert answer["result"]["acknowledged"] == 2
    acknowledged = {o for o, b in enumerate(publisher.buckets) if o < {0: 17, 1: 0, 2: 40, 3: 7}[b]}
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        b = await share(peer, segment, "b")
        got = await taken_until(peer, b, 40 - len(acknowledged))
        assert [o for _, o in got] == [o for o in range(40) if o not in acknowledged]


async def test_c4_acks_in_buckets_of_others_are_fenced_and_those_of_ones_own_saved(broker, peer: Peer):
    segment, publisher = await opened(peer)
    a, b = await share(peer, segment, "a"), await share(peer, segment, "b")
    await publisher.publish([0, 1, 2, 3])
    await round_trip(peer, segment)
    mine, theirs = [bucket for bucket, _ in taken(peer, a)], [bucket for bucket, _ in taken(peer, b)]
    with pytest.raises(FencedError, match=rf"does not own: \[{theirs[0]}, {theirs[1]}\]"):
        await ack(peer, a, position=4)
    assert [hosted(broker).cursor.is_acked(o) for o in range(4)] == [o in mine for o in range(4)]
    await ack(peer, b, buckets=[[bucket, 4] for bucket in theirs])
    assert (await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest", subscription="s"))["result"] == {
        "offset": 4, "first": 0, "end": 4, "sealed": False, "acknowledged": 4, "backlog": 0}  # fmt: skip
    await ack(peer, a, position=4)  # nothing of it is left to be acknowledged


async def test_semantics_12_an_id_kept_from_an_earlier_attachment_is_good_although_nothing_was_read_since(
    broker, peer: Peer
):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 5)
    a = await share(peer, segment, "a")
    await taken_until(peer, a, 20)
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=a)
    again = await share(peer, segment, "a", credit=0)
    await ack(peer, again, buckets=[[0, 20], [1, 6]])
    assert sorted(o for o in range(20) if hosted(broker).cursor.is_acked(o)) == [0, 1, 4, 5, 8, 12, 16]
    peer.flow(again, 1000)
    got = await taken_until(peer, again, 13)
    assert [o for _, o in got] == [2, 3, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19]
    await ack(peer, again, position=20)
    assert hosted(broker).backlog == 0


async def test_semantics_12_of_what_was_not_read_yet_others_buckets_are_fenced(broker, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 2)
    a, _ = await share(peer, segment, "a", credit=0), await share(peer, segment, "b", credit=0)
    with pytest.raises(FencedError):
        await ack(peer, a, position=8)
    assert hosted(broker).backlog == 4


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, "must be cumulative, with either `position` or `buckets`"),
        ({"position": 1, "buckets": [[0, 1]]}, "must be cumulative, with either `position` or `buckets`"),
        ({"position": 99}, "must be 0 to 4, the end of the segment, got 99"),
        ({"position": -1}, "must be 0 to 4, .* got -1"),
        ({"buckets": [[4, 1]]}, "a bucket of .* must be 0 to 3, got 4"),
        ({"buckets": [[0, 5]]}, "must be 0 to 4, the end of the segment, got 5"),
        ({"buckets": [[0]]}, r"`buckets` must have pairs \[bucket, position\], got \[0\]"),
        ({"buckets": [[0, None]]}, r"must have pairs .* got \[0, None\]"),
    ],
)
async def test_malformed_acks_are_refused(said, wrong, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3])
    a = await share(peer, segment, "a")
    with pytest.raises(InvalidArgumentError, match=wrong):
        await ack(peer, a, **said)
    with pytest.raises(InvalidArgumentError):
        await peer.ask(Command.ACK, consumer_id=a, ack_type="individual", ranges=[[0, 0]])


async def test_which_buckets_are_open_below_a_position_can_be_asked(peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 2)
    a = await share(peer, segment, "a")
    await taken_until(peer, a, 8)
    await ack(peer, a, buckets=[[0, 8], [1, 2]])
    asked = [[0, 8], [1, 2], [2, 2], [3, 8]]
    answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest", subscription="s", buckets=asked)
    assert answer["result"]["open_buckets"] == [3]
    asked = [[0, 8], [1, 6], [2, 3], [3, 3]]
    answer = await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest", subscription="s", buckets=asked)
    assert answer["result"]["open_buckets"] == [1, 2]


# -- exclusive after shared --------------------------------------------------------------------------------------------


async def test_semantics_18_who_reads_alone_after_sharing_is_not_sent_what_is_acknowledged(broker, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 10, per_entry=3)
    a = await share(peer, segment, "a")
    await taken_until(peer, a, 120)
    await ack(peer, a, buckets=[[0, 1], [1, 120], [2, 61], [3, 120]])
    await peer.ask(Command.CLOSE_CONSUMER, consumer_id=a)
    expected = [o for o in range(120) if not hosted(broker).cursor.is_acked(o)]
    lone = await peer.consumer(segment, "exclusive", name="b")
    got = await taken_until(peer, lone, len(expected))
    assert [o for _, o in got] == expected
    assert hosted(broker).consumers[0].pending == len(expected)
    await ack(peer, lone, buckets=[[0, 120]])
    assert hosted(broker).backlog == sum(publisher.buckets[o] == 2 for o in expected)
    await ack(peer, lone, position=120)
    assert hosted(broker).backlog == 0
    assert not hosted(broker).cursor.acked_count


async def test_who_reads_alone_acknowledges_by_buckets(broker, peer: Peer):
    segment, publisher = await opened(peer)
    await publisher.publish([0, 1, 2, 3] * 5)
    lone = await peer.consumer(segment, "exclusive", name="a")
    await taken_until(peer, lone, 20)
    await ack(peer, lone, buckets=[[0, 9], [1, 9], [2, 13], [3, 20]])
    acked = [o for o in range(20) if hosted(broker).cursor.is_acked(o)]
    assert acked == [*range(9), 10, 11, 15, 19]
    await ack(peer, lone, buckets=[[b, 20] for b in range(4)])
    assert (hosted(broker).backlog, hosted(broker).cursor.position) == (0, 20)
