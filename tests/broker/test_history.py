"""The history of a metadata store is forgotten by one broker, when it is old enough."""

from __future__ import annotations

from engine.broker.upkeep.history import HistoryLoop
from engine.metadata.store import Historied
from engine.testing.clock import FakeClock


class Revisions:
    """A store whose revision is set by hand."""

    def __init__(self) -> None:
        self.now = 0
        self.forgotten: list[int] = []

    async def revision(self) -> int:
        return self.now

    async def compact(self, revision: int) -> None:
        self.forgotten.append(revision)


async def test_what_is_older_than_the_time_kept_is_forgotten_by_the_leader_alone() -> None:
    store, clock, leading = Revisions(), FakeClock(), True
    assert isinstance(store, Historied)
    loop = HistoryLoop(store, lambda: leading, clock, kept=600.0, interval=60.0)
    for minute in range(30):
        store.now = 100 * minute
        await loop.look()
        clock.advance(60.0)
        assert store.forgotten == [100 * at for at in range(1, minute - 9)]
    leading = False
    await loop.look()
    leading = True
    before = list(store.forgotten)
    for _ in range(10):  # the time begins anew
        await loop.look()
        clock.advance(60.0)
    assert store.forgotten == before
    await loop.look()
    assert store.forgotten == [*before, 2_900]
