"""Clients that their program has lost: collected unclosed, or made by the parent of this process."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from engine.aio.bag import Bag
from engine.aio.forked import after_fork
from engine.client.net.pool import Pool, call_threadsafe


class Client(Protocol):
    """An asynchronous client."""

    @property
    def close(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Idempotent."""

    def after_fork(self) -> None:
        """In a forked child: what it has made is the parent's."""


_closing: Bag[asyncio.Task[None]] = Bag()
_living: weakref.WeakSet[Any] = weakref.WeakSet()
_of_parents: list[tuple[object, ...]] = []


def add_living(client: Client) -> None:
    """Have it told in a forked child."""
    _living.add(client)


def keep_of_parent(*parts: object) -> None:
    """In a forked child: keep parts of a client, as what ends them would run on what the parent uses."""
    _of_parents.append(parts)


def close_collected(client: Client, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
    """Close it soon, on its loop; where that has ended, only its connections are left. From any thread."""
    if loop.is_closed():
        pool.sever()
    else:
        call_threadsafe(loop, partial(_spawn, client))


def _spawn(client: Client) -> None:
    task = asyncio.ensure_future(client.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _after_fork() -> None:
    for client in list(_living):
        client.after_fork()


after_fork(_after_fork)
