"""An asyncio event loop on virtual time: it never waits, time jumps to the next timer when there is nothing to do.

Callbacks run in the order asyncio gives them, so that a program without threads, sockets and other randomness runs the
same way every time. Iteration over sets of text depends on PYTHONHASHSEED.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from engine.testing.process import Gated, adopting, owner_of

T = TypeVar("T")

_TURNS_WITHOUT_TIME_MAX = 200_000
_TIMERS_MAX = 100  # from which on those that were cancelled are looked for, if they are half


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, and the program has not ended."""


class LivelockError(RuntimeError):
    """The program runs on and on without time passing, or past its time limit."""


class _JumpingSelector(selectors.BaseSelector):
    """Selects nothing; instead of waiting it moves the loop's time."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """The loop's own wake-up pipe is registered, and never read."""
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing is ever ready; time passes."""
        self._wait(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class InlineExecutor(Executor):
    """Runs what is submitted at once, on the caller's thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as e:
            future.set_exception(e)
        return future


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `run_in_executor` runs inline; sockets and subprocesses are not for it."""

    _timer_cancelled_count: int  # asyncio's own

    def __init__(self) -> None:
        self._now = 0.0
        self._deadline = float("inf")
        self._turns = 0
        super().__init__(_JumpingSelector(self._pass_time))
        self._clock_resolution = 1e-9
        self.executor = InlineExecutor()
        self.problems: list[dict[str, Any]] = []
        self.set_task_factory(adopting)
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's; what belongs to a suspended process is held."""
        self._check_closed()  # type: ignore[attr-defined]
        context = copy_context() if context is None else context
        owner = owner_of(context)
        if owner is None:
            handle = asyncio.Handle(callback, args, self, context)
        else:
            gated = Gated(owner, callback, context)
            handle = gated.handle = asyncio.Handle(gated, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; what belongs to a suspended process is held."""
        context = copy_context() if context is None else context
        owner = owner_of(context)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        gated = Gated(owner, callback, context)
        handle = gated.handle = super().call_at(when, gated, *args, context=context)
        return handle

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def _run_once(self) -> None:
        """A turn as asyncio's, without what is for sockets: due timers, then all that is ready, in their order."""
        timers, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        if len(timers) > _TIMERS_MAX and 2 * self._timer_cancelled_count > len(timers):
            super()._run_once()  # type: ignore[misc]  # which drops those that were cancelled
            return
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        if ready or self._stopping:  # type: ignore[attr-defined]
            self._pass_time(0)
        else:
            self._pass_time(max(0, timers[0]._when - self._now) if timers else None)
        due = self._now + self._clock_resolution
        while timers and timers[0]._when < due:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _pass_time(self, timeout: float | None) -> None:
        if timeout is None:
            raise DeadlockError("nothing is left to do, and these wait:\n" + describe_tasks(self))
        self._turns = 0 if timeout > 0 else self._turns + 1
        self._now += timeout
        if self._now > self._deadline:
            raise LivelockError(f"not done after {self._now:g} virtual seconds:\n" + describe_tasks(self))
        if self._turns > _TURNS_WITHOUT_TIME_MAX:
            raise LivelockError(
                f"{self._turns} turns at {self._now:g} s without time passing:\n" + describe_tasks(self)
            )

    def _write_to_self(self) -> None:
        """Nothing waits in a selector, so nothing needs to be woken."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run it now; the future is done in the next turn."""
        return asyncio.wrap_future((executor or self.executor).submit(func, *args), loop=self)

    def run(self, main: Coroutine[Any, Any, T], time_limit: float = float("inf")) -> T:
        """Run to the end and close the loop. Raises DeadlockError, LivelockError naming the tasks that wait."""
        asyncio.set_event_loop(None)
        self._deadline = time_limit
        try:
            return self.run_until_complete(main)
        finally:
            self._deadline = float("inf")
            _cancel_all(self)
            self.close()


def run_virtual(main: Coroutine[Any, Any, T], time_limit: float = 3600.0) -> T:
    """Run a coroutine on a new loop of virtual time."""
    return VirtualLoop().run(main, time_limit)


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """One line for each unfinished task: its name, and where it waits."""
    lines = []
    for task in asyncio.all_tasks(loop):
        frames = task.get_stack(limit=8)
        place = " < ".join(f"{f.f_code.co_name}:{f.f_lineno}" for f in reversed(frames)) or "not started"
        lines.append(f"  {task.get_name()}: {place}")
    return "\n".join(sorted(lines)) or "  (no task)"


def _cancel_all(loop: VirtualLoop) -> None:
    for _ in range(100):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop._turns = 0
        loop.run_until_complete(asyncio.wait(tasks, timeout=60))
