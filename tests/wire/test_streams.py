"""What every FrameStream does, over TCP and in memory alike."""

from __future__ import annotations

import asyncio
import socket
import tempfile

import pytest

from engine.errors import ConnectError, InvalidArgumentError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, MIB
from engine.testing.maps import fields_of, over_maps, packed
from engine.wire import unix
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Command, Header, SubscribeSuccess
from engine.wire.connector import SocketConnector
from engine.wire.memory import connect_pair, offer_pair
from engine.wire.tcp import listen
from engine.wire.url import parse_address, parse_url


class End:
    """A FrameHandler that records what happens to it."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.frames: list = []
        self.events: list[str] = []
        self.lost: asyncio.Future = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()

    def frame_received(self, command, header, payload) -> None:
        self.frames.append((command, header, payload))
        self.changed.set()

    def pause_writing(self) -> None:
        self.events.append("pause")
        self.changed.set()

    def resume_writing(self) -> None:
        self.events.append("resume")
        self.changed.set()

    def connection_lost(self, error) -> None:
        assert not self.lost.done()
        self.lost.set_result(error)
        self.changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def tcp_pair():
    ends: list[End] = []

    def accept(stream):
        ends.append(End(stream))
        return ends[-1]

    server = await listen("127.0.0.1", 0, over_maps(accept), pool=ChunkPool())
    port = server.sockets[0].getsockname()[1]
    client: list[End] = []

    def handler(stream):
        client.append(End(stream))
        return client[-1]

    await SocketConnector().connect(f"engine://127.0.0.1:{port}", over_maps(handler))
    while not ends:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    server.close()
    return client[0], ends[0]


async def memory_pair():
    ends: list[End] = []

    def accept(stream):
        ends.append(End(stream))
        return ends[-1]

    connect_pair(over_maps(accept), over_maps(accept))
    return ends[1], ends[0]


async def far_pair():
    """As of two loops, on one."""
    left: list[End] = []
    right: list[End] = []

    def accept_into(ends):
        return over_maps(lambda stream: ends.append(End(stream)) or ends[-1])

    await offer_pair(accept_into(right), names=("client", "broker")).settle_far(accept_into(left))
    return left[0], right[0]


async def unix_pair():
    ends: list[End] = []
    both = asyncio.Event()

    def made(stream):
        ends.append(End(stream))
        if len(ends) == 2:
            both.set()
        return ends[-1]

    with tempfile.TemporaryDirectory() as directory:
        listener = await unix.listen(f"{directory}/s", over_maps(made), pool=ChunkPool())
        connected = await SocketConnector().connect(listener.url, over_maps(made))
        await asyncio.wait_for(both.wait(), 10)
        listener.close()
    ends.sort(key=lambda end: end.stream is not connected)
    return ends[0], ends[1]


@pytest.fixture(params=[tcp_pair, unix_pair, memory_pair, far_pair], ids=["tcp", "unix", "memory", "far"])
async def pair(request):
    left, right = await request.param()
    yield left, right
    left.stream.abort()
    right.stream.abort()
    await asyncio.wait_for(asyncio.gather(left.lost, right.lost), 10)


def number(n: int):
    """A frame that carries it."""
    return Command.REACHED_END, {"consumer_id": n, "end": 0}


def send(end: End, number: int, payload=b"") -> None:
    end.stream.send(Command.SEND, {"producer_id": number, "entries": 1}, payload)


async def test_frames_arrive_in_order_with_their_payloads(pair):
    left, right = pair
    for n in range(200):
        send(left, n, [b"ab", memoryview(b"cd" * n)] if n % 3 else b"x" * (n * 500))
    await right.until(lambda: len(right.frames) == 200)
    for n, (command, header, payload) in enumerate(right.frames):
        assert command is Command.SEND
        assert header["producer_id"] == n
        assert bytes(payload) == (b"ab" + b"cd" * n if n % 3 else b"x" * (n * 500))


async def test_what_is_gathered_comes_whole_and_in_order(pair):
    left, right = pair
    for n in range(3):
        left.stream.gather()
        left.stream.send(*number(n))
    left.stream.send(Command.PONG, {}, b"x" * MIB)
    await right.until(lambda: len(right.frames) == 4)
    assert [header.get("consumer_id") for _, header, _ in right.frames] == [0, 1, 2, None]


class Written:
    """A transport that notes what is written to another."""

    def __init__(self, transport, written):
        self._transport = transport
        self._written = written

    def write(self, data):
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)


def writes_of(stream):
    written = []
    stream.transport = Written(stream.transport, written)
    return written


@pytest.mark.parametrize("pair", [tcp_pair], ids=["tcp"], indirect=True)
@pytest.mark.parametrize("gathered", [True, False])
async def test_the_first_frame_waits_for_the_others_of_its_turn_where_it_is_told_to(pair, gathered):
    left, right = pair
    written = writes_of(left.stream.stream)
    if gathered:
        left.stream.gather()
        left.stream.gather()
    for _ in range(3):
        left.stream.send(Command.PING, {})
    assert len(written) == (0 if gathered else 1)
    assert bool(left.stream.unsent_bytes) is True
    await right.until(lambda: len(right.frames) == 3)
    assert len(written) == (1 if gathered else 2)
    written.clear()
    left.stream.send(Command.PING, {})
    assert len(written) == 1  # that turn is over
    await right.until(lambda: len(right.frames) == 4)


@pytest.mark.parametrize("pair", [tcp_pair], ids=["tcp"], indirect=True)
async def test_what_was_gathered_goes_at_once_where_it_is_told_to(pair):
    left, right = pair
    written = writes_of(left.stream.stream)
    left.stream.gather()
    for n in range(3):
        left.stream.send(*number(n))
    assert written == []
    left.stream.flush()
    left.stream.flush()
    assert len(written) == 1
    left.stream.send(*number(3))
    assert len(written) == 1  # the turn is not over
    await right.until(lambda: len(right.frames) == 4)
    assert len(written) == 2
    assert [header["consumer_id"] for _, header, _ in right.frames] == [0, 1, 2, 3]


async def test_a_flush_keeps_the_order(pair):
    left, right = pair
    for n in range(6):
        left.stream.send(*number(n), b"x" * (20_000 if n == 3 else 0))
        if n % 2:
            left.stream.flush()
    await right.until(lambda: len(right.frames) == 6)
    assert [header["consumer_id"] for _, header, _ in right.frames] == list(range(6))


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_flush_of_what_has_ended_is_nothing(pair, end):
    left, right = pair
    left.stream.send(*number(1))
    getattr(left.stream, end)()
    left.stream.send(*number(2))
    left.stream.flush()
    await left.lost
    left.stream.flush()
    await right.lost
    assert all(header["consumer_id"] == 1 for _, header, _ in right.frames)


async def test_what_is_gathered_is_gone_with_the_connection(pair):
    left, right = pair
    left.stream.gather()
    left.stream.abort()
    left.stream.send(Command.PING, {})
    await right.lost
    await left.lost
    left.stream.gather()
    await asyncio.sleep(0)
    assert right.frames == []


@pytest.mark.parametrize("pair", [tcp_pair], ids=["tcp"], indirect=True)
async def test_no_end_of_a_tcp_connection_holds_a_small_frame_back(pair):
    """Nagle's delay would keep an answer that follows a block until the peer acknowledges the block: 40 ms, mostly."""
    for end in pair:
        sock = end.stream.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_back_pressure_reaches_the_sender_and_is_lifted(pair):
    left, right = pair
    right.stream.pause_reading()
    block = bytes(MIB)
    sent = 0
    while "pause" not in left.events and sent < 200:
        send(left, sent, block)
        sent += 1
        await asyncio.sleep(0)
    assert left.events == ["pause"]
    assert left.stream.unsent_bytes >= CONNECTION_WRITE_HIGH
    assert right.frames == []
    right.stream.resume_reading()
    await left.until(lambda: left.events == ["pause", "resume"])
    await right.until(lambda: len(right.frames) == sent)


