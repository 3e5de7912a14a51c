"""`Peers`: connections to the other brokers, one each, opened when first needed; calls over them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from engine.aio.shielded import shielded
from engine.broker.cluster.segment_calls import pack, unpack
from engine.errors import AlreadyClosedError, ConnectError, EngineError, TimeoutError
from engine.limits import HANDSHAKE_S_MAX
from engine.wire import commands
from engine.wire.commands import FEATURES, MAGIC, PROTOCOL_VERSION, Header
from engine.wire.stream import Connector, FrameStream

log = logging.getLogger(__name__)

PONG_S_MAX = 3.0  # a broker that answers a PING within this time is alive, however long a call takes


class Peer:
    """This end of one connection (a FrameHandler). Made by dial()."""

    def __init__(self, url: str, stream: FrameStream) -> None:
        self.url = url
        self.stream = stream
        self.lost: EngineError | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when it is lost
        self._last_id = 0
        self._doubt: asyncio.TimerHandle | None = None  # runs while a PONG is awaited
        self._heard: asyncio.Future[None] | None = None  # done with the next frame
        self._answers: dict[int, asyncio.Future[memoryview]] = {}  # 0: of the handshake

    async def handshake(self, token: str | None, own_url: str | None = None) -> None:
        """Send CONNECT, await CONNECTED. Raises the error that the peer answers, or ConnectError."""
        hello = commands.Connect(
            magic=MAGIC,
            protocol=PROTOCOL_VERSION,
            features=list(FEATURES),
            client="engine-broker",
            token=token,
            broker=own_url,
        )
        await self._ask(0, hello, HANDSHAKE_S_MAX)

    async def call(self, target: str, method: str, args: dict[str, Any], timeout: float) -> Any:
        """The peer's answer. Raises the error it answers; ConnectError and TimeoutError leave the outcome open.

        A call that times out does not end the connection; an unanswered PING does.
        """
        self._last_id += 1
        request = commands.BrokerCall(request_id=self._last_id, target=target, method=method)
        return unpack(await self._ask(self._last_id, request, timeout, pack(args)))

    async def _ask(self, ident: int, header: Header, timeout: float, payload: bytes = b"") -> memoryview:
        if self.lost is not None:
            raise self.lost
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._answers[ident] = future
        try:
            self.stream.send(header, payload)
            await asyncio.wait([future], timeout=timeout)
        finally:
            self._answers.pop(ident, None)
        if not future.done():
            self._probe()
            silence = f"the broker {self.url} did not answer {header.command.name} within {timeout:g} s"
            raise TimeoutError(f"{silence}; the call may be repeated")
        return future.result()

    async def is_alive(self) -> bool:
        """Wait for an answer to PING, as long as it takes; False when the connection is lost."""
        if self.lost is None:
            if self._heard is None:
                self._heard = asyncio.get_running_loop().create_future()
                self.stream.send(commands.Ping())
            await asyncio.wait([self._heard, self.ended], return_when=asyncio.FIRST_COMPLETED)
        return self.lost is None

    def _probe(self) -> None:
        if self._doubt is None and self.lost is None:
            self.stream.send(commands.Ping())
            self._doubt = asyncio.get_running_loop().call_later(PONG_S_MAX, self._give_up)

    def _give_up(self) -> None:
        self._doubt = None
        self.lost = ConnectError(f"the broker {self.url} did not answer PING; the connection was closed")
        self.stream.abort()

    def _trust(self) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """Complete the call that this frame answers."""
        self._trust()
        heard, self._heard = self._heard, None
        if heard is not None:
            heard.set_result(None)
        if isinstance(header, commands.Ping):
            self.stream.send(commands.Pong())
            return
        future = self._answers.get(getattr(header, "request_id", None) or 0)
        if future is None or future.done():
            return
        if isinstance(header, commands.Error):
            future.set_exception(EngineError.from_code(header.code, header.message))
            future.exception()  # retrieved: the caller may be cancelled in this very turn
        else:
            future.set_result(payload)

    def pause_writing(self) -> None:
        """Calls are small; they queue."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the pending calls; their outcomes are unknown."""
        self._trust()
        if not self.ended.done():
            self.ended.set_result(None)
        self.lost = self.lost or ConnectError(
            f"the connection to the broker {self.url} was lost: {error or 'it closed'}"
        )
        for future in self._answers.values():
            if not future.done():
                future.set_exception(self.lost)
                future.exception()  # retrieved: the caller may be cancelled


async def dial(connector: Connector, url: str, token: str | None = None, own_url: str | None = None) -> Peer:
    """A connection whose handshake is done. `own_url`: of this broker, if it is one.

    Raises ConnectError, TimeoutError, and what the peer answers.
    """
    made: list[Peer] = []

    def handler(stream: FrameStream) -> Peer:
        made.append(Peer(url, stream))
        return made[0]

    await connector.connect(url, handler)
    try:
        await made[0].handshake(token, own_url)
    except BaseException:
        made[0].stream.abort()
        raise
    return made[0]


class Peers:
    """One connection per broker. One that is lost, or silent for too long, is opened anew by the next call.

    `token`: for the connections to come.
    """

    def __init__(self, connector: Connector, token: str | None, own_url: str | None = None) -> None:
        """`own_url`: the name of this broker among the others; `connector` shows the certificate of that host."""
        self.token = token
        self._connector = connector
        self._own_url = own_url
        self._peers: dict[str, Peer] = {}
        self._dialling: dict[str, asyncio.Task[Peer]] = {}
        self._closed = False

    async def call(self, url: str, target: str, method: str, args: Mapping[str, Any], timeout: float) -> Any:
        """Call a broker. Raises the error it answers; ConnectError, TimeoutError: the outcome is unknown."""
        return await (await self._get(url)).call(target, method, dict(args), timeout)

    async def _get(self, url: str) -> Peer:
        if self._closed:
            raise AlreadyClosedError("this broker is closing")
        peer = self._peers.get(url)
        if peer is not None and peer.lost is None:
            return peer
        task = self._dialling.get(url)
        if task is None:
            dialling = dial(self._connector, url, self.token, self._own_url)
            task = self._dialling[url] = asyncio.create_task(dialling, name=f"broker {url}")
            task.add_done_callback(lambda done: self._dialled(url, done))
        return await shielded(task)

    def _dialled(self, url: str, task: asyncio.Task[Peer]) -> None:
        del self._dialling[url]
        if task.cancelled() or task.exception() is not None:
            return
        peer = task.result()
        if self._closed:
            peer.stream.abort()
        else:
            self._peers[url] = peer

    async def close(self) -> None:
        self._closed = True
        dialling = list(self._dialling.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for peer in self._peers.values():
            peer.stream.abort()
        self._peers.clear()
