"""The network that delays, holds and loses."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH
from engine.testing.loop import run_virtual
from engine.testing.maps import over_maps
from engine.testing.network import SimNetwork
from engine.wire.commands import Command

URL = "engine://server:6650"


class Owner:
    """Keeps what it was told."""

    def __init__(self):
        self.stream = None
        self.frames = []
        self.paused = False
        self.lost = []

    def __call__(self, stream):
        self.stream = stream
        return self

    def frame_received(self, command, header, payload):
        self.frames.append((command, header, bytes(payload)))

    def pause_writing(self):
        self.paused = True

    def resume_writing(self):
        self.paused = False

    def connection_lost(self, error):
        self.lost.append(error)


async def joined(seed=0, **options):
    network = SimNetwork(random.Random(seed), **options)
    server, client = Owner(), Owner()
    network.listen("server", URL, over_maps(server))
    await network.connector("client").connect(URL, over_maps(client))
    return network, server, client


def number(n):
    return Command.ERROR, {"request_id": n, "code": 1, "message": "m"}


@pytest.mark.parametrize("seed", range(20))
def test_frames_arrive_late_whole_and_in_order(seed):
    async def body():
        _, server, client = await joined(seed)
        for n in range(100):
            client.stream.send(*number(n), bytes([n]) * (8 * n))
        assert server.frames == []
        await asyncio.sleep(1)
        assert [frame[1]["request_id"] for frame in server.frames] == list(range(100))
        assert all(frame[2] == bytes([n]) * (8 * n) for n, frame in enumerate(server.frames))
        assert client.stream.unsent_bytes == 0

    run_virtual(body())


def test_nobody_listens():
    async def body():
        network = SimNetwork(random.Random(0))
        with pytest.raises(ConnectError, match="refused"):
            await network.connector("client").connect(URL, Owner())

    run_virtual(body())


def test_close_delivers_what_was_sent_and_tells_both():
    async def body():
        _, server, client = await joined()
        client.stream.send(*number(1))
        client.stream.close()
        client.stream.send(*number(2))
        await asyncio.sleep(1)
        assert len(server.frames) == 1
        assert (client.lost, server.lost) == ([None], [None])

    run_virtual(body())


def test_abort_resets_the_peer():
    async def body():
        _, server, client = await joined()
        client.stream.abort()
        client.stream.abort()
        await asyncio.sleep(1)
        assert client.lost == [None]
        assert [type(e) for e in server.lost] == [ConnectError]

    run_virtual(body())


def test_a_reset_loses_what_was_on_its_way_and_tells_both():
    async def body():
        network, server, client = await joined(delay_s=(0.1, 0.2))
        client.stream.send(*number(1))
        assert network.reset("client", "server") == 1
        await asyncio.sleep(1)
        assert server.frames == []
        assert [type(e) for e in server.lost + client.lost] == [ConnectError] * 2

    run_virtual(body())


def test_a_partition_holds_everything_until_it_heals():
    async def body():
        network, server, client = await joined()
        network.partition("server", "client")
        client.stream.send(*number(1))
        await asyncio.sleep(60)
        assert server.frames == []
        with pytest.raises(ConnectError, match="within"):
            await network.connector("client").connect(URL, Owner())
        network.heal()
        client.stream.send(*number(2))
        await asyncio.sleep(1)
        assert [frame[1]["request_id"] for frame in server.frames] == [1, 2]
        assert client.lost == server.lost == []

    run_virtual(body())


def test_a_killed_host_hears_nothing_and_its_peer_hears_of_it():
    async def body():
        network, server, client = await joined()
        client.stream.send(*number(1))
        network.kill("server")
        await asyncio.sleep(1)
        assert (server.frames, server.lost) == ([], [])
        assert [type(e) for e in client.lost] == [ConnectError]
        with pytest.raises(ConnectError, match="refused"):
            await network.connector("client").connect(URL, Owner())

    run_virtual(body())


def test_a_reader_that_pauses_backs_the_writer_up():
    async def body():
        _, server, client = await joined()
        server.stream.pause_reading()
        chunk = bytes(1 << 20)
        while client.stream.unsent_bytes <= CONNECTION_WRITE_HIGH:
            client.stream.send(*number(0), chunk)
        await asyncio.sleep(1)
        assert client.paused
        assert server.frames == []
        server.stream.resume_reading()
        await asyncio.sleep(1)
        assert not client.paused
        assert len(server.frames) == 4

    run_virtual(body())


def test_a_frame_of_the_wrong_form_ends_the_connection():
    async def body():
        _, server, client = await joined()
        client.stream.send(Command.ERROR, {"request_id": "text"})
        await asyncio.sleep(1)
        assert [type(e) for e in server.lost] == [ProtocolError]
        assert [type(e) for e in client.lost] == [ConnectError]

    run_virtual(body())
