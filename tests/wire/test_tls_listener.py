"""`TlsListener` on both event loops: who comes in, who does not and is reported, and nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from engine.broker.settings.handshakes import Handshake, HandshakesInFlight
from engine.errors import ConnectError
from engine.wire import tls_listener
from engine.wire.certificates import certificate_of
from engine.wire.tcp import serve
from engine.wire.tls_listener import TlsListener
from tests.kit.handshakes import ELSEWHERE, HERE, LOOPS, SECRET, WAIT_S, Stranger, run_on, until

FAILURES = {
    "no certificate": "PEER_DID_NOT_RETURN_A_CERTIFICATE",
    "a certificate of another authority": "CERTIFICATE_VERIFY_FAILED",
    "an expired certificate": "CERTIFICATE_VERIFY_FAILED",
    "plain text": "HTTP_REQUEST",
    "garbage": None,  # the library's word for it
    "half a handshake, then the end": "the peer hung up",
    "half a handshake, then silence": "none within 0.",
    "silence": "none within 0.",
}

on_both_loops = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return Stranger(tmp_path_factory.mktemp("certificates"))


class Failures:
    """A gate that notes what it is told. `crowded`: the addresses that it refuses."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.crowded: set[str] = set()
        self.asked = 0
        self.in_flight = HandshakesInFlight()

    def handshakes_crowded(self, peer: str) -> bool:
        self.asked += 1
        return peer in self.crowded

    def handshake_begins(self, peer: str, give_up: Callable[[], None]) -> Handshake | None:
        return self.in_flight.begin(peer, give_up)

    def handshake_ended(self, begun: Handshake) -> None:
        self.in_flight.end(begun)

    def handshake_failed(self, peer: str, why: str) -> None:
        self.found.append((peer, why))


class Echo(asyncio.Protocol):
    """Says what it hears. `made`: all that were."""

    made: list[Echo]
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.made.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.made.remove(self)


class Port:
    def __init__(self, gate: Failures, listener: TlsListener) -> None:
        self.gate, self.listener = gate, listener
        self.made: list[Echo] = []

    def make(self) -> Echo:
        echo = Echo()
        echo.made = self.made
        return echo

    @property
    def number(self) -> int:
        return self.listener.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def port(stranger: Stranger, timeout: float = WAIT_S, host: str = HERE, **more: Any) -> AsyncIterator[Port]:
    gate = Failures()
    found = Port(gate, TlsListener(stranger.server, gate))
    server = await serve(host, 0, found.make, tls=found.listener, handshake_timeout=timeout, backlog=16, **more)
    assert server is found.listener
    try:
        yield found
    finally:
        found.listener.close()
        await found.listener.ended()
        for echo in list(found.made):
            echo.transport.abort()
        await until(lambda: not found.made)
        assert len(gate.in_flight) == 0


async def echoes(stranger: Stranger, number: int, source: str = HERE) -> bytes:
    reader, writer = await stranger.enter(number, source)
    writer.write(b"hello")
    async with asyncio.timeout(WAIT_S):
        answer = await reader.readexactly(5)
    writer.transport.abort()
    return answer


@on_both_loops
@pytest.mark.parametrize("way", FAILURES)
def test_a_failure_is_reported_with_the_address(stranger: Stranger, loop: str, way: str) -> None:
    async def main() -> None:
        async with port(stranger, timeout=0.1 if "silence" in way else WAIT_S) as at:
            await stranger.ways[way](at.number)
            await until(lambda: at.gate.found)
            (peer, why), *others = at.gate.found
            assert peer == HERE
            assert not others
            expected = FAILURES[way]
            assert expected is None or why.startswith(expected)
            assert SECRET[:8] not in why
            assert not at.made
            at.listener.context.verify_mode = ssl.CERT_REQUIRED
            if "silence" not in way:
                assert await echoes(stranger, at.number) == b"hello"

    run_on(loop, main())


@on_both_loops
def test_a_right_one_comes_in_and_is_a_connection_like_any_other(stranger: Stranger, loop: str) -> None:
    async def main() -> None:
        async with port(stranger) as at:
            reader, writer = await stranger.enter(at.number, ELSEWHERE)
            writer.write(b"x" * 3_000_000)
            async with asyncio.timeout(WAIT_S):
                assert await reader.readexactly(3_000_000) == b"x" * 3_000_000
            (echo,) = at.made
            assert echo.transport.get_extra_info("peername")[0] == ELSEWHERE
            assert certificate_of(echo.transport).hosts == ("bob",)
            assert echo.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            at.listener.close()
            await at.listener.ended()
            writer.write(b"on")
            async with asyncio.timeout(WAIT_S):
                assert await reader.readexactly(2) == b"on", "it outlives the listener"
            writer.transport.abort()
            await until(lambda: not at.made)
            assert at.gate.found == []

    run_on(loop, main())


@on_both_loops
def test_what_comes_with_the_end_of_the_handshake_is_not_lost(stranger: Stranger, loop: str) -> None:
    """TLS 1.3: a client's last message of the handshake and its first request in one segment of TCP."""

    async def main() -> None:
        async with port(stranger) as at:
            came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = stranger.trusting.wrap_bio(came, goes, server_hostname="localhost")
            reader, writer = await asyncio.open_connection(HERE, at.number)
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(goes.read())
                    came.write(await reader.read(2**16))
            client.write(b"hello")
            writer.write(goes.read())
            answer = b""
            async with asyncio.timeout(WAIT_S):
                while not answer:
                    came.write(await reader.read(2**16))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        answer = client.read()
            assert answer == b"hello"
            writer.transport.abort()

    run_on(loop, main())


