"""One connection per broker URL, made when first needed, and again after a loss with jittered back-off.

What any broker can answer is asked over get(None), of the broker in use (`home.py`). When that does not answer, another
one is in use from then on.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from engine.aio.backoff import RetryDelay
from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.client.base.memory import ClientMemory
from engine.client.base.options import ClientOptions
from engine.client.net.connection import Connection
from engine.client.net.home import Home, first_connected
from engine.client.net.ways import Ways
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    EngineError,
    InvalidArgumentError,
    TimeoutError,
    UnknownOutcomeError,
)
from engine.wire.commands import Answerable
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.client.base.object_access import ObjectAccess

log = logging.getLogger(__name__)

CLOSED = "the client was closed"
BACKOFF_S_FIRST = 0.02
BACKOFF_S_MAX = 5.0
GOODBYE_S_MAX = 1.0  # a closing client waits this long for its peers to take what is queued for them
_ANY = ""  # the attempt to connect to any broker
_SHARE = 3  # of the operation timeout: the longest wait for one broker where there are others

T = TypeVar("T")
Answer = TypeVar("Answer")


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

    def __init__(self, addresses: Sequence[str], options: ClientOptions) -> None:
        """`addresses`: of brokers, or of proxies; any of them will do."""
        self.options = options
        self.home = Home(addresses, options.rng)
        self.memory = ClientMemory(options.memory_limit)
        self.closed = False
        self.ever_connected = False
        self.tasks = Supervisor(f"client of {', '.join(addresses)}")
        self._connections: dict[str, Connection] = {}
        self._aside: list[Connection] = []
        self._attempts: dict[str, asyncio.Future[Connection]] = {}
        self._backoffs: dict[str, RetryDelay] = {}
        self._down: set[str] = set()  # URLs whose connection was lost
        self._ways = Ways(addresses)
        self._loop: asyncio.AbstractEventLoop | None = None  # the one in which it was first used

    @cached_property
    def objects(self) -> ObjectAccess:
        """What clients read in the store of objects; loaded by those that read files."""
        from engine.client.base.object_access import ObjectAccess

        return ObjectAccess(self.options.open_objects, self.options.memory_limit)

    @property
    def _reads_objects(self) -> bool:
        return "objects" in vars(self)

    def options_of_child(self) -> ClientOptions:
        """Of a forked child: the threads of the library with which a store is open are those of this process."""
        opened = self._reads_objects and self.objects.opened
        return replace(self.options, open_objects=None) if opened else self.options

    async def get(self, url: str | None = None) -> Connection:
        """A live connection to `url` (default: any broker). Raises ConnectError and what a handshake raises."""
        self._check_loop()
        connection = self._connections.get(url or self.home.url)
        if connection is not None and connection.lost is None:
            return connection
        self.check_open()
        return await shielded(self._begin(url or self._anywhere()))

    def _anywhere(self) -> str:
        """The only URL where a broker may be; _ANY where there are several."""
        only = self.home.addresses == (self.home.url,) and not self._learned()
        return self.home.url if only else _ANY

    def _learned(self) -> list[str]:
        """The brokers that were connected to, by which they name themselves; none behind proxies."""
        if self._ways.through_proxies_alone:
            return []
        found = dict.fromkeys(c.broker_url for c in self._connections.values())
        return [url for url in found if url not in self.home.addresses]

    def _begin(self, key: str) -> asyncio.Future[Connection]:
        """The attempt to connect to a URL, or _ANY, that is under way; a new one, if there is none."""
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_future()
            if key and self.is_connected(key):
                attempt.set_result(self._connections[key])
                return attempt
            task = self.tasks.spawn(self._attempt(key), name=f"connect {key or 'to any broker'}")
            if task is None:
                attempt.set_exception(AlreadyClosedError(CLOSED))
            else:
                self._attempts[key] = attempt
        return attempt

    def is_connected(self, url: str) -> bool:
        """Whether get() returns a connection at once."""
        connection = self._connections.get(url)
        return connection is not None and connection.lost is None

    @property
    def connections(self) -> list[Connection]:
        """Those that get() returns, one for each broker."""
        return list(dict.fromkeys(self._connections.values()))

    def connected_urls(self) -> list[str]:
        """The URLs for which get() returns a connection at once."""
        return [url for url, connection in self._connections.items() if connection.lost is None]

    def broker_at(self, url: str) -> str | None:
        """The name of the broker that was last connected to by this URL; None: none was."""
        connection = self._connections.get(url)
        return None if connection is None else connection.broker_url

    def process(self) -> str:
        """Of the broker in use, in texts; "" where it is not known."""
        connection = self._connections.get(self.home.url)
        return "" if connection is None or connection.named == self.home.url else f" by {connection.named}"

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
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """In which it was first used."""
        return self._loop

    @property
    def loop_ended(self) -> bool:
        """Whether the event loop in which it was used has been closed."""
        return self._loop is not None and self._loop.is_closed()

    def sever(self) -> None:
        """End the connections of a loop that has been closed."""
        self.closed = True
        for connection in (*self._connections.values(), *self._aside):
            connection.stream.abort()

    async def _attempt(self, key: str) -> None:
        """Connect once; all waiting callers get the outcome."""
        try:
            connection = await (self._connect(key) if key else self._connect_anywhere())
        except BaseException as e:
            self._failed(key, e)
            if not isinstance(e, Exception):
                raise
            return
        attempt = self._attempts.pop(key)
        if not attempt.done():
            attempt.set_result(connection)

    async def _connect_anywhere(self) -> Connection:
        urls = self.home.in_order(self._learned())
        connected = [url for url in urls if self.is_connected(url) and self.home.is_well(url)]
        url, connection = await first_connected(connected or urls, self._begin, self.home.addresses)
        if url != self.home.url:
            log.info("what any broker answers is asked at %s", url)
            self.home.url = url
        return connection

    async def _connect(self, url: str) -> Connection:
        """Connect to a URL, after the delay due to earlier failures."""
        backoff = self._backoffs.get(url)
        if backoff is not None:
            await asyncio.sleep(backoff.next())
        connection = await self._dial(url)
        self._backoffs.pop(url, None)
        self.home.works(url, connection.broker_url)
        self.ever_connected = True
        self._ways.learn(url, proxied=connection.proxied)
        # The broker may name itself by another URL than the one that was dialled: one connection serves both. A
        # connection that was there under that name stays in use by the sessions on it.
        self._set_aside(self._connections.get(connection.broker_url))
        self._connections[url] = self._connections[connection.broker_url] = connection
        connection.ended.add_done_callback(lambda _: self._ended(url, connection))
        if url in self._down:
            self._down.remove(url)
            log.info("connected to %s again", url)
        return connection

    def _ended(self, url: str, connection: Connection) -> None:
        """Log, once, that a URL has no connection any more."""
        if not self.closed and self._connections.get(url) is connection:
            self.home.failed(url, connection.broker_url)
            self._down.add(url)
            log.info("%s; trying again", connection.lost)

    def _failed(self, key: str, error: BaseException) -> None:
        if key:
            self.home.failed(key)
            if key not in self._backoffs:
                self._backoffs[key] = RetryDelay(self.options.rng, initial=BACKOFF_S_FIRST, maximum=BACKOFF_S_MAX)
        attempt = self._attempts.pop(key)
        if attempt.done():
            return
        if self.closed or isinstance(error, asyncio.CancelledError):
            error = AlreadyClosedError(CLOSED)
        elif key and self._is_no_answer(key, error):
            error = ConnectError(f"no connection to {key}: {error!r}")
        attempt.set_exception(error)
        attempt.exception()  # retrieved: the waiting callers may have been cancelled

    def _is_no_answer(self, url: str, error: BaseException) -> bool:
        """Whether callers get another error: a URL from a broker may be malformed."""
        malformed = isinstance(error, InvalidArgumentError) and url not in self.home.addresses
        return malformed or not isinstance(error, EngineError)

    async def _dial(self, url: str) -> Connection:
        """Connect to a broker, directly or through any of the proxies."""
        ways, errors = self._ways.to(url, self.home.in_order()), list[ConnectError]()
        for way in ways:
            try:
                async with asyncio.timeout(None if way is ways[-1] else self.options.operation_timeout / _SHARE):
                    return await (self._greet(url, url, None) if way is None else self._through(way, url))
            except ConnectError as e:
                errors.append(e)
            except builtins.TimeoutError:
                errors.append(ConnectError(f"{way or url} did not answer in time"))
        raise errors[0] if len(errors) == 1 else ConnectError(f"no way leads to {url}: {'; '.join(map(str, errors))}")

    async def _through(self, address: str, url: str) -> Connection:
        """Connect to a broker through an address, unless that turns out to be no proxy."""
        connection = await self._greet(url, address, url)
        self._ways.learn(address, proxied=connection.proxied)
        if self._ways.is_broker(address):
            connection.close()
            self._set_aside(connection)
            raise ConnectError(f"{address} is no proxy")
        return connection

    async def _greet(self, url: str, dialled: str, target: str | None) -> Connection:
        made: list[Connection] = []

        def handler(stream: FrameStream) -> Connection:
            made.append(Connection(url, stream))
            return made[0]

        await self.options.connector.connect(dialled, handler)
        try:
            await made[0].handshake(self.options.token_now(), target)
            made[0].renew_with(self.options.token_now if callable(self.options.token) else None)
        except BaseException:
            made[0].stream.abort()
            self._set_aside(made[0])
            raise
        return made[0]

    def _set_aside(self, connection: Connection | None) -> None:
        """Keep a connection that get() returns no more until it is closed."""
        if connection is not None:
            self._aside = [c for c in (*self._aside, connection) if c.lost is None]

    # -- what any broker can answer ------------------------------------------------------------------------------

    async def anywhere(self, ask: Callable[[float], Awaitable[T]]) -> T:
        """Await `ask(seconds)`, which asks the broker in use. When that does not answer, another one is in use.

        Raises what `ask` raises; ConnectError for any failure after which a repetition asks another broker, so a
        request that times out may have taken effect.
        """
        url, timeout_s = self.home.url, self.options.operation_timeout
        try:
            if not self._others(url):
                return await ask(timeout_s)
            timeout_s /= _SHARE
            async with asyncio.timeout(timeout_s):
                return await ask(timeout_s)
        except (ConnectError, UnknownOutcomeError, builtins.TimeoutError) as e:
            why = str(e) if isinstance(e, EngineError) else f"{url} did not answer within {timeout_s:g} s"
            if not self._leave(url, why) and isinstance(e, EngineError):
                raise
            raise ConnectError(why) from e

    async def ask_any(self, request: Answerable[Answer]) -> Answer:
        """The answer of any broker to a request that may be repeated. Raises as anywhere()."""

        async def ask(timeout_s: float) -> Answer:
            return await (await self.get()).request(request, timeout_s)

        return await self.anywhere(ask)

    def _leave(self, url: str, why: str) -> bool:
        """Use another broker from now on, if there is one. Whether that is so."""
        if self.home.url == url and (others := self._others(url)):  # else another request has chosen
            self.home.failed(url, self.broker_at(url))
            self.home.url = self.options.rng.choice(others)
            log.info("what any broker answers is asked at %s: %s", self.home.url, why)
        return self.home.url != url

    def _others(self, url: str) -> list[str]:
        """Where other brokers than the one at `url` may answer, the likeliest: connected, and not known to fail."""
        same = (url, self.broker_at(url))
        connected = [one for one in self.connected_brokers() if one not in same]
        if len(self.home.addresses) == 1:
            return connected
        given = [one for one in self.home.addresses if one not in same and self.broker_at(one) not in same]
        well = [list(filter(self.home.is_well, urls)) for urls in (connected, given)]
        return next(filter(None, (*well, connected, given)), [])

    # -- ending --------------------------------------------------------------------------------------------------

    def retry_delays(self) -> RetryDelay:
        """Delays between attempts of a session that was refused for a reason that may pass."""
        return RetryDelay(self.options.rng, initial=BACKOFF_S_FIRST, maximum=1.0)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self.closed = True
        await self.tasks.close()
        for url in list(self._attempts):  # whose tasks were cancelled before their first step
            self._failed(url, asyncio.CancelledError())
        if self._reads_objects:
            await self.objects.close()
        connections = list(dict.fromkeys((*self.connections, *self._aside)))
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


async def persist(
    pool: Pool,
    attempt: Callable[[], Awaitable[T]],
    timeout: float,
    what: str,
    passing: tuple[type[EngineError], ...] = (ConnectError,),
) -> T:
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
            passes = e.layout_stale or (isinstance(e, passing) and pool.ever_connected)
            if pool.closed and (passes or isinstance(e, passing)):
                raise AlreadyClosedError(CLOSED) from e
            if not passes:
                raise
            delay = backoff.next()
            if loop.time() + delay >= deadline:
                raise _given_up(e, what, timeout) from e
        await asyncio.sleep(delay)


def _given_up(error: EngineError, what: str, timeout: float) -> EngineError:
    kind = ConnectError if isinstance(error, ConnectError) else TimeoutError
    return kind(f"{what} was given up after {timeout:g} s: {error}")
