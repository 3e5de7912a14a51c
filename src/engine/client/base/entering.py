"""`Entering`: what the factories of a client return, to be awaited or entered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from engine.errors import InvalidArgumentError, NotAwaitedError

T = TypeVar("T")


class Entering(Coroutine[Any, Any, T]):
    """Something that is not made yet: await it, or enter it with `async with`, once. It is made then, not before.

    Used as what it makes it raises NotAwaitedError.
    """

    def __init__(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._name = name
        self._make = make
        # Arguments that do not fit raise here, and Python warns of one that is forgotten.
        self._making: Coroutine[Any, Any, T] | None = make()
        self._entered = False
        self._made: T | None = None
        self._driven: Coroutine[Any, Any, T] | None = None  # by a task, step by step

    def __await__(self) -> Generator[Any, Any, T]:
        return self._enter().__await__()

    async def _enter(self) -> T:
        """Raises InvalidArgumentError the second time: that would be another one."""
        if self._entered:
            raise InvalidArgumentError(
                f"{self._name} was awaited or entered before: keep what it gave, or ask for another one"
            )
        self._entered = True
        making, self._making = self._making or self._make(), None
        try:
            return await making
        except BaseException:
            self._entered = False  # nothing was made
            raise

    async def __aenter__(self) -> T:
        made = self._made = await self._enter()
        return made

    def __aexit__(self, *exc: Any) -> Coroutine[Any, Any, bool | None]:
        """Leave what was made."""
        return cast(AbstractAsyncContextManager[Any], self._made).__aexit__(*exc)

    # -- as a coroutine: of create_task(), a TaskGroup, run_coroutine_threadsafe() --------------------------------

    def send(self, value: Any = None, /, *args: Any, **options: Any) -> Any:
        """One step of the coroutine, of which event loops know. Raises NotAwaitedError for anything that is sent."""
        if value is not None or args or options:
            self._refuse("send")
        if self._driven is None:
            self._driven = self._enter()
        return self._driven.send(None)

    def throw(self, *error: Any) -> Any:
        """Raise it where the coroutine waits."""
        if self._driven is None:
            self._driven = self._enter()
        return self._driven.throw(*error)

    def close(self) -> None:
        """End the coroutine; nothing is made. Raises NotAwaitedError where it was neither awaited nor entered: a
        program that closes this means what it would have made.
        """
        self.drop()
        if self._driven is None and self._making is not None:
            self._refuse("close")

    def drop(self) -> None:
        """It will not be awaited, on purpose: Python does not warn."""
        for coroutine in (self._driven, self._making):
            if coroutine is not None:
                coroutine.close()

    # -- what was forgotten ---------------------------------------------------------------------------------------

    def _refuse(self, attribute: str) -> NoReturn:
        raise NotAwaitedError(
            f"{self._name} must be awaited or entered before .{attribute} is used: "
            f"x = await client.{self._name}, or async with client.{self._name} as x"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> NoReturn:
            self._refuse(attribute)

        def __aiter__(self) -> NoReturn:
            self._refuse("__aiter__")

        def __iter__(self) -> NoReturn:
            self._refuse("__iter__")

        def __enter__(self) -> NoReturn:
            self._refuse("__enter__: use async with")

        def __exit__(self, *exc: Any) -> None:
            """Never called; without it Python would say that there is none, and not what to do."""

    def __repr__(self) -> str:
        return f"<{self._name} that was not awaited or entered>"


def entering(factory: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Entering[Any]]:
    """A factory whose result can be awaited and entered, of one that is awaited."""

    @wraps(factory)
    def make(*args: Any, **options: Any) -> Entering[Any]:
        return Entering(f"{factory.__name__}(…)", lambda: factory(*args, **options))

    return make
