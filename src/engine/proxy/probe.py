"""A broker's liveness probe: the handshake only."""

from __future__ import annotations

import asyncio

from engine.errors import AuthenticationError, ConnectError, EngineError
from engine.proxy.config import ProxyConfig
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Connect, Connected, Error, Header
from engine.wire.stream import Connector, FrameStream


class _Caller:
    """A FrameHandler that waits for the first frame."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.answer: asyncio.Future[Connected] = asyncio.get_running_loop().create_future()

    def frame_received(self, header: Header, payload: memoryview) -> None:
        if self.answer.done():
            return
        if isinstance(header, Connected):
            self.answer.set_result(header)
        elif isinstance(header, Error):
            self.answer.set_exception(EngineError.from_code(header.code, header.message))

    def pause_writing(self) -> None:
        """Nothing to pause: one small frame is sent."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectError(f"it closed the connection: {error or 'no reason given'}"))
        self.answer.exception()  # retrieved: its waiter may be cancelled


async def probe(connector: Connector, url: str, config: ProxyConfig) -> Connected | None:
    """The broker's CONNECTED; None when it is alive and refuses the proxy's credentials. Raises ConnectError."""
    made: list[_Caller] = []

    def handler(stream: FrameStream) -> _Caller:
        made.append(_Caller(stream))
        return made[0]

    await connector.connect(url, handler)
    hello = Connect(
        magic=MAGIC,
        protocol=PROTOCOL_VERSION,
        features=list(FEATURES),
        client="engine-proxy",
        token=config.broker_token,
    )
    made[0].stream.send(hello)
    try:
        async with asyncio.timeout(config.handshake_timeout):
            return await made[0].answer
    except AuthenticationError:
        return None
    except EngineError as e:
        raise ConnectError(f"{url}: {e}") from e
    except TimeoutError as e:
        raise ConnectError(f"{url} did not complete the handshake within {config.handshake_timeout:g} s") from e
    finally:
        made[0].stream.abort()
