"""Closing of blocking objects, also of those that the program has not closed."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from engine.aio.portal import Portal, before_exit
from engine.errors import AlreadyClosedError, EngineError


class Closable(Protocol):
    """An object with a blocking close()."""

    def close(self) -> None:
        """End it. Idempotent."""


def run_to_close(portal: Portal, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a close() on the loop. Does nothing when the loop has ended, since everything has ended with it."""
    if not portal.closed:
        try:
            portal.run(close())
        except AlreadyClosedError:
            if not portal.closed:
                raise


def close_collected(
    portal: Portal,
    what: str,
    close: Callable[[], Coroutine[Any, Any, None]],
    ends: Callable[[], bool] = lambda: False,
) -> None:
    """Close what is being collected: soon, as this may be any thread. `ends`: whether the portal ends with it."""
    if not portal.closed:
        try:
            warnings.warn(f"{what} was not closed, and is now: use `with`, or close()", ResourceWarning, stacklevel=3)
        finally:  # warnings may be errors
            portal.finish(close, ends)


def close_before_exit(client: Closable) -> None:
    """Arrange for a forgotten client to be closed in time, without keeping it alive."""
    reference = weakref.ref(client)

    def close() -> None:
        alive = reference()
        if alive is not None:
            with contextlib.suppress(EngineError):
                alive.close()

    before_exit(close)
