"""`Owned`: what a client has made for a program, and closes when the program has lost it.

Tasks and connections hold what they work for, so that would never be collected. Therefore two objects are told apart:
the *working* one, which tasks, connections and the client hold, and the *handle*, which only the program holds. When
the handle is collected unclosed, the working one is closed on its loop. A handle is one of these:

    a thin owner    an object of its own, which has a working part (`AsyncProducer`)
    a twin          another object of the class and the state of the working one, with the same `__dict__` (consumers)

The methods of a class that has twins run on either. What outlives a call there (a task, a timer, an attachment) must
refer to `self.working`, or it would hold the program's handle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self, TypeVar


class Owner(Protocol):
    """What has made it, and closes it."""

    @property
    def current(self) -> bool:
        """Whether it is open, and of this process."""

    def lost(self, working: Any) -> None:
        """Close it soon. From any thread."""


class Owned:
    """Base of what a client makes."""

    # Of the program's handle; None: it is a part of something else, which closes it.
    _ownership: Ownership | None = None
    on_closed: Callable[[], object] | None = None  # called once it is closed
    _client: Any = None  # that has made it, and is not collected before it

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether a program may lose it without a word."""
        return self.closed

    @property
    def working(self) -> Any:
        """What tasks and connections may hold."""
        return self if self._ownership is None else self._ownership.working

    def __del__(self) -> None:
        if self._ownership is not None:
            self._ownership.collected(self)

    def disown(self) -> Self:
        """What has this handle closes it itself."""
        self._ownership = None
        return self


class Ownership:
    """Ties a handle to what works for it."""

    __slots__ = ("_owner", "working")

    def __init__(self, owner: Owner, working: Any) -> None:
        self._owner = owner
        self.working = working

    def collected(self, one: Any) -> None:
        """The program has lost its handle, unless `one` is the working object."""
        if one is self.working or one.closed or not self._owner.current:
            return
        if one.finished:
            self._owner.lost(self.working)
        else:
            warn_of(one, partial(self._owner.lost, self.working))


def warn_of(lost: object, close: Callable[[], object]) -> None:
    """Warn of an object that was collected unclosed, and close it."""
    try:
        warnings.warn(
            f"{lost!r} was not closed, and is now: use `async with`, or close()", ResourceWarning, stacklevel=3
        )
    finally:  # warnings may be errors
        close()


O = TypeVar("O", bound=Owned)  # noqa: E741


def handle_of(made: O, owner: Owner) -> O:
    """The program's handle of something that was made."""
    working = made.working
    handle = made if working is not made else _twin(made)
    handle._ownership = Ownership(owner, working)
    return handle


def _twin(made: O) -> O:
    state = dict(made.__dict__)  # one that shares no keys with other objects is read faster
    made.__dict__ = state
    kind = type(made)
    twin = kind.__new__(kind)
    twin.__dict__ = state
    return twin
