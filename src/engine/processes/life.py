"""A child's bond to its parent: it ends when the parent does, however that happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # prctl(2)
ORPHANED = 70  # exit code of a child whose parent has ended


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent, of this process id, dies; at once, if it is dead already.

    Where the system cannot (only Linux can), the end of the channel to the parent is what ends the process. The kill
    comes also when the event loop is blocked, and when the process is stopped.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        end_orphaned()


def end_orphaned() -> NoReturn:
    """End without closing anything: the metadata store has gone, and another server may open the directory."""
    os._exit(ORPHANED)


def leave_signals_to_parent() -> None:
    """Ignore the signals that a terminal sends to all processes of a group; the parent acts on them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
