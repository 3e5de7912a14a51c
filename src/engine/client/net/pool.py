"""One connection per broker URL, made when first needed, and again after a loss with jittered back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.aio.backoff import RetryDelay
from engine.aio.tasks import Supervisor
from engine.client.base.memory import ClientMemory
from engine.client.base.options import ClientOptions
from engine.client.net.connection import Connection
from engine.errors import AlreadyClosedError, ConnectError, EngineError, InvalidArgumentError, TimeoutError
from engine.wire.stream import FrameStream

log = logging.getLogger(__name__)

CLOSED = "the client was closed"
BACKOFF_S_FIRST = 0.02
BACKOFF_S_MAX = 5.0
GOODBYE_S_MAX = 1.0  # a closing client waits this long for its peers to take what is queued for them

T = TypeVar("T")


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Have the loop call it soon, from any thread. Nothing happens when the loop has been closed."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Pool:
    """The connections of one client. Loop thread only.

    All callers that wait for a URL share one attempt and its outcome. The attempt after a failed one starts with a
    delay, so callers may simply call get() again.
    """

    def __init__(self, url: str, options: ClientOptions) -> None:
        self.url = url
        self.options = options
        self.memory = ClientMemory(options.memory_limit)
        self.closed = False
        self.ever_connected = False
        self.coordinator = url  # of the broker that requests about transactions go to
        self.tasks = Supervisor(f"client of {url}")
        self._connections: dict[str, Connection] = {}
        self._aside: list[Connection] = []
        self._attempts: dict[str, asyncio.Future[Connection]] = {}
        self._backoffs: dict[str, RetryDelay] = {}
        self._down: set[str] = set()  # URLs whose connection was lost
        self._proxied = False  # the client's URL is a proxy's, through which all brokers are reached
        self._loop: asyncio.AbstractEventLoop | None = None  # the one in which it was first used

    async def get(self, url: str | None = None) -> Connection:
        """A live connection to `url` (default: the client's). Raises ConnectError and what a handshake raises."""
        self._check_loop()
        key = url or self.url
        connection = self._connections.get(key)
        if connection is not None and connection.lost is None:
            return connection
        self.check_open()
        attempt = self._attempts.get(key)
        if attempt is None:
            task = self.tasks.spawn(self._attempt(key), name=f"connect {key}")
            assert task is not None  # closed was checked above
            attempt = self._attempts[key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(attempt)

    def is_connected(self, url: str) -> bool:
        """Whether get() returns a connection at once."""
        connection = self._connections.get(url)
        return connection is not None and connection.lost is None

    def connected_urls(self) -> list[str]:
        """The URLs for which get() returns a connection at once."""
        return [url for url, connection in self._connections.items() if connection.lost is None]

    def broker_at(self, url: str) -> str | None:
        """The name of the broker that was last connected to by this URL; None: none was."""
        connection = self._connections.get(url)
        return None if connection is None else connection.broker_url

    def process(self) -> str:
        """Of the broker at the client's URL, in texts; "" where it is not known."""
        connection = self._connections.get(self.url)
        return "" if connection is None or connection.named == self.url else f" by {connection.named}"

    def connected_brokers(self) -> list[str]:
        """The URLs of connected_urls(), one for each broker, by which it names itself."""
        return list(dict.fromkeys(c.broker_url for c in self._connections.values() if c.lost is None))

    def check_open(self) -> None:
        """Raise AlreadyClosedError after close()."""
        if self.closed:
            raise AlreadyClosedError(CLOSED)

    def _check_loop(self) -> None:
        """Raise AlreadyClosedError in another event loop than before: its connections belong to that one."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise AlreadyClosedError("the client was used in another event loop; make one client for each event loop")

    @property
    def loop_ended(self) -> bool:
        """Whether the event loop in which it was used has been closed."""
        return self._loop is not None and self._loop.is_closed()

    def sever(self) -> None:
        """End the connections of a loop that has been closed."""
        self.closed = True
        for connection in (*self._connections.values(), *self._aside):
            connection.stream.abort()

    async def _attempt(self, url: str) -> None:
        """Connect once, after the delay due to earlier failures; all waiting callers get the outcome."""
        backoff = self._backoffs.get(url)
        try:
            if backoff is not None:
                await asyncio.sleep(backoff.next())
            connection = await self._connect(url)
        except BaseException as e:
            self._failed(url, e)
            if not isinstance(e, Exception):
                raise
            return
        self._backoffs.pop(url, None)
        self.ever_connected = True
        if url == self.url:
            self._proxied = connection.proxied
        # The broker may name itself by another URL than the one that was dialled: one connection serves both. A
        # connection that was there under that name stays in use by the sessions on it.
        self._set_aside(self._connections.get(connection.broker_url))
        self._connections[url] = self._connections[connection.broker_url] = connection
        connection.ended.add_done_callback(lambda _: self._ended(url, connection))
        if url in self._down:
            self._down.remove(url)
            log.info("connected to %s again", url)
        attempt = self._attempts.pop(url)
        if not attempt.done():
            attempt.set_result(connection)

    def _ended(self, url: str, connection: Connection) -> None:
        """Log, once, that a URL has no connection any more."""
        if not self.closed and self._connections.get(url) is connection:
            self._down.add(url)
            log.info("%s; trying again", connection.lost)

    def _failed(self, url: str, error: BaseException) -> None:
        if url not in self._backoffs:
            self._backoffs[url] = RetryDelay(self.options.rng, initial=BACKOFF_S_FIRST, maximum=BACKOFF_S_MAX)
        attempt = self._attempts.pop(url)
        if attempt.done():
            return
        if self.closed or isinstance(error, asyncio.CancelledError):
            error = AlreadyClosedError(CLOSED)
        elif not isinstance(error, EngineError) or (isinstance(error, InvalidArgumentError) and url != self.url):
            error = ConnectError(f"no connection to {url}: {error!r}")  # a URL from a broker may be malformed
        attempt.set_exception(error)
        attempt.exception()  # retrieved: the waiting callers may have been cancelled

    async def _connect(self, url: str) -> Connection:
        made: list[Connection] = []

        def handler(stream: FrameStream) -> Connection:
            made.append(Connection(url, stream))
            return made[0]

        target = url if self._proxied and url != self.url else None
        await self.options.connector.connect(self.url if target else url, handler)
        try:
            await made[0].handshake(self.options.token, target)
        except BaseException:
            made[0].stream.abort()
            self._set_aside(made[0])
            raise
        return made[0]

    def _set_aside(self, connection: Connection | None) -> None:
        """Keep a connection that get() returns no more until it is closed."""
        if connection is not None:
            self._aside = [c for c in (*self._aside, connection) if c.lost is None]

    def retry_delays(self) -> RetryDelay:
        """Delays between attempts of a session that was refused for a reason that may pass."""
        return RetryDelay(self.options.rng, initial=BACKOFF_S_FIRST, maximum=1.0)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self.closed = True
        await self.tasks.close()
        for url in list(self._attempts):  # whose tasks were cancelled before their first step
            self._failed(url, asyncio.CancelledError())
        connections = list(dict.fromkeys((*self._connections.values(), *self._aside)))
        self._connections, self._aside = {}, []
        for connection in connections:
            connection.close()
        ends = [c.ended for c in connections if c.lost is None]
        if ends:
            await asyncio.wait(ends, timeout=GOODBYE_S_MAX)  # with TLS, both sides have to close
        for connection in connections:
            if connection.lost is None:
                connection.stream.abort()
        await asyncio.sleep(0)


async def persist(pool: Pool, attempt: Callable[[], Awaitable[T]], timeout: float, what: str) -> T:
    """Repeat `attempt()` after errors that pass (lost connection, stale layout), for `timeout` seconds in total.

    A client that has never reached a broker does not repeat it: the first ConnectError is raised at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    backoff = pool.retry_delays()
    while True:
        try:
            return await attempt()
        except EngineError as e:
            passing = e.layout_stale or (isinstance(e, ConnectError) and pool.ever_connected)
            if pool.closed and (passing or isinstance(e, ConnectError)):
                raise AlreadyClosedError(CLOSED) from e
            if not passing:
                raise
            delay = backoff.next()
            if loop.time() + delay >= deadline:
                raise _given_up(e, what, timeout) from e
        await asyncio.sleep(delay)


def _given_up(error: EngineError, what: str, timeout: float) -> EngineError:
    kind = ConnectError if isinstance(error, ConnectError) else TimeoutError
    return kind(f"{what} was given up after {timeout:g} s: {error}")
