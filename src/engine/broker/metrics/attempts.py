"""Metrics of failed authentications, of denials and of certificates, of a broker or a proxy."""

from __future__ import annotations

from collections.abc import Iterator

from engine.broker.metrics.exposition import AnyFamily, counter, gauge
from engine.broker.settings.doors import Doors


def attempt_families(prefix: str, doors: Doors, denials: int) -> Iterator[AnyFamily]:
    """Counted over all ports, since the start."""
    attempts = doors.attempts
    yield counter(f"{prefix}authentication_failures_total", "Tokens that were missing or wrong", attempts.failures)
    yield counter(
        f"{prefix}authentication_unchecked_total",
        "Refused without a check, after too many failures from the same address",
        attempts.unchecked,
    )
    yield counter(
        f"{prefix}authorization_denials_total",
        "Requests that were denied: each is a line of the audit log, where there is one",
        denials,
    )
    yield counter(f"{prefix}tls_handshake_failures_total", "Handshakes of TLS that failed", attempts.handshakes)
    now = attempts.in_flight
    yield gauge(f"{prefix}tls_handshakes_in_flight", "Connections by TLS before the end of their handshake", len(now))
    yield counter(
        f"{prefix}tls_handshakes_refused_total",
        "Connections that were hung up on, as too many handshakes of TLS were under way",
        now.refused,
    )
    yield counter(
        f"{prefix}certificates_unusable_total",
        "Times that the files of certificates had changed and could not be used",
        0 if doors.files is None else doors.files.unusable,
    )
