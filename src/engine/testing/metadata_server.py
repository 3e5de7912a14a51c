"""A metadata server of a simulation: a service on a host of its own, over records that outlive it.

It dies and comes back on its records, is suspended, commits slowly and answers late. The records are those of a
MemoryMetadataStore, which a test reads directly; they stand for the file of a durable store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from engine.clock import Clock
from engine.metadata.batch import Batch
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.service import MetadataService
from engine.testing.network import SimNetwork
from engine.testing.process import Process

T = TypeVar("T")

HOST = "metadata"
URL = "engine://metadata:6650"


class SlowCommits(MemoryMetadataStore):
    """A handle whose commits take time, one after the other; one that was not done when the process dies is not there.

    `commit_s_max`: of each. `late_s_max`: from the commit until its writer learns of it.
    """

    def __init__(self, clock: Clock, root: MemoryMetadataStore, rng: random.Random) -> None:
        super().__init__(clock, root)
        self.commit_s_max = 0.0
        self.late_s_max = 0.0
        self._rng = rng
        self._turn = asyncio.Lock()

    async def _write(self, operation: Callable[[Batch], T], count: int = 1) -> T:
        async with self._turn:
            if self.commit_s_max:
                await asyncio.sleep(self._rng.uniform(0, self.commit_s_max))
            result = await super()._write(operation, count)
        if self.late_s_max:
            await asyncio.sleep(self._rng.uniform(0, self.late_s_max))
        return result

    def vanish(self) -> None:
        """The process is gone; the sessions of its clients are left to the next one."""
        for session in list(self._sessions):
            self.leave_session(session)
        self.abandon()


class SimMetadataServer:
    """The host with the service. Its knobs may be turned at any time; they hold for the lives to come, too."""

    def __init__(self, network: SimNetwork, records: MemoryMetadataStore, clock: Clock, rng: random.Random) -> None:
        self.records = records
        self.commit_s_max = 0.0
        self.late_s_max = 0.0
        self.session_timeout_max = 60.0
        self._network = network
        self._clock = clock
        self._rng = rng
        self._process: Process | None = None
        self._store: SlowCommits | None = None
        self._lives = 0

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Serve the records in a new process."""
        self._lives += 1
        self._process = Process(f"{HOST} life {self._lives}")
        self._process.run(self._serve)

    def _serve(self) -> None:
        self._store = SlowCommits(self._clock, self.records, random.Random(self._rng.random()))
        self.tune(self.commit_s_max, self.late_s_max)
        service = MetadataService(self._store, pid=self._lives, session_timeout_max=self.session_timeout_max)
        service.start()
        self._network.listen(HOST, URL, service.accept)

    def tune(self, commit_s_max: float = 0.0, late_s_max: float = 0.0) -> None:
        """How long commits take, and how late they are reported."""
        self.commit_s_max, self.late_s_max = commit_s_max, late_s_max
        if self._store is not None:
            self._store.commit_s_max, self._store.late_s_max = commit_s_max, late_s_max

    async def kill(self) -> list[str]:
        """kill -9; the names of tasks that would not end."""
        process, store = self._process, self._store
        self._process = self._store = None
        if process is None or store is None:
            return []
        self._network.kill(HOST)
        store.vanish()
        return await process.kill()

    def suspend(self) -> None:
        """SIGSTOP, until resume()."""
        if self._process is not None:
            self._process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.resume()

    async def client(self, host: str, rng: random.Random, *, timeout: float = 5.0) -> RemoteMetadataStore:
        """A client on a host. Call it as the process that is to own it. Raises as RemoteMetadataStore.connect()."""
        connector = self._network.connector(host)
        return await RemoteMetadataStore.connect(connector, URL, clock=self._clock, rng=rng, timeout=timeout)
