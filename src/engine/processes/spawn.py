"""Programs as children: started anew, with the descriptors that they are to inherit and no others."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence

from engine.aio.shielded import shielded

LINGER_S_MAX = 2.0  # a process whose channel has ended is killed after this time


class Launched:
    """A running program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Its exit code, once it has ended. To be called when its channel has ended; it is killed when it lives on."""
        ending = asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        try:
            return await asyncio.wait_for(shielded(ending), LINGER_S_MAX)
        except TimeoutError:
            self._process.kill()
            return await ending


Launch = Callable[[int, Sequence[int]], Launched]


def launcher(program: Sequence[str]) -> Launch:
    """Starts `program`, with its index among the children and the first of the inherited descriptors as arguments."""

    def launch(index: int, inherited: Sequence[int]) -> Launched:
        words = [*program, str(index), str(inherited[0])]
        # Not by the event loop: this forks and executes in one step, without Python code in between.
        return Launched(subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=inherited))

    return launch
