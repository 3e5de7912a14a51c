"""`Agent`: a Java process with Apache Pulsar's V5 client, which does what it is asked (java/Agent.java)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

from engine.pulsar.messages import MessageIdData

ROOT = Path(__file__).parents[2]
PULSAR = Path(os.environ.get("ENGINE_PULSAR_JAVA", ROOT / ".venv" / "pulsar"))
WAIT_S = 60.0
# What a V5 producer must be where it sends while segments are sealed. One that batches loses a message now and then, in
# version 5.0.0-M1: a thread that has found the segment's producer open, and adds to its batch after the client has
# closed it for a new layout, adds what nothing sends or times out any more, so that the send never ends. Without
# batches, the client checks again.
UNBATCHED = {"single": True}


class AgentError(Exception):
    """What the client has raised: `kind` is the class of the exception."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Agent:
    """One process. Commands run at the same time; those with `now` in the order in which they were asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, log: Path) -> Agent:
        java = (PULSAR / "java").read_text().strip()
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", f"{PULSAR / 'classes'}:{PULSAR / 'jars'}/*", "Agent"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=1 << 26,
            )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            asked = self._asked.pop(said["id"])
            if asked.done():
                continue
            if "error" in said:
                asked.set_exception(AgentError(said["error"], said["kind"]))
            else:
                asked.set_result(said.get("value"))
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(AgentError("the process has ended", "Ended"))

    def begin(self, do: str, **said: Any) -> asyncio.Future[Any]:
        """Ask for something; its outcome."""
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": do, **said}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        return asked

    async def ask(self, do: str, **said: Any) -> Any:
        """Ask for something, and wait for it. Raises AgentError."""
        return await asyncio.wait_for(self.begin(do, **said), WAIT_S)

    async def receive(self, name: str, count: int, *, quiet_ms: int = 30_000, ack: bool = False) -> list[Any]:
        """So many messages; fewer where none has come for a while."""
        more = {"ack": True} if ack else {}
        return list(await self.begin("receive", name=name, count=count, quiet_ms=quiet_ms, **more))

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), WAIT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading


def place_of(message: str) -> tuple[int, int]:
    """(segment, offset) that an id names: its first bytes are the segment, then the length of its id there."""
    raw = base64.b64decode(message)
    segment, size = struct.unpack(">qi", raw[:12])
    there = MessageIdData.FromString(raw[12 : 12 + size])
    return segment, there.entry + max(there.batch_index, 0) * there.HasField("batch_index")
