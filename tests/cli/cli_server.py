"""`engine serve` in a process of its own, on free ports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(r"engine: serving .* on (engine://\S+), (?:admin on (https?://\S+)|no admin API)")


@dataclass
class Server:
    """`engine serve` on free ports."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    lines: list[str]


PROGRAM = (sys.executable, "-m", "engine")


def start_server(
    data: Path, *more: str, program: Sequence[str] = PROGRAM, environment: dict[str, str] | None = None
) -> Server:
    """Start it and wait until it says that it is ready. Raises RuntimeError with what it said instead."""
    command = [*program, "serve", "--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *more]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    lines = []
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if match := READY.search(line):
            return Server(process, match[1], match[2], lines)
    process.wait()
    process.stderr.close()
    raise RuntimeError("".join(lines))


def stop_server(server: Server) -> tuple[int, str]:
    """Tell it to stop; (exit code, the rest of what it said)."""
    if server.process.poll() is None:
        server.process.terminate()
    _, rest = server.process.communicate(timeout=30)
    return server.process.returncode, rest
