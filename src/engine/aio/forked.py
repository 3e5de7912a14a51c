"""Descriptors that a forked child must not keep.

A lock of flock() and a connection end with the last descriptor of them. Copies in a forked child would keep them beyond
the death of the parent: no other process could take its place, and its peers would wait for it. Closing a copy unlocks
nothing and ends nothing while the parent has its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol


def after_fork(callback: Callable[[], object]) -> None:
    """Have a forked child call it, before anything else runs there."""
    os.register_at_fork(after_in_child=callback)


class Owner(Protocol):
    """An object that has descriptors open."""

    def descriptors(self) -> Iterable[int]:
        """Those open now."""


def close_when_forked(owner: Owner) -> None:
    """From now on, a forked child gives up its copies of the owner's descriptors."""
    _owners.add(owner)


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Each copy is replaced by /dev/null, not closed: the object that has its number may close it once more, when the
    number could be another file's.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for owner in list(_owners):
        for descriptor in owner.descriptors():
            with suppress(OSError):
                os.dup2(null, descriptor, inheritable=False)
    _owners.clear()
    os.close(null)


after_fork(_after_fork_in_child)
