"""`Entering`: the result of `client.transaction()`, to be awaited or entered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidArgumentError

if TYPE_CHECKING:
    from engine.client.transact.transaction import AsyncTransaction


class Entering:
    """A transaction that has not begun yet: await it, or enter it, once."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, AsyncTransaction]]) -> None:
        self._make = make
        self._made: AsyncTransaction | None = None
        self._entered = False

    def __await__(self) -> Generator[Any, None, AsyncTransaction]:
        return self._enter().__await__()

    async def _enter(self) -> AsyncTransaction:
        """Raises InvalidArgumentError the second time: that would be another transaction."""
        if self._entered:
            raise InvalidArgumentError(
                "it was awaited or entered before: keep the transaction that it gave, or ask for another one"
            )
        self._entered = True
        try:
            return await self._make()
        except BaseException:
            self._entered = False  # there is no transaction
            raise

    async def __aenter__(self) -> AsyncTransaction:
        self._made = await self._enter()
        return self._made

    async def __aexit__(self, *exc: Any) -> None:
        if self._made is not None:
            await self._made.__aexit__(*exc)
