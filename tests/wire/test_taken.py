"""Whoever waits until the peer has taken what was queued is told, in order, and when the stream ends."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from engine.testing.loop import run_virtual
from engine.testing.maps import over_maps
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Command, Ping
from engine.wire.connector import SocketConnector
from engine.wire.memory import connect_pair
from engine.wire.taken import Taken
from engine.wire.tcp import listen


class End:
    """One end of a connection, that hears and does nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lost = asyncio.Event()

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


def test_in_order_as_far_as_it_was_taken_and_the_rest_at_the_end():
    async def play() -> None:
        at, told = [0], []
        taken = Taken(lambda: at[0])
        for position in (10, 20, 30):
            taken.add(position, lambda position=position: told.append(position))
        assert told == []  # never from inside of add()
        at[0] = 20
        await asyncio.sleep(1)
        assert told == [10, 20]
        taken.end()
        assert told == [10, 20]
        await asyncio.sleep(0)
        assert told == [10, 20, 30]

    run_virtual(play())


async def test_over_tcp_it_is_when_the_system_has_it_and_when_the_connection_ends():
    accepted: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def accept(stream: Any) -> End:
        accepted.set_result(End(stream))
        return accepted.result()

    server = await listen("127.0.0.1", 0, over_maps(accept), pool=ChunkPool())
    host, port = server.sockets[0].getsockname()[:2]
    near = await SocketConnector().connect(f"engine://{host}:{port}", over_maps(End))
    taken = asyncio.Event()
    near.send(Ping())
    near.when_taken(taken.set)
    await asyncio.wait_for(taken.wait(), 20)
    far, told = await accepted, asyncio.Event()
    near.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # type: ignore
    near.pause_reading()
    for _ in range(16):
        far.stream.send(Command.MESSAGE, {}, bytes(1 << 20))
    far.stream.when_taken(told.set)
    await asyncio.sleep(0)
    assert far.stream.unsent_bytes > 0
    assert not told.is_set()
    far.stream.abort()
    await asyncio.wait_for(told.wait(), 20)
    late = asyncio.Event()
    await far.lost.wait()
    far.stream.when_taken(late.set)
    await asyncio.wait_for(late.wait(), 20)
    near.abort()
    server.close()


async def test_in_memory_it_is_when_the_other_end_was_given_it():
    far: list[End] = []

    def make(stream: Any) -> End:
        far.append(End(stream))
        return far[-1]

    near = connect_pair(over_maps(End), over_maps(make))
    far[0].stream.pause_reading()
    taken = asyncio.Event()
    near.send(Ping())
    near.when_taken(taken.set)
    await asyncio.sleep(0.005)
    assert not taken.is_set()
    far[0].stream.resume_reading()
    await asyncio.wait_for(taken.wait(), 20)
    near.abort()
    await far[0].lost.wait()
