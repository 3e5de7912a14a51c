"""SIGTERM as a request to finish: callbacks beside the handler that a program has installed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_callbacks: list[Callable[[], object]] = []
_previous: Any = signal.SIG_DFL  # what was installed before ours, called behind the callbacks


@contextlib.contextmanager
def on_sigterm(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` on SIGTERM within the block, and then the handler that was installed before.

    Python allows handlers on the main thread alone: on other threads, and where a handler was installed by something
    else than Python, nothing is installed. The handler before is restored behind the last of several blocks. `callback`
    runs between two instructions of the main thread, so it must take no lock that is held there.
    """
    if not _install():
        yield
        return
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)
        if not _callbacks and signal.getsignal(signal.SIGTERM) is _handle:  # else another one calls ours
            signal.signal(signal.SIGTERM, _previous)


def _install() -> bool:
    global _previous
    if threading.current_thread() is not threading.main_thread():
        return False
    installed = signal.getsignal(signal.SIGTERM)
    if installed is None:
        return False
    if not _callbacks and installed is not _handle:
        _previous = installed
        signal.signal(signal.SIGTERM, _handle)
    return True


def _handle(number: int, frame: FrameType | None) -> None:
    for callback in list(_callbacks):
        callback()
    if callable(_previous):
        _previous(number, frame)
    elif not _callbacks and _previous == signal.SIG_DFL:  # a later handler calls this one, whose blocks have ended
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
