"""`AsyncAdmin`: what operators do with topics, subscriptions and segments.

The same methods over HTTP (a served broker) and in process (an embedded one): an `AdminBackend` carries them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from engine.client.net.pool import CLOSED
from engine.errors import AlreadyClosedError
from engine.model.admin_methods import AdminMethods
from engine.model.admin_requests import AdminBackend, Operation

R = TypeVar("R")


class AsyncAdmin(AdminMethods):
    """Made by a client (`client.admin`) or an engine.

    Raises the typed errors of the broker, ConnectError, TimeoutError; UnknownOutcomeError when the connection was lost
    before a change was answered: look whether it is made, then repeat it.
    """

    def __init__(self, connect: Callable[[], Awaitable[AdminBackend]]) -> None:
        self._connect = connect
        self._backend: AdminBackend | None = None
        self._closed = False

    async def _call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        return await (await self._get()).call(operation, arguments)

    async def _get(self) -> AdminBackend:
        self._check_open()
        if self._backend is None:
            backend = await self._connect()
            if self._closed:
                await backend.close()
            self._check_open()
            self._backend = backend
        return self._backend

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError(CLOSED)

    async def close(self) -> None:
        """Release what it holds. Idempotent."""
        self._closed = True
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()
