"""Child processes of the benchmarks: `engine serve` and the far end of the loopback ceiling.

Each says on a line of its own when it is ready, is stopped by its pid within bounded time, and ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from support import TINY, directory

STOP_S_MAX = 15.0
PR_SET_PDEATHSIG = 1
NICE = 19
SERVING = re.compile(r"engine: serving .* on (engine://\S+), admin on (http://\S+)")
LISTENING = re.compile(r"listening on (\d+)")


def begin(cpu: int | None, yields: bool, command: list[str]) -> None:
    """In the child, which becomes its program: end with the parent, stay on the core, let others go first.

    It is a program of its own up to there, and no `preexec_fn`: that would run in the fork of this process, whose
    libraries have threads (gRPC's then abort it).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if cpu is not None:
        pin(cpu)
    if yields:
        os.nice(NICE)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.execvp(command[0], command)


def resident_bytes(pid: int) -> int:
    """Resident memory without the pages of files, which the kernel takes and gives as it likes."""
    import psutil

    memory = psutil.Process(pid).memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has taken, in all of its threads: ticks of 10 ms are too coarse."""
    clock = ctypes.c_int()
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error))
    return time.clock_gettime_ns(clock.value) / 1e9


class Child:
    """A process whose ready line matched `ready`; `said` is the line's first group.

    `cpu` pins it to one core. `yields`: it runs at idle priority, as if it had a machine of its own.
    """

    def __init__(
        self,
        command: list[str],
        ready: re.Pattern[str],
        *,
        cpu: int | None = None,
        ready_s_max: float = 100.0,  # on a loaded machine; one that ends is noticed at once
        yields: bool = False,
    ) -> None:
        self._ended = contextlib.ExitStack()
        folder = self._ended.enter_context(directory())
        self.log = Path(folder) / "log"
        with self.log.open("wb") as log:
            first = [sys.executable, __file__, "" if cpu is None else str(cpu), "yields" if yields else ""]
            self._process = subprocess.Popen([*first, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self._process.pid
        try:
            self.said = self._wait_ready(ready, ready_s_max)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, ready: re.Pattern[str], seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.log.read_text(errors="replace")
            if match := ready.search(text):
                return match[1]
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._process.args} ended with {self._process.returncode}: {text[-500:]}")
            time.sleep(0.005)
        raise TimeoutError(f"{self._process.args} was not ready after {seconds:g} s: {text[-500:]}")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """Ask it to end, by its pid; insist after a while. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Server(Child):
    """`engine serve` on free ports of 127.0.0.1; over `data`, or a folder that goes with it.

    `url` is its address, `admin` that of its HTTP door.
    """

    def __init__(self, data: str | None = None, *, cpu: int | None = None, processes: int = 1) -> None:
        with contextlib.ExitStack() as undo:
            path = data or undo.enter_context(directory())
            command = [sys.executable, "-m", "engine", "serve", "--data", path, "--log-level", "warning"]
            command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--processes", str(processes)]
            super().__init__(command, SERVING, cpu=cpu)
            self.url = self.said
            self.admin = SERVING.search(self.log.read_text())[2]  # type: ignore[index]
            self._ended.push(undo.pop_all())

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        return resident_bytes(self.pid)

    def processor_s(self) -> float:
        """Seconds of processor time that the server has taken, in all of its processes, to the nanosecond."""
        import psutil

        pids = [self.pid, *(child.pid for child in psutil.Process(self.pid).children())]
        return sum(processor_s(pid) for pid in pids)


class FarEnd(Child):
    """The other side of loopback TCP: see loopback.py, which it runs. `port` is where it listens."""

    def __init__(self, *, cpu: int | None = None) -> None:
        script = Path(__file__).with_name("loopback.py")
        super().__init__([sys.executable, str(script)], LISTENING, cpu=cpu)
        self.port = int(self.said)


_shared: dict[type[Child], Child] = {}


def _borrow(kind: type[Child]) -> Child:
    if kind not in _shared:
        _shared[kind] = kind()  # type: ignore[call-arg]
        atexit.register(_shared[kind].stop)
    return _shared[kind]


@contextlib.contextmanager
def server(*, cpu: int | None = None) -> Iterator[Server]:
    """A server of one's own; where everything is tiny, one for the whole process."""
    if TINY:
        yield _borrow(Server)  # type: ignore[misc]
    else:
        with Server(cpu=cpu) as own:
            yield own


@contextlib.contextmanager
def far_end(*, cpu: int | None = None) -> Iterator[FarEnd]:
    """The far end of loopback TCP, likewise."""
    if TINY:
        yield _borrow(FarEnd)  # type: ignore[misc]
    else:
        with FarEnd(cpu=cpu) as own:
            yield own


def raise_file_limit(wanted: int) -> None:
    """Let this process and its children open `wanted` files. Raises OSError where the machine refuses."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise OSError(f"{wanted} open files are needed, {hard} allowed: raise the limit (ulimit -n)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pin(cpu: int | None) -> None:
    """Keep this thread, and those it starts, on one core; None: on all of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1) if cpu is None else {cpu})


if __name__ == "__main__":
    begin(int(sys.argv[1]) if sys.argv[1] else None, bool(sys.argv[2]), sys.argv[3:])
