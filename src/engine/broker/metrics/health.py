"""Whether a broker lives, and whether it should be sent work: what a balancer and a supervisor ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.broker.metrics.ports import Vital

DISK_S = 30.0  # since a failed write, unless one succeeds before
LAG_S_MAX = 2.0  # a loop that was held up for so long lately cannot be relied upon


@dataclass(frozen=True, slots=True)
class Reason:
    """Why not. `what`: starting, closing, metadata, session, disk or loop; one word, the same for ever."""

    what: str
    why: str


def unready(broker: Vital) -> list[Reason]:
    """Everything that speaks against sending work here; nothing: ready."""
    if broker.closing:
        return [Reason("closing", "the broker is closing")]
    if not broker.started:
        return [Reason("starting", "the broker is starting")]
    return [*_metadata(broker), *_disk(broker), *_loop(broker)]


def _metadata(broker: Vital) -> list[Reason]:
    if broker.trouble is not None:
        return [Reason("metadata", broker.trouble)]
    if broker.members.brokers.deadline <= broker.clock.monotonic():
        return [Reason("session", "the session with the metadata store is over; a new one is being made")]
    return []


def _disk(broker: Vital) -> list[Reason]:
    """For a while, since only work that is sent here shows that it is over."""
    trouble = broker.store.statistics().trouble
    if trouble is None or broker.clock.monotonic() - trouble[0] > DISK_S:
        return []
    return [Reason("disk", f"the last write to the log failed: {trouble[1]}")]


def _loop(broker: Vital) -> list[Reason]:
    lag = broker.loop_lag.recent
    return [Reason("loop", f"the event loop was held up for {lag:.1f} s")] if lag > LAG_S_MAX else []
