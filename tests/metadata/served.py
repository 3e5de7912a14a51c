"""A store that is served, and its clients, over any kind of stream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.clock import Clock, SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.service import MetadataService
from engine.metadata.store import MetadataStore
from engine.wire import tcp, unix
from engine.wire.chunks import ChunkPool
from engine.wire.connector import SocketConnector
from engine.wire.memory import MemoryConnector
from engine.wire.stream import Connector, FrameHandler, FrameStream

TRANSPORTS = ("unix", "tcp", "memory")


class Served:
    """A service of a store, and its clients. Closing it closes the clients and the service, and then the store."""

    def __init__(self, store: MetadataStore, transport: str, directory: Path, *, timeout: float = 10.0) -> None:
        self.store = store
        self.transport = transport
        self.timeout = timeout
        self.streams: list[FrameStream] = []  # of the service, as they came
        self.service = MetadataService(store, build="test", pid=7)
        self.clients: list[RemoteMetadataStore] = []
        self.connector: Connector
        self.url = "engine://metadata:1"
        self._path = str(directory / "metadata.sock")
        self._close: Callable[[], object] = lambda: None

    async def listen(self) -> None:
        self.service.start()
        pool = ChunkPool()
        if self.transport == "memory":
            self.connector = MemoryConnector(self.accept)
            return
        self.connector = SocketConnector()
        if self.transport == "unix":
            listener = await unix.listen(self._path, self.accept, pool=pool)
            self.url, self._close = listener.url, listener.close
        else:
            server = await tcp.listen("127.0.0.1", 0, self.accept, pool=pool)
            host, port = server.sockets[0].getsockname()
            self.url, self._close = f"engine://{host}:{port}", server.close

    def accept(self, stream: FrameStream) -> FrameHandler:
        self.streams.append(stream)
        return self.service.accept(stream)

    def cut(self) -> None:
        """Break all connections."""
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.abort()

    async def client(self, clock: Clock | None = None) -> RemoteMetadataStore:
        rng = random.Random(len(self.clients))
        client = await RemoteMetadataStore.connect(
            self.connector, self.url, clock=clock or SystemClock(), rng=rng, timeout=self.timeout
        )
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        """End the service; its clients go on trying."""
        self._close()
        await self.service.close()
        self.streams.clear()

    async def restart(self, store: MetadataStore | None = None) -> None:
        """Serve again, as another process would, perhaps another store over the same records."""
        self.store = store or self.store
        self.service = MetadataService(self.store, build="test", pid=8)
        await self.listen()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.stop()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Gated(MemoryMetadataStore):
    """Writes wait at the gate; `failure`: what the next ones raise instead."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.calls = 0
        self.failure: Exception | None = None

    async def _write(self, operation: Any, count: int = 1) -> Any:
        self.calls += 1
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        return await super()._write(operation, count)


def gated(served: Served) -> Gated:
    assert isinstance(served.store, Gated)
    return served.store
