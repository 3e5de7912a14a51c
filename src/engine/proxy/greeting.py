"""How a session begins: the client's CONNECT, a broker that takes it, and its CONNECTED as the client is to have it."""

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
    """The first frame that one side says, for whoever waits for it. Loop thread only."""

    def __init__(self) -> None:
        self._hello = Hello()
        self._said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, side: Side, data: bytes) -> None:
        """Bytes have come; behind the first frame the side is not read from. Raises ProtocolError."""
        if self._hello.feed(data):
            side.hold("greeting")
            if not self._said.done():
                self._said.set_result(None)

    def fail(self, error: EngineError) -> None:
        """It will not come."""
        if not self._said.done():
            self._said.set_exception(error)
            self._said.exception()  # retrieved: nobody may wait for it yet

    async def said(self, timeout: float, who: str) -> Said:
        """It. Raises ConnectError, ProtocolError."""
        try:
            async with asyncio.timeout(timeout):
                await self._said
        except builtins.TimeoutError as e:
            raise ConnectError(f"{who} has not greeted within {timeout:g} s") from e
        return self._hello.take()


def check_client(header: Header) -> Connect:
    """A client's CONNECT. Raises ProtocolError or UnsupportedError for one that cannot be served."""
    if not isinstance(header, Connect) or header.magic != MAGIC:
        raise ProtocolError(f"the first frame is {header.command.name}; CONNECT with the magic {MAGIC!r} is right")
    if header.forwarded is not None:
        raise UnsupportedError("a proxy came in; the setting brokers of a proxy names brokers, not proxies")
    if "proxy" not in header.features:
        raise UnsupportedError("the client lacks the feature proxy, without which it cannot reach brokers behind one")
    return header


def to_broker(config: ProxyConfig, fields: dict[str, Any], peer: str) -> PackedHeader:
    """The client's CONNECT as a broker is to have it."""
    token = fields.get("token") if config.broker_token is None else config.broker_token
    return PackedHeader(Command.CONNECT, pack({**fields, "token": token, "target": None, "forwarded": peer}))


def check_broker(url: str, header: Header) -> Connected:
    """Its CONNECTED. Raises the error that it has answered instead; WrongPeerError."""
    if isinstance(header, Error):
        raise EngineError.from_code(header.code, header.message)
    if not isinstance(header, Connected):
        raise WrongPeerError(f"{url} greets with {header.command.name}; CONNECTED is right")
    return header


def to_client(fields: dict[str, Any], admin_url: str | None) -> PackedHeader:
    """A broker's CONNECTED as the client is to have it. `admin_url`: the proxy's, if it has one."""
    return PackedHeader(Command.CONNECTED, pack({**fields, "admin": admin_url or fields.get("admin"), "proxied": True}))
