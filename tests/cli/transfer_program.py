"""`engine export` or `engine import` that may be killed at any moment: it prints a line after each of its steps."""

from __future__ import annotations

import sys

from engine.cli.main import main
from engine.cli.transfer import exporting, importing, readers

PART_BYTES = 8 << 10
BLOCK_ROWS = 150


def run(arguments: list[str]) -> int:
    """In small steps, so that there are many moments to be killed at."""
    exporting.PART_BYTES = PART_BYTES
    readers.BLOCK_ROWS = BLOCK_ROWS
    save, send = exporting.Journal.save, importing.Sending.send

    def saving(self: exporting.Journal, state: exporting.State) -> None:
        save(self, state)
        print("step", flush=True)

    def sending(self: importing.Sending, *what: object) -> None:
        send(self, *what)  # type: ignore[arg-type]
        print("step", flush=True)

    exporting.Journal.save = saving  # type: ignore[method-assign]
    importing.Sending.send = sending  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
