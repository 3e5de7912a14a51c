"""The handshake of a session: the client's CONNECT, passed to a broker, and its CONNECTED, adapted for the client."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

from engine.errors import ConnectError, EngineError, ProtocolError, UnsupportedError, WrongPeerError
from engine.proxy.config import ProxyConfig
from engine.proxy.frames import Hello, Said
from engine.proxy.side import Side
from engine.wire.commands import MAGIC, Command, Connect, Connected, Error, Header
from engine.wire.packing import PackedHeader, pack


class Greeting:
    """The first frame of one side, as an awaitable."""

    def __init__(self) -> None:
        self._hello = Hello()
        self._said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, side: Side, data: bytes) -> None:
        """Take received bytes; after the first frame, reading from the side pauses. Raises ProtocolError."""
        if self._hello.feed(data):
            side.hold("greeting")
            if not self._said.done():
                self._said.set_result(None)

    def fail(self, error: EngineError) -> None:
        if not self._said.done():
            self._said.set_exception(error)
            self._said.exception()  # retrieved: it may not be awaited yet

    async def said(self, timeout: float, who: str) -> Said:
        """The frame. Raises ConnectError, ProtocolError."""
        try:
            async with asyncio.timeout(timeout):
                await self._said
        except builtins.TimeoutError as e:
            raise ConnectError(f"{who} did not complete the handshake within {timeout:g} s") from e
        return self._hello.take()


def check_client(header: Header) -> Connect:
    """A client's CONNECT. Raises ProtocolError or UnsupportedError for a client that cannot be served."""
    if not isinstance(header, Connect) or header.magic != MAGIC:
        first = header.command.name
        raise ProtocolError(f"the first frame must be CONNECT with the magic {MAGIC!r}, got {first}")
    if header.forwarded is not None:
        raise UnsupportedError("the client is a proxy; the setting brokers of a proxy must name brokers, not proxies")
    if "proxy" not in header.features:
        raise UnsupportedError("the client lacks the feature proxy, without which it cannot reach brokers behind one")
    return header


def to_broker(config: ProxyConfig, fields: dict[str, Any], peer: str, role: str | None = None) -> PackedHeader:
    """The client's CONNECT, adapted for a broker. `role`: of the client's certificate, for which the proxy speaks."""
    said = {**fields, "target": None, "forwarded": peer, "proxy_token": None, "role": None}
    if config.speaks_for_clients:
        said |= {"proxy_token": config.broker_token, "role": None if fields.get("token") is not None else role}
    elif config.broker_token is not None:
        said["token"] = config.broker_token
    return PackedHeader(Command.CONNECT, pack(said))


def check_broker(url: str, header: Header) -> Connected:
    """The broker's CONNECTED. Raises the error that it answered instead; WrongPeerError."""
    if isinstance(header, Error):
        raise EngineError.from_code(header.code, header.message)
    if not isinstance(header, Connected):
        raise WrongPeerError(f"{url} must answer CONNECTED, got {header.command.name}")
    return header


def to_client(fields: dict[str, Any], admin_url: str | None) -> PackedHeader:
    """A broker's CONNECTED, adapted for the client. `admin_url`: the proxy's, if it has one."""
    return PackedHeader(Command.CONNECTED, pack({**fields, "admin": admin_url or fields.get("admin"), "proxied": True}))
