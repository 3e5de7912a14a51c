"""`RateShares`: rates hold for all brokers together: each shows the others what it uses, and takes its share.

Once in ROUND_S a broker shows which part of each rate it has used, where it has used any, in a record of its own for
each tenant and role; so brokers that let nothing through write nothing. What follows from the records of all is in
limits/elsewhere.py.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from engine.broker.limits.elsewhere import PARTS, Elsewhere, Scope, Used, group_of
from engine.broker.limits.present import nearest
from engine.broker.upkeep.rounds import ROUND_S, Rounds
from engine.broker.upkeep.shown import Shown
from engine.metadata import keys
from engine.model.limits import RATES

if TYPE_CHECKING:
    from engine.aio.tasks import Supervisor
    from engine.broker.limits.bucket import Bucket
    from engine.broker.limits.limits import BrokerLimits
    from engine.clock import Clock
    from engine.control.base.brokers import Brokers
    from engine.metadata.store import MetadataStore

SHOWN_MAX = 500  # rates of a group, those of which most is used: a record of about 32 KiB
_HELD = 0.25  # of a round
_NOISE = PARTS // 32
_NEW = 0, 0, 0.0


class RateShares(Rounds):
    """One per broker, once there is a rate. Loop thread only."""

    over, names = "the rates of all brokers", RATES

    def __init__(
        self, metadata: MetadataStore, limits: BrokerLimits, brokers: Brokers, clock: Clock, tasks: Supervisor
    ) -> None:
        super().__init__(limits)
        self._brokers = brokers
        self._clock = clock
        self._records = Shown(metadata, brokers, keys.SHARES, Used, "what is used here of rates", tasks)
        self._measured_at = clock.monotonic()
        # Messages, bytes and seconds held back, a round ago. None: that is not known.
        self._counts: dict[Scope, tuple[int, int, float]] | None = None

    async def check(self) -> None:
        """Measure, tell the others, and take this broker's shares."""
        if self._brokers.alone:
            self._counts = None
            self._limits.share(Elsewhere())
            return
        await self._records.show(self._measure(), _alike)
        self._limits.share(Elsewhere(await self._records.others(self._limits.groups(RATES))))

    async def meet(self, group: str) -> None:
        """Take this broker's shares of it."""
        if not self._brokers.alone:
            self._limits.share_of(Elsewhere(await self._records.others_of(group)))

    def _measure(self) -> dict[str, Used]:
        """What was used since the last round, by group."""
        now = self._clock.monotonic()
        elapsed, self._measured_at = max(now - self._measured_at, ROUND_S / 10), now
        before, counted = self._counts, dict[Scope, tuple[int, int, float]]()
        found: list[tuple[float, bool, Scope]] = []
        for scope, bucket in self._limits.buckets_in_use():
            counted[scope] = counts = bucket.granted_messages, bucket.granted_bytes, bucket.held_s
            last = counts if before is None else before.get(scope, _NEW)
            if counts != last:
                held = counts[2] - last[2] >= _HELD * elapsed
                found.append((_used(bucket, counts, last, elapsed), held, scope))
        self._counts = counted
        groups: dict[str, list[tuple[float, bool, Scope]]] = {}
        followed = self._limits.groups(RATES)
        for one in found:
            if (group := group_of(one[2])) in followed:
                groups.setdefault(group, []).append(one)
        mine = {}
        full = {group: max(rates)[0] for group, rates in groups.items()}
        for group in nearest(full, self._records.said):
            shown = Used()
            for used, held, scope in nlargest(SHOWN_MAX, groups[group]):
                shown.note(scope, used, held=held)
            if shown.used or shown.held:
                mine[group] = shown
        return mine


def _used(bucket: Bucket, now: tuple[int, int, float], before: tuple[int, int, float], elapsed: float) -> float:
    """The part of the limit that was used: of messages or of bytes, whichever is more."""
    pairs = zip(bucket.limit, now[:2], before[:2], strict=True)
    return max((count - last) / (limit * elapsed) for limit, count, last in pairs if limit is not None)


def _alike(mine: Used, shown: Used) -> bool:
    """Whether it need not be said again."""
    if mine.held != shown.held or mine.used.keys() != shown.used.keys():
        return False
    return all(abs(parts - shown.used[name]) <= _NOISE for name, parts in mine.used.items())
