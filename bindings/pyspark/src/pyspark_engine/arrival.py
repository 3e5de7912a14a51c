"""What is done as a reader or writer arrives in a task.

Spark sends a worker its task in two pieces: what to run, and then, for a reader its partition, for a writer the rows.
The second is held back (Nagle's algorithm) until the worker's system has acknowledged the first, which it puts off for
40 ms (a delayed acknowledgement: the worker has nothing to say that the acknowledgement could travel with). The reader
or writer comes with the first piece, so it has that acknowledged at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux
_DESCRIPTORS = "/proc/self/fd"


class Arriving:
    """Base of what travels to tasks, pickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_now()


def acknowledge_now() -> None:
    """Acknowledge all that has come over this process's TCP connections. Which one is Spark's it does not say; for the
    others this means nothing.
    """
    if _QUICKACK is None or socket.getdefaulttimeout() is not None:
        return  # with a default timeout, a socket made of the descriptor would make it non-blocking
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            _acknowledge(int(name), _QUICKACK)


def _acknowledge(descriptor: int, option: int) -> None:
    with contextlib.suppress(OSError):  # it is no socket, or none of TCP, or closed by now
        if os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
            with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
