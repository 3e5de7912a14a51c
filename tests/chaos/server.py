"""A real `engine serve` on a data directory, to be killed, stopped and started again on the same port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from engine.cli.demo_servers import free_ports
from tests.kit.children import children_of

START_S_MAX = 90.0


def free_port() -> int:
    """A port that is free at this moment, and that no connection is given by itself while the server is down."""
    return free_ports(1)[0]


class Server:
    """At most one process at a time. Its standard error goes to a file beside the data."""

    running: ClassVar[set[Server]] = set()  # ended behind a test that failed

    program: tuple[str, ...] = ("-m", "engine")  # what Python runs

    def __init__(self, data: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """`options`: further ones of the command. `environment`: further variables."""
        self.data = data
        self._environment = {**os.environ, **(environment or {})}
        self._options = options
        self.log = data.with_name("server.log")
        self.port = free_port()
        self.url = f"engine://127.0.0.1:{self.port}"
        self._admin_port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    def advertise(self, url: str = "") -> None:
        """Tell clients and other brokers the address, or one from which a line leads to it."""
        self.url = url or self.url
        self._options = (*self._options, "--advertise", self.url)

    async def start(self) -> None:
        """Start and wait until the port answers. Raises AssertionError with the log when it does not."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self.program, "serve", "--data", str(self.data), "--log-level", "warning"),
                *("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self._admin_port}"),
                *self._options,
                stderr=log,
                env=self._environment,
            )
        self.running.add(self)
        async with asyncio.timeout(START_S_MAX):
            while not await self._answers():
                assert self._process.returncode is None, f"the server ended:\n{self.log.read_text()}"
                await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process id of the server, or of the parent of its processes."""
        assert self._process is not None
        return self._process.pid

    def children(self) -> dict[int, int]:
        """The process ids of the server's other processes, by index."""
        return children_of(self.pid)

    async def close(self) -> None:
        """SIGTERM; it has to end in order."""
        if self._process is not None:
            code = await self._end(signal.SIGTERM)
            assert code == 0, f"exit code {code}:\n{self.log.read_text()}"

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None
        self.running.discard(self)
        process.send_signal(number)
        return await process.wait()

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)
