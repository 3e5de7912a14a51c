"""Whoever asks for much at once does not keep others waiting: it is begun some at a time, and nothing is lost of it."""

from __future__ import annotations

import asyncio

from engine._native.serve.waiters import WOKEN_PER_TURN
from engine.broker.pools.admission import FRAMES_PER_TURN, REQUEST_FRAMES, Intake
from engine.limits import MIB
from engine.testing.loop import run_virtual
from engine.testing.maps import encode_bytes
from engine.wire.commands import Command
from tests.kit.peer import WAIT_S, Peer, listening, make_entries, until

ASKED = 10_000


def at_once(peer: Peer, command: Command, headers: list[dict]) -> None:
    """They arrive together."""
    peer.stream.transport.write(b"".join(encode_bytes(command, header) for header in headers))


async def test_another_is_answered_while_ten_thousand_frames_of_one_wait(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        many, other = await Peer.connect(broker, url), await Peer.connect(broker, url)
        crowded, single = broker.connections
        at_once(many, Command.PING, [{}] * ASKED)
        await until(lambda: len(broker.memory.intake))
        before = crowded.pulse.frames
        other.send(Command.PING, {})
        frames = single.pulse.frames
        await until(lambda: single.pulse.frames > frames)
        assert crowded.held
        assert crowded.pulse.frames < ASKED // 2
        await other.take(Command.PONG)
        for _ in range(ASKED):
            await many.take(Command.PONG)
        assert before < crowded.pulse.frames == ASKED + 1
        assert not crowded.held


async def test_in_one_turn_of_the_loop_only_so_much_is_received(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        peers = [await Peer.connect(broker, url) for _ in range(8)]
        connections = list(broker.connections)
        for peer in peers:
            at_once(peer, Command.PING, [{}] * 1_000)
        seen, most = sum(c.pulse.frames for c in connections), 0
        async with asyncio.timeout(WAIT_S):
            while any(c.pulse.frames <= 1_000 for c in connections):
                await asyncio.sleep(0)
                now = sum(c.pulse.frames for c in connections)
                seen, most = now, max(most, now - seen)
        assert most <= FRAMES_PER_TURN + len(peers) + 1
        for peer in peers:
            for _ in range(1_000):
                await peer.take(Command.PONG)


async def test_what_waits_for_its_turn_holds_no_more_memory_than_it_has(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        peers = [await Peer.connect(broker, url) for _ in range(8)]
        for peer in peers:
            at_once(peer, Command.PING, [{}] * 1_000)
        await until(lambda: len(broker.memory.intake) == len(peers))
        assert sum(c.stream.pending_bytes for c in broker.connections) > 0
        assert broker._pool.taken < MIB
        for peer in peers:
            for _ in range(1_000):
                await peer.take(Command.PONG)
        assert broker._pool.taken == 0


def test_what_is_opened_for_a_crowd_is_begun_in_order_and_whoever_comes_meanwhile_does_not_overtake():
    async def play() -> None:
        waiting, begun = Intake(lambda: False), []
        at_once = FRAMES_PER_TURN // REQUEST_FRAMES
        turns = [waiting.request() for _ in range(at_once + 20)]
        assert turns[:at_once] == [None] * at_once
        later = turns[at_once:]
        await asyncio.sleep(0)
        later.append(waiting.request())  # in another turn of the loop, in which little else has come
        for i, turn in enumerate(later):
            assert turn is not None
            turn.add_done_callback(lambda _, i=i: begun.append(i))
        await asyncio.gather(*later)
        assert begun == [*range(21)]
        await until(lambda: waiting.request() is None)

    run_virtual(play())


async def test_all_that_a_crowd_asks_for_is_opened(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        peer = await Peer.connect(broker, url)
        segment = await peer.segment("wanted")
        asked = [peer.next_id() for _ in range(200)]
        what = {"topic": segment, "mode": "reader", "subscription": None, "start": 0}
        subscribe = [{"request_id": one, "consumer_id": one, "consumer_name": f"c{one}", **what} for one in asked]
        at_once(peer, Command.SUBSCRIBE, subscribe)
        assert sorted([(await peer.take(Command.SUBSCRIBE_SUCCESS))[1]["request_id"] for _ in asked]) == asked


async def test_who_is_gone_leaves_nothing_that_waits(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        peer = await Peer.connect(broker, url)
        at_once(peer, Command.PING, [{}] * ASKED)
        await until(lambda: len(broker.memory.intake))
        peer.stream.abort()
        await until(lambda: not broker.connections and not len(broker.memory.intake))
        assert broker._pool.taken == 0


class Publisher(Peer):
    """Looks at a crowd when its message is acknowledged."""

    crowd: tuple[Peer, ...] = ()
    told = 0  # of the crowd, by then

    def frame_received(self, command: Command, header: dict, payload: memoryview) -> None:
        if command is Command.SEND_RECEIPT:
            self.told = sum(any(kind is Command.MESSAGE for kind, *_ in one.frames) for one in self.crowd)
        super().frame_received(command, header, payload)


async def test_a_message_is_acknowledged_before_all_of_a_crowd_have_it(start_broker):
    async with start_broker() as broker:
        publisher = await Publisher.connect(broker)
        segment = await publisher.segment("followed")
        producer = await publisher.producer(segment)
        publisher.crowd = tuple([await Peer.connect(broker) for _ in range(20 * WOKEN_PER_TURN)])
        for one in publisher.crowd:
            await one.consumer(segment, "reader", start=0)
        publisher.publish(producer, make_entries([b"for all"]))
        await publisher.receipts(producer, 1)
        assert publisher.told < len(publisher.crowd) // 2
        for one in publisher.crowd:
            await one.take(Command.MESSAGE)
