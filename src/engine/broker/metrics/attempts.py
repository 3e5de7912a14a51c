"""Metrics of failed authentications, of a broker or a proxy."""

from __future__ import annotations

from collections.abc import Iterator

from engine.broker.metrics.exposition import AnyFamily, counter
from engine.broker.settings.attempts import Attempts


def attempt_families(prefix: str, attempts: Attempts) -> Iterator[AnyFamily]:
    """Counted over all ports, since the start."""
    yield counter(f"{prefix}authentication_failures_total", "Tokens that were missing or wrong", attempts.failures)
    yield counter(
        f"{prefix}authentication_unchecked_total",
        "Refused without a check, after too many failures from the same address",
        attempts.unchecked,
    )
    yield counter(f"{prefix}tls_handshake_failures_total", "Handshakes of TLS that failed", attempts.handshakes)
