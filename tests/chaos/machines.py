"""`Machines`: brokers, etcd and SeaweedFS, each a process of its own, and lines between them that can be cut.

    clients ── line ──► broker ── line ──► each member of etcd
                            └──── line ──► SeaweedFS

A broker is known by the address of its line. It gets another disk each time that its machine is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.client.client import AsyncClient
from tests.chaos.server import Server
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.line import Line
from tests.kit.programs import environment
from tests.kit.s3_server import S3Server

SESSION_S = 3
FILE_AGE_S = 4
AGAIN_S_MAX = 180.0  # until a server is up whose stores come back meanwhile
RETRY_S = 0.2


class Machine:
    """One broker and its lines. `free`: it is not struck by anything now."""

    def __init__(self, server: Server, clients: Line, etcd: list[Line], s3: Line) -> None:
        self.server = server
        self.clients = clients
        self.etcd = etcd
        self.s3 = s3
        self.free = asyncio.Lock()

    async def start(self) -> None:
        """Start the broker, again and again where a store cannot be reached. Raises the last error."""
        async with asyncio.timeout(AGAIN_S_MAX):
            while True:
                try:
                    await self.server.start()
                except (AssertionError, TimeoutError):
                    await self.kill()
                    await asyncio.sleep(RETRY_S)
                else:
                    return

    async def kill(self) -> None:
        """kill -9, if it runs."""
        if self.server in Server.running:
            with contextlib.suppress(ProcessLookupError):
                await self.server.kill()

    async def lose(self, grave: Path) -> None:
        """kill -9, and the disk is gone at once, even while removing it takes long."""
        await self.kill()
        if self.server.data.exists():
            self.server.data.rename(grave)
            await asyncio.to_thread(shutil.rmtree, grave)

    @property
    def lines(self) -> Iterator[Line]:
        """All."""
        yield from (self.clients, self.s3, *self.etcd)


class Machines:
    """Use it with `async with`: it starts all servers, and ends them, by their process ids."""

    def __init__(
        self, root: Path, *, brokers: int = 3, members: int = 3, program: Sequence[str] = ("-m", "engine")
    ) -> None:
        """`program`: what Python runs as `engine`."""
        self.etcd = Etcd(root / "etcd", members)
        self.s3 = S3Server(root / "s3")
        self.machines: list[Machine] = []
        self.etcd_free = asyncio.Lock()
        self.s3_free = asyncio.Lock()
        self.root = root
        self._brokers = brokers
        self._program = tuple(program)
        self._lost = 0
        self.prefix = new_prefix()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            (self.root / "etcd").mkdir()
            await asyncio.gather(asyncio.to_thread(self.etcd.start), asyncio.to_thread(self.s3.start))
            for number in range(self._brokers):
                self.machines.append(await self._machine(number))
            await self._start_brokers()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        for machine in self.machines:
            await machine.kill()
        await self._stack.aclose()
        await asyncio.to_thread(self.etcd.stop)
        await asyncio.to_thread(self.s3.kill)

    async def _line(self, port: int) -> Line:
        return await self._stack.enter_async_context(Line(port))

    async def _machine(self, number: int) -> Machine:
        etcd = [await self._line(member.client) for member in self.etcd.members]
        s3 = await self._line(int(self.s3.endpoint.rpartition(":")[2]))
        metadata = f"etcd://{','.join(line.endpoint for line in etcd)}/{self.prefix}"
        data = self.root / f"machine-{number}" / "data"
        data.parent.mkdir()
        variables = {
            **self.s3.environment, "AWS_ENDPOINT_URL": f"http://{s3.endpoint}",
            "ENGINE_SESSION_TIMEOUT": str(SESSION_S), "ENGINE_OBJECT_FLUSH_INTERVAL": "0.02",
            "ENGINE_OBJECT_FILE_AGE": str(FILE_AGE_S),
        }  # fmt: skip
        where = ("--metadata", metadata, "--objects", "s3://engine/machines", "--cluster", "machines")
        server = Server(data, *where, environment=environment(**variables))
        server.program = self._program
        clients = await self._line(server.port)
        server.advertise(f"engine://{clients.endpoint}")
        return Machine(server, clients, etcd, s3)

    async def _start_brokers(self) -> None:
        await asyncio.gather(*(machine.start() for machine in self.machines))

    @property
    def url(self) -> str:
        """Of all brokers."""
        return "engine://" + ",".join(machine.clients.endpoint for machine in self.machines)

    def client(self) -> AsyncClient:
        return AsyncClient(self.url)

    async def lose(self, machine: Machine) -> None:
        """A machine is gone with its disk; start() is another one in its place."""
        self._lost += 1
        await machine.lose(self.root / f"lost-{self._lost}")

    async def restart_everything(self) -> None:
        """All disks of brokers are gone, and all other servers are killed: nothing is left but what the stores hold."""
        await asyncio.gather(*(self.lose(machine) for machine in self.machines))
        await asyncio.gather(asyncio.to_thread(self.etcd.stop), asyncio.to_thread(self.s3.kill))
        await asyncio.gather(asyncio.to_thread(self.etcd.start), asyncio.to_thread(self.s3.start))
        await self._start_brokers()
