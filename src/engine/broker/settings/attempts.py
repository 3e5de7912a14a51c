"""`Attempts`: failed authentications by source address, so that guessing is slow, visible, and bounded in memory.

A failure is answered after a delay that doubles with each further one of the same source. A guesser need not wait for
the answer: a valid token is answered at once, so a missing answer means a wrong guess. Therefore a source with
`pending_max` answers pending is refused without a check of its token, until the first of them is due. At the longest
delay that is `pending_max` guesses within DELAY_S_MAX, over any number of connections.

A peer without a token has not guessed. It is counted, and answered at once, so that a probe without the token does not
shut out others of its address.

A handshake of TLS that fails is slowed likewise: each is due after the same delays, and a source with `pending_max` of
them that are not due gets no further handshake until the first is. They are counted apart from tokens, which come
over connections by TLS and without it.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from engine.broker.settings.tokens import Guarded, token_refusal
from engine.errors import AuthenticationError, EngineError, TooManyRequestsError

if TYPE_CHECKING:
    from engine.broker.settings.handshakes import Handshake, HandshakesInFlight

log = logging.getLogger(__name__)

DELAY_S_MIN = 0.1  # of the first failure
DELAY_S_MAX = 5.0
FORGET_S = 60.0  # a source without a failure for this long starts anew
SOURCES_MAX = 10_000  # tracked; the one whose last failure is oldest is evicted first
PENDING_MAX = 32
_IPV6_BITS = 64  # a subscriber has at least a /64, which is one source


C = TypeVar("C", bound=Guarded)


class Refusal(NamedTuple):
    """The error, and the delay of its answer in seconds."""

    error: EngineError
    delay: float


@dataclass(slots=True)
class _Source:
    failures: int = 0
    guesses: int = 0  # of the failures, those that gave a token
    last: float = 0.0
    due: deque[float] = field(default_factory=deque)  # due times of pending answers, ascending

    def pending(self, now: float) -> int:
        while self.due and self.due[0] <= now:
            self.due.popleft()
        return len(self.due)

    def guessed(self, now: float) -> float:
        """Account for a guess; the delay of its answer."""
        delay = min(DELAY_S_MAX, DELAY_S_MIN * 2.0 ** min(self.guesses, 30))
        self.guesses += 1
        self.due.append(max(now + delay, self.due[-1] if self.due else 0.0))
        return delay


class _Sources(OrderedDict[str, _Source]):
    """By their last failure."""

    def failed(self, name: str, now: float) -> _Source:
        """The source, with one failure more."""
        source = self.pop(name, None)
        if source is None or now - source.last > FORGET_S:
            source = _Source()
        self[name] = source
        if len(self) > SOURCES_MAX:
            self.popitem(last=False)
        source.failures += 1
        source.last = now
        return source


class Attempts:
    """Failed authentications and handshakes of TLS over all ports of a broker or a proxy."""

    def __init__(self, now: Callable[[], float], pending_max: int = PENDING_MAX) -> None:
        """`now`: seconds of a clock that never goes back."""
        self.failures = 0
        self.unchecked = 0  # refused: too many answers pending
        self.handshakes = 0  # of TLS that failed
        self._pending_max = pending_max
        self._now = now
        self._sources = _Sources()
        self._strangers = _Sources()  # those of handshakes

    @cached_property
    def in_flight(self) -> HandshakesInFlight:
        """Handshakes of TLS under way."""
        from engine.broker.settings.handshakes import HandshakesInFlight  # where there is TLS

        return HandshakesInFlight()

    def refusal(
        self,
        config: C,
        given: str | None,
        peer: str | None,
        check: Callable[[C, str | None], AuthenticationError | None] = token_refusal,
    ) -> Refusal | None:
        """Why a peer with this token, or none, is refused; None: it is not."""
        crowded = self.crowded(peer)
        if crowded is not None:
            return Refusal(crowded, 0.0)
        error = check(config, given)
        return None if error is None else Refusal(error, self.failed(peer, error, guess=given is not None))

    def crowded(self, peer: str | None) -> EngineError | None:
        """Why tokens of this peer are not checked now; None: they are."""
        if not self._is_full(self._sources, peer):
            return None
        return TooManyRequestsError(
            f"limit of pending failed authentications from this address reached ({self._pending_max}); try again later"
        )

    def failed(self, peer: str | None, error: AuthenticationError, *, guess: bool) -> float:
        """Record a failure; returns the delay of its answer in seconds. `guess`: whether a token was given."""
        now, name = self._now(), source_of(peer)
        source = self._sources.failed(name, now)
        delay = source.guessed(now) if guess else 0.0
        self.failures += 1
        if _is_logged(source.failures):
            fields = {"peer": name, "count": source.failures}
            log.warning("authentication from %s failed, %d in a row: %s", name, source.failures, error, extra=fields)
        return delay

    def handshakes_crowded(self, peer: str | None) -> bool:
        """Whether handshakes of TLS with this peer are refused now."""
        return self._is_full(self._strangers, peer)

    def handshake_begins(self, peer: str | None, give_up: Callable[[], None]) -> Handshake | None:
        """One more with this peer is under way; None: there are too many (HandshakesInFlight.begin())."""
        return self.in_flight.begin(source_of(peer), give_up)

    def handshake_ended(self, begun: Handshake) -> None:
        """It is not under way any more, whatever came of it. Idempotent."""
        self.in_flight.end(begun)

    def handshake_failed(self, peer: str | None, why: str) -> None:
        """Record a handshake of TLS that failed: plain text, an old version, a certificate of another authority."""
        now, name = self._now(), source_of(peer)
        source = self._strangers.failed(name, now)
        source.guessed(now)
        self.handshakes += 1
        if _is_logged(source.failures):
            fields = {"peer": name, "count": source.failures}
            log.warning("a TLS handshake with %s failed, %d in a row: %s", name, source.failures, why, extra=fields)

    def _is_full(self, sources: _Sources, peer: str | None) -> bool:
        source = sources.get(source_of(peer))
        if source is None or source.pending(self._now()) < self._pending_max:
            return False
        self.unchecked += 1
        return True


def _is_logged(count: int) -> bool:
    """1, 2, 4, 8, …"""
    return count & (count - 1) == 0


def source_of(peer: str | None) -> str:
    """The source of "host", "tcp://host:port" or "tcp://[v6]:port": its address; for IPv6 its network."""
    host = (peer or "unknown").partition("://")[2] or (peer or "unknown")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_BITS), strict=False))
