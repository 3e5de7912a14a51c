"""Who is told in which files messages lie, and what of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine._native.consume.batch import decode_block
from engine.broker.server import Broker
from engine.broker.session import short_circuit
from engine.errors import NotFoundError, UnsupportedError
from engine.testing.maps import encode
from engine.wire.commands import FEATURES, MAGIC, OBJECT_READS, PROTOCOL_VERSION, SHORT_CIRCUIT_READS, Command
from tests.kit.peer import Peer, listening, make_entries

ASK = {"start": 0, "stop": 100}


async def published(peer: Peer, count: int = 100) -> str:
    """The segment."""
    segment: str = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"%d" % n for n in range(count)], per_entry=10))
    await peer.receipts(producer, count // 10)
    return segment


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_who_is_near_is_told(broker: Broker, tmp_path: Path):
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    assert SHORT_CIRCUIT_READS in (await peer.hello())["features"]
    segment = await published(peer)
    answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, start=25, stop=55))["result"]
    assert (answer["upto"], answer["hidden"]) == (55, [])
    ((path, opening, salt, position, end, next_offset),) = answer["files"]
    image = read(path)
    assert path.startswith(f"{tmp_path}/data/")
    assert image.startswith(opening)
    assert next_offset == 100
    entries = decode_block(memoryview(image)[position:end], salt, 0, -1, None)
    assert [e.first_offset for e in entries] == list(range(0, 100, 10))


async def test_it_begins_shortly_before_what_is_asked_for(broker: Broker):
    peer = await Peer.connect(broker, await listening(broker))
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([bytes(50_000) for _ in range(40)]))
    await peer.receipts(producer, 40)
    answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, start=30, stop=40))["result"]
    ((_, _, _, position, end, _),) = answer["files"]
    assert 0 < (end - position) - 10 * 50_000 < 150_000


async def test_there_is_nothing_where_nothing_is_asked_for_or_there(broker: Broker):
    peer = await Peer.connect(broker, await listening(broker))
    segment = await published(peer)
    for start, stop, upto in ((0, 0, 0), (100, 200, 100), (500, 600, 500), (-5, 3, -5), (9, 3, 9)):
        answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, start=start, stop=stop))["result"]
        assert answer == {"files": [], "upto": upto, "hidden": []}
    with pytest.raises(NotFoundError):
        await peer.ask(Command.SEGMENT_FILES, topic=segment.replace("orders", "nowhere"), **ASK)


async def test_what_is_open_or_hidden_is_said(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    peer = await Peer.connect(broker, await listening(broker))
    segment = await published(peer, 30)
    hosted = next(iter(broker.segments))
    buffer = await hosted.begin_transactions()
    first, second = buffer.visibility.wrote(10, 19), buffer.visibility.wrote(20, 29)
    answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, **ASK))["result"]
    assert (answer["upto"], answer["hidden"], len(answer["files"])) == (10, [], 1)
    buffer.visibility.decide(first, visible=False)
    answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, **ASK))["result"]
    assert (answer["upto"], answer["hidden"]) == (20, [[10, 19]])
    buffer.visibility.decide(second, visible=True)
    answer = (await peer.ask(Command.SEGMENT_FILES, topic=segment, **ASK))["result"]
    assert (answer["upto"], answer["hidden"]) == (30, [[10, 19]])
    assert hosted.near_messages == 10 + 10 + 20
    monkeypatch.setattr(short_circuit, "HIDDEN_MAX", 0)
    assert not (await peer.ask(Command.SEGMENT_FILES, topic=segment, **ASK))["result"]["files"]


@pytest.mark.parametrize("how", ["in this process", "over a proxy", "without the feature"])
async def test_nobody_else_is_told(broker: Broker, how: str):
    peer = await Peer.connect(broker, None if how == "in this process" else await listening(broker), hello=False)
    changes = {
        "in this process": {},
        "over a proxy": {"forwarded": "tcp://10.1.2.3:4567"},
        "without the feature": {"features": [f for f in FEATURES if f != SHORT_CIRCUIT_READS]},
    }[how]
    assert SHORT_CIRCUIT_READS not in (await peer.hello(**changes))["features"]
    segment = await published(peer)
    with pytest.raises(UnsupportedError):
        await peer.ask(Command.SEGMENT_FILES, topic=segment, **ASK)


async def test_a_broker_without_a_store_of_objects_names_none(broker: Broker):
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    assert OBJECT_READS not in (await peer.hello())["features"]
    segment = await published(peer)
    with pytest.raises(UnsupportedError, match=OBJECT_READS):
        await peer.ask(Command.SEGMENT_FILES, topic=segment, objects=True, **ASK)


async def test_not_where_it_is_switched_off(start_broker):
    async with start_broker(short_circuit_reads=False) as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        assert SHORT_CIRCUIT_READS not in (await peer.hello())["features"]


async def test_another_address_is_another_machine(broker: Broker):
    """As far as anybody can tell."""
    host, port = await broker.serve("127.0.0.1", 0)
    hello = {"magic": MAGIC, "protocol": PROTOCOL_VERSION, "features": list(FEATURES), "client": "test"}
    for address, near in (("127.0.0.1", True), ("127.0.0.2", False)):
        reader, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
        writer.writelines(encode(Command.CONNECT, hello)[0])
        async with asyncio.timeout(20):
            answer = await reader.readuntil(b"frame_size_max")
        assert (SHORT_CIRCUIT_READS.encode() in answer) is near
        writer.close()
        await writer.wait_closed()
