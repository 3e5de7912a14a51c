"""`AsyncEngine`: a client that has a hold on an engine in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from engine.broker.server import Broker
from engine.client.client import AsyncClient
from engine.errors import UnsupportedError
from engine.wire.stream import Connector

if TYPE_CHECKING:
    from engine.model.admin_requests import AdminBackend


class Hold(Protocol):
    """What a handle has of an engine; the engine ends with the last one."""

    ended: bool  # it was the last one, and is closed

    @property
    def broker(self) -> Broker | None:
        """While this process serves the directory."""

    @property
    def url(self) -> str:
        """What its clients call the broker; fixed."""

    @property
    def service_url(self) -> str:
        """Where other programs connect."""

    @property
    def admin_url(self) -> str | None:
        """Of the REST API."""

    async def close(self) -> None:
        """Let go. Idempotent."""

    def let_go(self) -> None:
        """The same on any thread, without waiting."""

    def after_fork(self) -> None:
        """In a forked child: it is the parent's."""


class AsyncEngine(AsyncClient):
    """A client of the engine that has a data directory open. Made by `open_async`; closing the last one of a process
    closes the engine there.
    """

    def __init__(self, hold: Hold, connector: Connector, admin: AdminBackend, **options: Any) -> None:
        """`options`: AsyncClient's."""
        super().__init__(hold.url, connector=connector, admin=admin, **options)
        self._hold = hold

    @property
    def service_url(self) -> str:
        """Where other programs connect."""
        return self._hold.service_url

    @property
    def admin_url(self) -> str | None:
        """Where the REST API is, with the port that was bound; None without one."""
        return self._hold.admin_url

    @property
    def broker(self) -> Broker:
        """The broker itself, for tests: on this loop with `shared=False`, else on a thread of its own.

        Raises UnsupportedError while another process serves the directory.
        """
        broker = self._hold.broker
        if broker is None:
            raise UnsupportedError("another process has the directory open, and with it the broker")
        return broker

    @property
    def ended(self) -> bool:
        """Whether it was the last one, and the engine is closed."""
        return self._hold.ended

    def after_fork(self) -> None:
        """In a forked child: it joins the engine of its parent, or takes over."""
        if not self.closed:
            super().after_fork()
            self._hold.after_fork()

    def _close_collected(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_running():  # and it may never run again
            self._hold.let_go()
        super()._close_collected(loop)

    async def _close(self) -> None:
        """Close the client, then the engine, unless others use it."""
        try:
            await super()._close()
        finally:
            await self._hold.close()
