"""Handshakes of TLS that succeed or fail in the ways that a server meets, and a program on either event loop."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import trustme

from engine.aio import uv

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uv.new_event_loop,
}
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
SECRET = "s3cret-of-a-client"
WAIT_S = 30.0
_RECORD = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the head of a ClientHello, of which no more comes


def run_on(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run(). What was left open is found here: uvloop refuses to close, asyncio's transports warn."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        found = runner.run(main)
    gc.collect()
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the loop brings about without telling anybody."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Stranger:
    """Comes to a port that speaks TLS and wants the certificate of a client. Each way of `ways` fails."""

    def __init__(self, directory: Path) -> None:
        self._authority, self._clients, others = trustme.CA(), trustme.CA(), trustme.CA()
        self._directory = directory
        self.chain, self.client_ca = str(directory / "server.pem"), str(directory / "clients.pem")
        self._authority.issue_cert("localhost", HERE).private_key_and_cert_chain_pem.write_to_path(self.chain)
        self._clients.cert_pem.write_to_path(self.client_ca)
        past = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
        self.ways: dict[str, Callable[[int], Awaitable[None]]] = {
            "no certificate": self._with(None),
            "a certificate of another authority": self._with(others.issue_cert("ann")),
            "an expired certificate": self._with(self._clients.issue_cert("ann", not_after=past)),
            "plain text": self._says(f"GET / HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()),
            "garbage": self._says(b"\x16\x03\x01\x00\x10" + SECRET[:16].encode() * 4),
            "half a handshake, then the end": self._hangs_up,
            "half a handshake, then silence": self._says(_RECORD),
            "silence": self._says(b""),
        }
        self.trusting = self._context(self._clients.issue_cert("bob"))

    @property
    def server(self) -> ssl.SSLContext:
        """The context of such a port."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
        context.load_cert_chain(self.chain)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def enter(self, port: int, source: str = HERE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """With the right certificate. Raises OSError."""
        return await asyncio.open_connection(
            HERE, port, ssl=self.trusting, server_hostname="localhost", local_addr=(source, 0)
        )

    async def is_refused(self, port: int, source: str = HERE) -> bool:
        """Whether a handshake with the right certificate is hung up on."""
        try:
            _, writer = await self.enter(port, source)
        except OSError:
            return True
        await _end(writer)
        return False

    def _context(self, shown: trustme.LeafCert | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        if shown is not None:
            path = self._directory / "shown.pem"
            shown.private_key_and_cert_chain_pem.write_to_path(str(path))
            context.load_cert_chain(path)
        return context

    def _with(self, shown: trustme.LeafCert | None) -> Callable[[int], Awaitable[None]]:
        context = self._context(shown)

        async def come(port: int) -> None:
            with contextlib.suppress(OSError):  # in TLS 1.3 the client learns of it behind its own handshake
                reader, writer = await asyncio.open_connection(HERE, port, ssl=context, server_hostname="localhost")
                with contextlib.suppress(OSError):
                    assert await _rest(reader) == b""
                await _end(writer)

        return come

    @staticmethod
    def _says(text: bytes) -> Callable[[int], Awaitable[None]]:
        async def come(port: int) -> None:
            reader, writer = await asyncio.open_connection(HERE, port)
            writer.write(text)
            with contextlib.suppress(OSError):
                answer = await _rest(reader)
                assert answer[:1] in (b"", b"\x15"), "at most an alert"
            await _end(writer)

        return come

    @staticmethod
    async def _hangs_up(port: int) -> None:
        _, writer = await asyncio.open_connection(HERE, port)
        writer.write(_RECORD)
        await _end(writer)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
