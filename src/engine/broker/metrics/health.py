"""Liveness and readiness of a broker, for supervisors and load balancers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.broker.metrics.ports import Vital

DISK_S = 30.0  # unready for this long after a failed write, unless a later one succeeds
LAG_S_MAX = 2.0  # unready above this recent event loop lag


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a broker is not ready. `what`: starting, closing, metadata, session, disk or loop; stable words."""

    what: str
    why: str


def unready(broker: Vital) -> list[Reason]:
    """All reasons against sending traffic to this broker; empty: ready."""
    if broker.closing:
        return [Reason("closing", "the broker is closing")]
    if not broker.started:
        return [Reason("starting", "the broker is starting")]
    return [*_metadata(broker), *_disk(broker), *_loop(broker)]


def _metadata(broker: Vital) -> list[Reason]:
    if broker.trouble is not None:
        return [Reason("metadata", broker.trouble)]
    if broker.members.brokers.deadline <= broker.clock.monotonic():
        return [Reason("session", "the session with the metadata store is over; a new one is being opened")]
    return []


def _disk(broker: Vital) -> list[Reason]:
    """For DISK_S only, since the disk's recovery shows only under new writes."""
    trouble = broker.store.statistics().trouble
    if trouble is None or broker.clock.monotonic() - trouble[0] > DISK_S:
        return []
    return [Reason("disk", f"the last write to the log failed: {trouble[1]}")]


def _loop(broker: Vital) -> list[Reason]:
    lag = broker.loop_lag.recent
    return [Reason("loop", f"the event loop was blocked for {lag:.1f} s")] if lag > LAG_S_MAX else []
