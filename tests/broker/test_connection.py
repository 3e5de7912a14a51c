"""Handshake, keep-alive, garbage, flooding and stuck peers."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from engine.errors import ConnectError, ProtocolError, UnsupportedError
from engine.limits import CONNECTION_WRITE_HIGH, FRAME_SIZE_MAX, MIB
from engine.wire.commands import Command
from tests.kit.peer import Peer, make_entries


async def test_handshake_tells_versions_features_and_addresses(connect, broker):
    peer = await connect(hello=False)
    answer = await peer.hello(features=["scalable-topics", "telepathy"], protocol=7)
    assert answer["protocol"] == 1
    assert answer["features"] == ["scalable-topics"]
    assert answer["broker"].startswith("engine://")
    assert answer["keep_alive"] == broker.config.keep_alive
    assert answer["frame_size_max"] == FRAME_SIZE_MAX


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"magic": "http"}, ProtocolError),
        ({"protocol": 0}, UnsupportedError),
        ({"features": []}, UnsupportedError),
    ],
)
async def test_a_peer_that_does_not_fit_hears_why(connect, changes, error):
    peer = await connect(hello=False)
    with pytest.raises(error):
        await peer.hello(**changes)
    await asyncio.wait_for(peer.lost, 10)


async def test_anything_before_connect_is_refused(connect):
    peer = await connect(hello=False)
    peer.send(Command.PING, {})
    _, answer, _ = await peer.take(Command.ERROR)
    assert answer["code"] == ProtocolError.code
    await asyncio.wait_for(peer.lost, 10)


async def test_commands_that_are_not_for_brokers_are_refused(peer: Peer):
    peer.send(Command.SEND_RECEIPT, {"producer_id": 1, "sequences": [], "offsets": [], "durability": "os"})
    _, answer, _ = await peer.take(Command.ERROR)
    assert answer["code"] == ProtocolError.code
    await asyncio.wait_for(peer.lost, 10)


async def test_no_handshake_in_time(start_broker):
    async with start_broker(handshake_timeout=0.05) as broker:
        peer = await Peer.connect(broker, hello=False)
        await asyncio.wait_for(peer.lost, 10)
        assert not broker.connections


async def test_too_many_connections_are_told(start_broker):
    async with start_broker(connections_max=2) as broker:
        peers = [await Peer.connect(broker) for _ in range(2)]
        surplus = await Peer.connect(broker, hello=False)
        with pytest.raises(ConnectError, match="maximum of 2"):
            await surplus.hello()
        await asyncio.wait_for(surplus.lost, 10)
        await peers[0].close()
        await Peer.connect(broker)


async def test_silent_peers_are_pinged_then_dropped(start_broker):
    async with start_broker(keep_alive=0.5) as broker:
        living, dead = await Peer.connect(broker), await Peer.connect(broker)
        dead.answer_pings = False
        await dead.take(Command.PING)
        await asyncio.wait_for(dead.lost, 60)
        assert len(broker.connections) == 1
        assert not living.lost.done()


async def test_a_broker_that_stood_still_does_not_blame_its_peers(start_broker):
    """As when it was stopped, or had no processor for longer than two periods."""
    async with start_broker(keep_alive=0.4) as broker:
        host, port = await broker.serve("127.0.0.1", 0)
        peers = [await Peer.connect(broker), await Peer.connect(broker, f"engine://{host}:{port}")]
        for peer in peers:
            peer.answer_pings = False
        for peer in peers:
            await peer.take(Command.PING)
        time.sleep(1.0)  # noqa: ASYNC251 - the whole process stands still
        for _ in range(3):
            await asyncio.sleep(0)  # the broker looks before anything has come
        for peer in peers:
            peer.answer_pings = True
            peer.send(Command.PONG, {})
        for peer in peers:
            await peer.lookup("orders")
            assert not peer.lost.done()
            await peer.close()


async def test_pings_are_answered(peer: Peer):
    peer.send(Command.PING, {})
    await peer.take(Command.PONG)


@pytest.mark.parametrize("seed", range(8))
async def test_garbage_on_the_port_hurts_nobody(broker, seed):
    host, port = await broker.serve("127.0.0.1", 0)
    good = await Peer.connect(broker, f"engine://{host}:{port}")
    rng = random.Random(seed)
    hellos = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    garbage = [*hellos, rng.randbytes(5000), b"\0" * 100]
    for data in garbage:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(data)
        assert await asyncio.wait_for(reader.read(), 10) is not None
        writer.close()
    await good.lookup("orders")
    assert len(broker.connections) == 1
    await good.close()


async def test_garbage_after_the_handshake_ends_the_connection(broker):
    host, port = await broker.serve("127.0.0.1", 0)
    peer = await Peer.connect(broker, f"engine://{host}:{port}")
    await peer.producer(await peer.segment("orders"))
    peer.stream.transport.write(b"\xff" * 64)
    await asyncio.wait_for(peer.lost, 10)
    assert not broker.connections
    assert all(not hosted.producers for hosted in broker.segments)


async def test_half_a_frame_and_then_nothing_is_dropped(start_broker):
    async with start_broker(keep_alive=0.1) as broker:
        host, port = await broker.serve("127.0.0.1", 0)
        peer = await Peer.connect(broker, f"engine://{host}:{port}")
        peer.answer_pings = False
        peer.stream.transport.write(b"\x00\x01\x00\x00\x16")
        await asyncio.wait_for(peer.lost, 60)


async def test_a_client_that_stops_reading_costs_bounded_memory_and_hurts_nobody(broker):
    host, port = await broker.serve("127.0.0.1", 0)
    stuck, good = [await Peer.connect(broker, f"engine://{host}:{port}") for _ in range(2)]
    segment = await good.segment("orders")
    producer = await good.producer(segment)
    entries = make_entries([bytes(MIB)] * 40)
    for entry in entries:
        good.publish(producer, [entry])
    await good.receipts(producer, 40)
    ident = await stuck.consumer(segment, "reader", None, credit=0)
    stuck.stop_reading()
    stuck.flow(ident, 10**6, 10**9)
    consumer = await good.consumer(segment, "exclusive")
    good.flow(consumer, 100, 100 * MIB)
    assert len(await good.messages(consumer, 40)) == 40
    unsent = max(c.stream.unsent_bytes for c in broker.connections)
    assert unsent <= CONNECTION_WRITE_HIGH + 2 * MIB
    stuck.resume_reading()
    await stuck.messages(ident, 40)
    await stuck.close()
    await good.close()


async def test_a_stuck_peer_is_dropped(start_broker):
    async with start_broker(keep_alive=1.0) as broker:
        host, port = await broker.serve("127.0.0.1", 0)
        good, stuck = [await Peer.connect(broker, f"engine://{host}:{port}") for _ in range(2)]
        segment = await good.segment("orders")
        producer = await good.producer(segment)
        for entry in make_entries([bytes(MIB)] * 24):
            good.publish(producer, [entry])
        await good.receipts(producer, 24)
        ident = await stuck.consumer(segment, "reader", None, credit=0)
        stuck.stop_reading()
        stuck.flow(ident, 10**6, 10**9)
        await good.until(lambda: True)
        async with asyncio.timeout(60):
            while len(broker.connections) > 1:
                stuck.send(Command.PING, {})  # it talks, but takes nothing
                await good.lookup("orders")
                await asyncio.sleep(0.05)
        stuck.stream.abort()
        await good.close()


async def test_one_who_asks_and_does_not_read_is_not_listened_to(broker):
    host, port = await broker.serve("127.0.0.1", 0)
    peer = await Peer.connect(broker, f"engine://{host}:{port}")
    peer.stream.pause_reading()
    topic = "t" * 200
    for _ in range(200_000):
        peer.send(Command.SCALABLE_TOPIC_LOOKUP, {"request_id": 1, "session_id": 1, "topic": topic, "create": False})
        if peer.stream.unsent_bytes > 8 * MIB:
            break
    (connection,) = broker.connections
    async with asyncio.timeout(20):
        while peer.stream.unsent_bytes and not connection.held:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    assert connection.stream.unsent_bytes < 64 * MIB
    peer.stream.abort()


async def test_publishing_above_the_limit_is_held_up_and_goes_on(start_broker):
    async with start_broker(publish_bytes_max=FRAME_SIZE_MAX) as broker:
        host, port = await broker.serve("127.0.0.1", 0)
        peer = await Peer.connect(broker, f"engine://{host}:{port}")
        producer = await peer.producer(await peer.segment("orders"))
        entries = make_entries([bytes(4 * MIB)] * 20)
        for entry in entries:
            peer.publish(producer, [entry])
        await peer.receipts(producer, 20)
        assert broker.memory.in_flight == 0
        assert broker.memory.publish.peak <= FRAME_SIZE_MAX + 8 * MIB
        await peer.close()


async def test_losing_the_connection_detaches_everything(broker, peer: Peer, segment: str):
    await peer.producer(segment)
    await peer.consumer(segment, "exclusive")
    await peer.consumer(segment, "queue", "q")
    await peer.consumer(segment, "reader", None)
    (hosted,) = broker.segments
    assert hosted.in_use
    peer.stream.abort()
    await asyncio.wait_for(peer.lost, 10)
    while broker.connections:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    assert not hosted.in_use
    assert not list(hosted.consumers)


async def test_close_lets_receipts_out_and_ends_connections(start_broker):
    async with start_broker() as broker:
        host, port = await broker.serve("127.0.0.1", 0)
        peer = await Peer.connect(broker, f"engine://{host}:{port}")
        producer = await peer.producer(await peer.segment("orders"))
        peer.publish(producer, make_entries([b"x"] * 10))
        await peer.receipts(producer, 1)
    assert await asyncio.wait_for(peer.lost, 10) is None
    with pytest.raises(ConnectError):
        await Peer.connect(broker, f"engine://{host}:{port}")
    await broker.close()


async def test_a_broker_that_is_not_running_refuses(tmp_path):
    from engine.broker.server import Broker

    broker = Broker(tmp_path)
    peer = await Peer.connect(broker, hello=False)
    with pytest.raises(ConnectError, match="not running"):
        await peer.hello()
    await broker.close()
