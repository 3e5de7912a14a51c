"""`Home`: which broker a client asks what any broker can answer, and in which order it looks for one.

At first: the client's addresses in a random order, so that many clients spread over the brokers. What works stays in
use. When it fails: a broker that is connected; else the addresses, those that failed longest ago first, and behind them
the brokers to which the client was connected before, of which it had learned from layouts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Iterable, Sequence

from engine.client.net.connection import Connection, ignore_outcome
from engine.errors import ConnectError, EngineError

STAGGER_S = 1.0  # a connection that is not there after this time no longer keeps the next attempt waiting


class Home:
    """`url`: of the broker in use. Loop thread only."""

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        self.addresses = tuple(addresses)
        self._rng = rng
        self._failures: dict[str, int] = {}  # the number of the last failure of each that does not work
        self._count = 0
        self.url = self.addresses[0] if len(self.addresses) == 1 else rng.choice(self.addresses)

    def failed(self, *urls: str | None) -> None:
        """A broker, by its names, could not be connected to, was lost, or did not answer."""
        self._count += 1
        self._failures |= {url: self._count for url in urls if url is not None}

    def works(self, *urls: str) -> None:
        """It is connected."""
        for url in urls:
            self._failures.pop(url, None)

    def is_well(self, url: str) -> bool:
        """Whether it has not failed since it was connected last."""
        return url not in self._failures

    def in_order(self, learned: Iterable[str] = ()) -> list[str]:
        """The URLs to try. `learned`: of brokers that are not among the addresses, or are by another name."""
        behind = [url for url in learned if url not in self.addresses]
        return [*self._shuffled(self.addresses), *self._shuffled(behind)]

    def _shuffled(self, urls: Sequence[str]) -> list[str]:
        if len(urls) < 2:
            return list(urls)
        mixed = self._rng.sample(urls, len(urls))
        return sorted(mixed, key=lambda url: (self._failures.get(url, 0), url != self.url))


async def first_connected(
    urls: Iterable[str], begin: Callable[[str], asyncio.Future[Connection]], given: Container[str]
) -> tuple[str, Connection]:
    """The first connection that is there, and its URL. `begin` starts an attempt, which goes on when it is not needed.

    The next attempt begins when one has failed, at once, or after STAGGER_S, when one may wait for a machine that is
    gone. Raises the error of the only one; ConnectError with the reason of each; the first of another kind, which a
    repetition does not help, of the addresses that are `given`.
    """
    running: dict[asyncio.Future[Connection], str] = {}
    errors: dict[str, EngineError] = {}
    for url in urls:
        attempt = begin(url)
        attempt.add_done_callback(ignore_outcome)  # a later one may come first
        running[attempt] = url
        if (found := await _first_of(running, errors, STAGGER_S)) is not None:
            return found
    while running:
        if (found := await _first_of(running, errors, None)) is not None:
            return found
    final = [error for url, error in errors.items() if url in given and not isinstance(error, ConnectError)]
    if final or len(errors) == 1:
        raise (final or list(errors.values()))[0]
    raise ConnectError(f"no broker answers: {'; '.join(map(str, errors.values()))}")


async def _first_of(
    running: dict[asyncio.Future[Connection], str], errors: dict[str, EngineError], timeout: float | None
) -> tuple[str, Connection] | None:
    """Wait until one of them has ended. Failed ones are moved to `errors`."""
    done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for attempt in [one for one in running if one in done]:  # in their order
        url = running.pop(attempt)
        error = attempt.exception()
        if error is None:
            return url, attempt.result()
        if not isinstance(error, EngineError):
            raise error
        errors[url] = error
    return None
