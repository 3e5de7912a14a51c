"""Simulated processes inside one event loop: each task and timer has an owner, and all of one owner can be ended.

Killing is not closing: the owner must be cut off first from disk, network and metadata, so that what its tasks do while
they unwind reaches no other process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_OWNER: ContextVar[Process | None] = ContextVar("owner", default=None)
_UNWINDING_TURNS = 100


class Gated:
    """A callback of a process, held while that is suspended. `handle`: what the loop gave for it."""

    __slots__ = ("_callback", "_context", "_process", "handle")

    def __init__(self, process: Process, callback: Callable[..., object], context: Context) -> None:
        self._process = process
        self._callback = callback
        self._context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self, *arguments: Any) -> None:
        if self._process.suspended:
            self._process.hold(self, arguments, self._context)
        else:
            self._callback(*arguments)

    def pass_on(self, *arguments: Any) -> None:
        """What was held is due, unless what ran since then has cancelled it, as with any loop."""
        if self.handle is None or not self.handle.cancelled():
            self(*arguments)


class Process:
    """One run of a program. It owns the tasks and timers that are started under it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.suspended = False
        self._held: list[tuple[Gated, tuple[Any, ...], Context]] = []  # what is due meanwhile
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()  # in the order of their start
        self._context = copy_context()
        self._context.run(_OWNER.set, self)

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function as this process."""
        return self._context.copy().run(function, *arguments)

    async def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine as this process."""
        task = asyncio.get_running_loop().create_task(work(), context=self._context.copy())
        return await task

    def suspend(self) -> None:
        """SIGSTOP: nothing of the process runs until resume(); time passes for all others."""
        self.suspended = True

    def resume(self) -> None:
        """SIGCONT: what was due meanwhile runs now, in the order in which it was due. Idempotent."""
        self.suspended = False
        held, self._held = self._held, []
        for gated, arguments, context in held:
            asyncio.get_running_loop().call_soon(gated.pass_on, *arguments, context=context)

    def hold(self, gated: Gated, arguments: tuple[Any, ...], context: Context) -> None:
        """Keep a due callback until resume()."""
        self._held.append((gated, arguments, context))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Remember a task for as long as something else does."""
        self._tasks[task] = None

    def _unfinished(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if not task.done()]

    async def kill(self) -> list[str]:
        """End all tasks and timers; the names of tasks that would not end."""
        loop = asyncio.get_running_loop()
        self.resume()
        for _ in range(_UNWINDING_TURNS):
            for task in self._unfinished():
                task.cancel()
            await asyncio.sleep(0)
            if not self._unfinished():
                break
        for timer in list(getattr(loop, "_scheduled", ())):
            if owner_of(timer._context) is self:
                timer.cancel()
        return [task.get_name() for task in self._unfinished()]


def owner_of(context: Context) -> Process | None:
    """The process that a context belongs to."""
    owner: Process | None = context.get(_OWNER)
    return owner


def adopting(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    *,
    context: Context | None = None,
    **options: Any,
) -> asyncio.Task[T]:
    """A task factory: every task is known to the process that started it. `options` are those of Python 3.14."""
    task: asyncio.Task[T] = asyncio.Task(coroutine, loop=loop, context=context, **options)
    owner = owner_of(copy_context() if context is None else context)
    if owner is not None:
        owner.adopt(task)
    return task