@on_both_loops
def test_one_that_hangs_up_without_a_byte_has_tried_nothing(stranger: Stranger, loop: str) -> None:
    """As a probe of the port does, and a balancer that looks whether it is open."""

    async def main() -> None:
        async with port(stranger) as at:
            for _ in range(3):
                _, writer = await asyncio.open_connection(HERE, at.number)
                writer.close()
                await writer.wait_closed()
            await until(lambda: at.gate.asked >= 3 and not at.listener._silent)
            assert await echoes(stranger, at.number) == b"hello"
            assert at.gate.found == []

    run_on(loop, main())


@on_both_loops
def test_an_address_that_is_crowded_is_hung_up_on_and_others_are_not(stranger: Stranger, loop: str) -> None:
    async def main() -> None:
        async with port(stranger) as at:
            early, writer = await asyncio.open_connection(HERE, at.number)
            await until(lambda: at.listener._silent)
            at.gate.crowded.add(HERE)
            assert await stranger.is_refused(at.number)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):  # of what it sent, nothing was read
                assert await early.read() == b"", "not even looked at, though it came before"
            writer.close()
            assert await echoes(stranger, at.number, ELSEWHERE) == b"hello"
            at.gate.crowded.clear()
            assert await echoes(stranger, at.number) == b"hello"
            assert at.gate.found == []

    run_on(loop, main())


@on_both_loops
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "in the handshake"])
def test_the_end_does_not_wait_for_handshakes(stranger: Stranger, loop: str, sent: bytes) -> None:
    async def main() -> None:
        async with port(stranger) as at:
            reader, writer = await asyncio.open_connection(HERE, at.number)
            writer.write(sent)
            await until(lambda: at.listener._speaking if sent else at.listener._silent)
            number = at.number
            at.listener.close()
            at.listener.close()
            async with asyncio.timeout(WAIT_S):
                await at.listener.ended()
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HERE, number)
            assert at.gate.found == [], "it was the server that ended it"
            assert not at.listener.sockets

    run_on(loop, main())


@on_both_loops
def test_without_descriptors_it_tries_again(stranger: Stranger, loop: str, monkeypatch, caplog) -> None:
    async def main() -> None:
        monkeypatch.setattr(tls_listener, "ACCEPT_RETRY_S", 0.01)
        sock = Exhausted(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind((HERE, 0))
        async with port(stranger, sock=sock) as at:
            assert await echoes(stranger, at.number) == b"hello"
            assert sock.left == 0
            sock.left = 1 << 30
            _, writer = await asyncio.open_connection(HERE, at.number)
            await until(lambda: at.listener._retries)
            writer.close()

    run_on(loop, main())
    assert "no connections are accepted for 0.01 s: Too many open files" in caplog.text


class Exhausted(socket.socket):
    """One that finds no descriptor for the first connections."""

    left = 2

    def accept(self) -> tuple[socket.socket, Any]:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@on_both_loops
def test_a_name_is_served_at_its_addresses(stranger: Stranger, loop: str) -> None:
    async def main() -> None:
        async with port(stranger, host="localhost") as at:
            assert at.listener.sockets
            for sock in at.listener.sockets:
                host, number, *_ = sock.getsockname()
                _, writer = await asyncio.open_connection(
                    host, number, ssl=stranger.trusting, server_hostname="localhost"
                )
                writer.transport.abort()
            number = at.number
            for host, why in ((HERE, "the address is in use by another program"), ("no.such.host.invalid", "cannot")):
                other = TlsListener(stranger.server, at.gate)
                with pytest.raises(ConnectError, match=why):
                    await serve(host, number, at.make, tls=other, handshake_timeout=1.0, backlog=16)
                assert not other.sockets

    run_on(loop, main())


def test_the_ways_are_all_tried(stranger: Stranger, tmp_path: Path) -> None:
    assert stranger.ways.keys() == FAILURES.keys()


@on_both_loops
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"], ids=["silent", "in the middle"])
def test_one_too_many_of_an_address_is_hung_up_on(stranger: Stranger, loop: str, first: bytes) -> None:
    async def main() -> None:
        async with port(stranger) as at:
            at.gate.in_flight = among = HandshakesInFlight(source_max=3)
            held = [await _begun(at, first) for _ in range(3)]
            assert await stranger.is_refused(at.number)
            assert await echoes(stranger, at.number, ELSEWHERE) == b"hello", "another address has its own number"
            assert (len(among), among.refused) == (3, 1)
            held.pop()[1].close()
            await until(lambda: len(among) == 2)
            assert await echoes(stranger, at.number) == b"hello"
            for _, writer in held:
                writer.close()
            await until(lambda: not len(among))

    run_on(loop, main())


@on_both_loops
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"], ids=["silent", "in the middle"])
def test_a_crowd_makes_room_for_another_address(stranger: Stranger, loop: str, first: bytes) -> None:
    """Its oldest is hung up on, which is no failure of the address."""

    async def main() -> None:
        async with port(stranger) as at:
            at.gate.in_flight = among = HandshakesInFlight(all_max=3)
            held = [await _begun(at, first) for _ in range(3)]
            assert await stranger.is_refused(at.number)
            assert await echoes(stranger, at.number, ELSEWHERE) == b"hello"
            reader, _ = held[0]
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(WAIT_S):
                    assert await reader.read() == b""
            await until(lambda: len(among) == 2)
            assert (among.refused, at.gate.found) == (2, [])
            for _, writer in held:
                writer.close()
            await until(lambda: not len(among))

    run_on(loop, main())


async def _begun(at: Port, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose handshake is under way, and goes no further."""
    listener, count = at.listener, len(at.gate.in_flight)
    speaking = len(listener._speaking)
    reader, writer = await asyncio.open_connection(HERE, at.number)
    writer.write(first)
    await until(lambda: len(at.gate.in_flight) == count + 1 and len(listener._speaking) == speaking + bool(first))
    return reader, writer
