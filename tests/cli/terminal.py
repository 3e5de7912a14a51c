"""A pseudo-terminal for a command that is run."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """(a terminal, what was written to it); all of that is there behind the block."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while some := os.read(ours, 4_096):
                seen.extend(some)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
