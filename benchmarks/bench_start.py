"""What a program pays before its first message: processor time of `import engine` and of `engine.open`.

Each is the median of processes of their own, with compiled modules in place, less what the interpreter takes alone.
Asked for: 0.05 s and 0.3 s. How many modules are loaded, `tests/api/test_imports.py` counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from typing import ClassVar

from support import TINY

REPETITIONS = 1 if TINY else 9
PROGRAMS = {
    "nothing": "",
    "import engine": "import engine",
    "engine.open": "import engine, sys\nwith engine.open(sys.argv[1]): pass",
    "engine.open, send, receive": """
import engine, sys
with engine.open(sys.argv[1]) as e, e.producer("t") as p, e.stream_consumer("t", "s", initial_position="earliest") as c:
    p.send(b"")
    c.receive()
""",
}


def processor_s(program: str, modules: str) -> float:
    """User and system time of one process that runs it. `modules`: the directory of compiled ones."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-c", program, f"{data}/data"]
        before = os.times()
        subprocess.run(command, env={**found, "PYTHONPYCACHEPREFIX": modules}, check=True, timeout=120)
        after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


class Start:
    """Of one process, from its start to its end."""

    timeout = 600
    params: ClassVar = [name for name in PROGRAMS if name != "nothing"]
    param_names: ClassVar = ["program"]
    unit = "ms"

    def track_processor_ms(self, name: str) -> float:
        each: list[float] = []
        with tempfile.TemporaryDirectory() as modules:
            processor_s(PROGRAMS[name], modules)  # compiles them
            for _ in range(REPETITIONS):  # in turns, since the machine's pace changes
                alone = processor_s(PROGRAMS["nothing"], modules)
                each.append(processor_s(PROGRAMS[name], modules) - alone)
        return statistics.median(each) * 1e3


if __name__ == "__main__":
    start = Start()
    for each in Start.params:
        print(f"{each:28} {start.track_processor_ms(each):7.1f} ms of processor time")
