"""`BrokersAdmin`: the admin API of any broker that answers.

A broker names its admin URL in the handshake. A request goes to the one that answered last. When that cannot be
reached, it goes to that of the broker in use, of other connected brokers, and of the client's other addresses, each
once. A change that may have been made is not repeated: its error is raised, and the next request goes elsewhere first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from engine.aio.shielded import finished
from engine.client.admin.admin_http import HttpAdmin, may_repeat
from engine.client.net.pool import Pool
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    EngineError,
    TimeoutError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.model.admin_requests import Operation
from engine.wire.connector import Tls

log = logging.getLogger(__name__)

R = TypeVar("R")


class BrokersAdmin:
    """An AdminBackend. Loop thread only. `tls`: of HTTPS; None: what the system trusts."""

    def __init__(self, pool: Pool, service_url: str, tls: Tls | None) -> None:
        self._pool = pool
        self._service_url = service_url
        self._tls = tls
        self._url: str | None = None  # that answered last
        self._silent: str | None = None  # that did not answer last
        self._apis: dict[str, HttpAdmin] = {}
        self._closed = False

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """See AdminBackend. Raises also ConnectError, TimeoutError, UnknownOutcomeError; UnsupportedError."""
        tried: set[str] = set()
        failure: EngineError | None = None
        while (url := await self._next(tried)) is not None:
            tried.add(url)
            try:
                result = await self._api(url).call(operation, arguments)
            except (ConnectError, TimeoutError, UnknownOutcomeError) as e:
                self._url, self._silent = None, url
                if not may_repeat(operation.verb, e):
                    raise
                log.debug("%s is asked elsewhere: %s", operation.name, e)
                failure = failure or e
            else:
                self._url = url
                return result
        raise failure or UnsupportedError(
            f"the broker at {self._service_url} serves no admin API; engine.open(…, admin='127.0.0.1:8080') "
            "or engine serve --admin 127.0.0.1:8080 makes it"
        )

    async def _next(self, tried: set[str]) -> str | None:
        """An admin URL that was not tried, the one that was silent last; None: there is none.

        Raises ConnectError when no broker answers, and none was known.
        """
        if self._url is not None and self._url not in tried:
            return self._url
        late, pool = None, self._pool
        try:
            await pool.get()
        except ConnectError:
            if tried:
                return None
            raise
        for at in (pool.home.url, *pool.connected_brokers(), *pool.home.in_order()):
            try:
                url = (await pool.get(at)).admin_url
            except ConnectError as e:
                log.debug("%s is not asked for its admin API: %s", at, e)
                continue
            if url is None or url in tried:
                continue
            if url != self._silent:
                return url
            late = url
        return late

    def _api(self, url: str) -> HttpAdmin:
        api = self._apis.get(url)
        if api is None:
            if self._closed:  # while the request looked for a broker: nothing would end what it opens now
                raise AlreadyClosedError("the client was closed")
            options = self._pool.options
            try:
                api = HttpAdmin(url, token=options.token, timeout=options.operation_timeout, tls=self._tls)
            except EngineError:
                raise
            except ValueError as e:  # the broker names an address that is none
                raise ConnectError(f"cannot connect to the admin API at {url!r:.200}: {e}") from e
            self._apis[url] = api
        return api

    async def close(self) -> None:
        """Close the HTTP sessions, all of them also where this is cancelled. Idempotent."""
        self._closed = True
        await finished(asyncio.ensure_future(self._close_all()))

    async def _close_all(self) -> None:
        for api in self._apis.values():
            await api.close()
