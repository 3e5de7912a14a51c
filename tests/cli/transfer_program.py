"""`engine export` or `engine import` that may be killed at any moment: it prints a line after each of its steps.

With INTERRUPT_AT in the environment, it is interrupted as by Ctrl-C in that step.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

from engine.cli.main import main
from engine.cli.transfer import exporting, importing, readers

PART_BYTES = 8 << 10
BLOCK_ROWS = 150
BLOCK_BYTES = 16 << 10


def run(arguments: list[str]) -> int:
    """In small steps, so that there are many moments to be killed at."""
    exporting.PART_BYTES = PART_BYTES
    readers.BLOCK_ROWS, readers.BLOCK_BYTES, readers.CSV_BLOCK_BYTES = BLOCK_ROWS, BLOCK_BYTES, BLOCK_BYTES
    steps, interrupted_at = count(1), int(os.environ.get("INTERRUPT_AT", "0"))

    def step() -> None:
        print("step", flush=True)
        if next(steps) == interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)

    save, send = exporting.Journal.save, importing.Sending.send

    def saving(self: exporting.Journal, state: exporting.State) -> None:
        save(self, state)
        step()

    def sending(self: importing.Sending, *what: object) -> None:
        send(self, *what)  # type: ignore[arg-type]
        step()

    exporting.Journal.save = saving  # type: ignore[method-assign]
    importing.Sending.send = sending  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
