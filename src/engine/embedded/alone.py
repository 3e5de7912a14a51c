"""An engine that is not shared, with its broker on the caller's loop: in memory, or with `shared=False`."""

from __future__ import annotations

import pathlib
from os import PathLike

from engine.aio.workers import Submits
from engine.broker.server import Broker
from engine.clock import Clock
from engine.embedded.doors import Doors, GivenAddress
from engine.embedded.engine import AsyncEngine
from engine.embedded.terms import Config, Terms
from engine.errors import InvalidArgumentError
from engine.pulsar.recognising import recogniser
from engine.storage.disk.memory import MemoryDisk
from engine.wire.memory import MemoryConnector

MEMORY = ":memory:"

Path = str | PathLike[str]


class Alone:
    """A broker that ends with its one handle."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ended = False

    @property
    def url(self) -> str:
        return self.broker.service_url

    service_url = url

    @property
    def admin_url(self) -> str | None:
        return self.broker.admin_url

    async def close(self) -> None:
        """Close the broker."""
        self.ended = True
        await self.broker.close()

    def let_go(self) -> None:
        """Its loop has ended, and the broker with it."""

    def after_fork(self) -> None:
        """It stays the parent's: whatever asks for it in the child fails."""


async def open_engine(
    path: Path,
    listen: GivenAddress,
    admin: GivenAddress,
    config: Config,
    *,
    threadsafe: bool,
    clock: Clock | None = None,
    executor: Submits | None = None,
) -> AsyncEngine:
    """open(shared=False) on the running loop. `threadsafe`: whether native methods of producers are called on other
    threads.

    `clock`, `executor`: for tests; default: the machine's clocks, threads.
    """
    check_path(path)
    doors, loaded = Doors.of(listen, admin), Terms.of(config).config()
    await doors.check(loaded)
    disk = MemoryDisk() if path == MEMORY else None
    broker = Broker(
        pathlib.Path(path), config=loaded, disk=disk, clock=clock, executor=executor, recognise=recogniser()
    )
    try:
        await broker.start()
        if doors.admin is not None:
            await broker.serve_admin(*doors.admin)
        if doors.listen is not None:
            await broker.serve(*doors.listen)
        connector = MemoryConnector(broker.accept_local)
        engine = AsyncEngine(Alone(broker), connector, broker.parts.admin, threadsafe=threadsafe, clock=broker.clock)
        await engine.connect()
    except BaseException:
        await broker.close()
        raise
    return engine


def check_path(path: object) -> None:
    """Raise InvalidArgumentError unless it is a path."""
    if not isinstance(path, str | PathLike):
        raise InvalidArgumentError(f"path must be the path of a directory, got {type(path).__name__}")
