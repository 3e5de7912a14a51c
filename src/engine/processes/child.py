"""`Child`: one broker of a server of several processes. It does what its parent asks for, and ends with it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.aio.shielded import shielded
from engine.broker.metrics.catalogue import own_families
from engine.broker.metrics.exposition import FlatFamily
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.shares import ProcessSet
from engine.clock import SystemClock
from engine.errors import EngineError
from engine.metadata.remote import RemoteMetadataStore
from engine.processes.backups import KeptInChild
from engine.processes.channel import Answers, Channel
from engine.processes.life import end_orphaned
from engine.processes.sockets import Address, bind_reserved
from engine.pulsar.recognising import recogniser
from engine.wire.connector import SocketConnector

if TYPE_CHECKING:
    import random

log = logging.getLogger(__name__)


class Duty(msgspec.Struct, frozen=True):
    """What a child is started with. Descriptors are numbers of sockets that it has inherited."""

    data: str
    metadata: str  # the URL of the store's socket
    config: dict[str, Any]
    index: int
    urls: list[str]
    ports: list[int]
    own: list[Address]  # the addresses of its own port
    own_path: str  # of its own Unix socket
    clients: list[int]  # descriptors of the address that clients dial first
    admin: list[int]
    local: int
    local_path: str


class Child:
    """`reload(broker, config)` puts a configuration into effect; `started` is called when the broker serves."""

    def __init__(
        self, reload: Callable[[Broker, BrokerConfig], None], started: Callable[[], None], rng: random.Random
    ) -> None:
        self._rng = rng
        self._reload = reload
        self._started = started
        self._broker: Broker | None = None
        self._kept = KeptInChild(SystemClock())
        self._latest: BrokerConfig | None = None  # of the configurations that came since this process was started
        self._metadata: RemoteMetadataStore | None = None
        self._closing: asyncio.Task[None] | None = None
        self._parent: Channel | None = None
        self._closed = asyncio.Event()

    async def run(self, sock: socket.socket) -> None:
        """Serve the parent's calls until it asks for the end. Ends the process when the parent has ended."""
        answers: Answers = {
            "start": self._start,
            "configure": self._configure,
            "metrics": self._metrics,
            "settle": self._kept.settle,
            "stand_still": self._kept.stand_still,
            "go_on": self._kept.go_on,
            "stop": self._stop,
        }
        parent = self._parent = await Channel.open(sock, answers, "the parent process")
        parent.ended.add_done_callback(lambda _: None if self._closed.is_set() else end_orphaned())
        await self._closed.wait()
        await parent.close()

    async def stop(self) -> None:
        """Close the broker, which hands its segments over to the other processes in order. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        if self._broker is not None:
            await self._broker.close()
        if self._metadata is not None:
            await self._metadata.close()
        asyncio.get_running_loop().call_soon(self._closed.set)  # behind the answer

    # -- the parent's calls ------------------------------------------------------------------------------------------

    async def _start(self, duty: Mapping[str, Any]) -> None:
        """Start the broker, and listen. Raises what these raise."""
        given = msgspec.convert(duty, Duty)
        config, clock = config_of(given.config), SystemClock()
        processes = ProcessSet(given.index, tuple(given.urls), tuple(given.ports))
        self._metadata = await RemoteMetadataStore.connect(
            SocketConnector(), given.metadata, clock=clock, rng=self._rng
        )
        broker = self._broker = Broker(
            given.data,
            config=config,
            metadata=self._metadata,
            clock=clock,
            processes=processes,
            recognise=recogniser(),
        )
        broker.families_elsewhere = self._families_elsewhere
        await broker.start()
        self._kept.serves(broker.store, given.index)
        broker.parts.backups.elsewhere = self._backups_elsewhere
        self._catch_up(broker)  # before any client can connect
        for number in given.admin:  # not before: requests go to the processes that serve
            await broker.serve_admin(*_inherited(number))
        for own in bind_reserved(given.own):
            host, port = own.getsockname()[:2]
            await broker.serve(host, port, own)
        await broker.serve_unix(given.own_path)
        for number in given.clients:
            await broker.serve(*_inherited(number))
        await broker.serve_unix(given.local_path, socket.socket(fileno=given.local))
        self._started()

    def _catch_up(self, broker: Broker) -> None:
        """Put into effect what came while the broker was starting; it starts also where that is unusable."""
        if self._latest is None:
            return
        try:
            self._reload(broker, self._latest)
        except EngineError as e:
            log.error("a configuration that came during the start was not applied: %s", e)

    async def _stop(self) -> None:
        """Close the broker with all others of the server: none of them takes segments."""
        if self._broker is not None and self._broker.started:
            self._broker.cluster.draining.skip()
        await self.stop()

    async def _configure(self, config: Mapping[str, Any]) -> None:
        latest = self._latest = config_of(config)
        if self._broker is not None and self._broker.started:
            self._reload(self._broker, latest)

    async def _metrics(self) -> list[FlatFamily]:
        return [] if self._broker is None else await own_families(self._broker)

    async def _backups_elsewhere(self, operation: str, **arguments: Any) -> Any:
        """The parent has the backups."""
        assert self._parent is not None
        return await self._parent.call("backup", operation=operation, given=arguments)

    async def _families_elsewhere(self) -> Sequence[Sequence[FlatFamily]]:
        """The metrics of the parent and of the other children."""
        assert self._parent is not None
        assert self._broker is not None
        assert self._broker.processes is not None
        found: list[list[FlatFamily]] = await self._parent.call("metrics", besides=self._broker.processes.index)
        return found


def config_of(values: Mapping[str, Any]) -> BrokerConfig:
    """A configuration from the map of its fields."""
    return BrokerConfig(**values)


def _inherited(number: int) -> tuple[str, int, socket.socket]:
    sock = socket.socket(fileno=number)
    host, port = sock.getsockname()[:2]
    return host, port, sock