async def test_pause_from_inside_a_delivery_stops_the_next_frame(pair):
    left, right = pair
    original = right.frame_received

    def pause_after_two(command, header, payload):
        original(command, header, payload)
        if len(right.frames) == 2:
            right.stream.pause_reading()

    right.frame_received = pause_after_two
    for n in range(5):
        send(left, n)
    await right.until(lambda: len(right.frames) >= 2)
    await asyncio.sleep(0.01)
    assert len(right.frames) == 2
    right.stream.resume_reading()
    await right.until(lambda: len(right.frames) == 5)


async def test_close_sends_what_is_queued(pair):
    left, right = pair
    for n in range(20):
        send(left, n, bytes(300_000))
    left.stream.close()
    send(left, 99)
    assert await asyncio.wait_for(right.lost, 10) is None
    assert await asyncio.wait_for(left.lost, 10) is None
    assert len(right.frames) == 20


async def test_abort_ends_both_sides(pair):
    left, right = pair
    left.stream.abort()
    await asyncio.wait_for(asyncio.gather(left.lost, right.lost), 10)
    send(left, 1)
    send(right, 1)
    assert right.frames == []


async def test_a_bad_field_ends_the_connection_with_a_protocol_error(pair):
    left, right = pair
    left.stream.send(Command.SEND, {"producer_id": "one", "entries": 1})
    assert isinstance(await asyncio.wait_for(right.lost, 10), ProtocolError)
    await asyncio.wait_for(left.lost, 10)


async def test_in_memory_a_header_is_handed_over_as_it_is():
    got: list[Header] = []

    def accept(stream):
        end = End(stream)
        end.frame_received = lambda header, payload: got.append(header)
        return end

    near = connect_pair(accept, accept)
    sent = SubscribeSuccess(request_id=1, consumer_id=2, position=3, first=0, gaps=[[4, 5]])
    near.send(sent)
    near.send(packed(sent.command, fields_of(sent)))
    while len(got) < 2:  # noqa: ASYNC110 - steps of the loop
        await asyncio.sleep(0)
    assert got[0] is sent
    assert got[1] == sent
    near.abort()


async def test_connect_says_what_was_wrong():
    server = await listen("127.0.0.1", 0, End, pool=ChunkPool())
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectError, match="the address is in use"):
        await listen("127.0.0.1", port, End, pool=ChunkPool())
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectError, match="connection refused; is a broker listening there"):
        await SocketConnector().connect(f"engine://127.0.0.1:{port}", End)


@pytest.mark.parametrize(
    "url", ["http://h:1", "engine://", "engine://h:x", "engine://h/p", "h:1", "", 7, "engine://u@h:1"]
)
def test_malformed_urls_are_refused(url):
    with pytest.raises(InvalidArgumentError, match="service URL"):
        parse_url(url)


def test_urls_and_addresses():
    assert parse_url("engine://broker") == ("broker", 6650)
    assert parse_url("engine://[::1]:7/") == ("::1", 7)
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("localhost") == ("localhost", 6650)
    assert parse_address("[::1]", 8080) == ("::1", 8080)
    assert parse_address("engine://h:5") == ("h", 5)
