"""`Member`: a process of its own that has a directory open, told what to do by a test."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.embedded.shared import SharedEngine
from tests.kit.programs import environment, program

if TYPE_CHECKING:
    from engine.aio.portal import Portal

ANSWER_S_MAX = 60.0


def shared_engine(path: Path) -> SharedEngine:
    """One that lives on the running loop, so that a test sees its steps."""
    return SharedEngine(path, cast("Portal", None))  # its handles alone use that


class Told(Exception):
    """What a member's expression has raised: `kind` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Member:
    """Made by `start`. It ends with kill(), leave() or close()."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, path: Path, **options: Any) -> Member:
        """The process; it has not opened the directory yet."""
        process = await asyncio.create_subprocess_exec(
            *program("tests.shared.member_program", path, json.dumps(options)),
            env=environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, expression: str) -> None:
        """Have it evaluate an expression, without waiting for that."""
        assert self._process.stdin is not None
        self._process.stdin.write(expression.encode() + b"\n")

    async def hear(self) -> Any:
        """The next answer. Raises Told."""
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S_MAX):
            line = await self._process.stdout.readline()
        assert line, "the process has ended"
        value, error = json.loads(line)
        if error is not None:
            raise Told(*error)
        return value

    async def do(self, expression: str) -> Any:
        """Evaluate an expression there; its value. Raises Told."""
        self.say(expression)
        return await self.hear()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """kill -9."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def leave(self) -> int:
        """Let the program come to its end, with everything open; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(ANSWER_S_MAX):
            return await self._process.wait()
