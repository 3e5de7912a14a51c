"""Random lives of a session's log on a store that misbehaves; and bugs that are planted, which the judge must flag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.errors import EngineError, UnknownOutcomeError
from engine.storage.objects import fence
from engine.storage.objects.fence import first_bytes
from engine.storage.objects.format import FENCE
from engine.storage.objects.ports import ObjectExistsError
from engine.storage.objects.writer import LogWriter
from tests.storage import wal_scenario
from tests.storage.wal_scenario import JudgementError

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_r4_r5_r6_r7_r8_r15_nothing_acknowledged_is_lost_and_nothing_invented(seed: int):
    witness = wal_scenario.run(seed)
    assert witness.appended
    assert witness.ends


def test_the_lives_are_of_all_kinds():
    lives = [wal_scenario.run(seed) for seed in range(10)]
    assert sum(len(life.acknowledged) for life in lives) > 100
    assert sum(len(life.acknowledged) < len(life.appended) for life in lives) > 5
    assert any(life.trimmed for life in lives)
    assert sum(life.ends[-1] > 0 for life in lives) > 5


@pytest.mark.fuzz
@pytest.mark.parametrize("thousand", range(10))
def test_thousands_of_lives(thousand: int):
    for seed in range(1_000 * thousand, 1_000 * (thousand + 1)):
        wal_scenario.run(seed)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def acknowledge_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: n counts when it is stored, whatever is below."""

    def acknowledge(self: LogWriter) -> None:
        for done in [each for each in self._flying if each.stored]:
            for future in done.waiters:
                if not future.done():
                    future.set_result(done.n)
        real(self)

    real = LogWriter._acknowledge
    monkeypatch.setattr(LogWriter, "_acknowledge", acknowledge)


def exists_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: a PUT that is refused counts as stored."""

    async def resolved(self: LogWriter, sent) -> bool:
        while True:
            try:
                await self._store.put_if_absent(self._log.object(sent.n), sent.buffers)
            except UnknownOutcomeError:
                await asyncio.sleep(0.1)
                continue
            except ObjectExistsError:
                return True
            return True

    monkeypatch.setattr(LogWriter, "_resolved", resolved)


def exists_is_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: a FENCE that is refused counts as a FENCE."""

    async def settled(store, name, rng) -> bool:
        while True:
            try:
                await store.put_if_absent(name, [FENCE])
            except UnknownOutcomeError:
                await asyncio.sleep(0.1)
                continue
            except ObjectExistsError:
                return True
            return True

    monkeypatch.setattr(fence, "_settled", settled)


def fence_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: the fence is looked for behind the last object, not from the first hole."""

    async def first(store, log, trimmed: int) -> int:
        names = [info.name async for info in store.list(log.folder)]
        return max([trimmed, *(int(name.rsplit("/", 1)[1]) + 1 for name in names)])

    monkeypatch.setattr(fence, "_first_without_data", first)


def one_fence_at_the_next_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: what exists, one's own FENCE as well, sends the fence to the next name."""

    async def settled(store, name, rng) -> bool:
        try:
            await store.put_if_absent(name, [FENCE])
        except (ObjectExistsError, UnknownOutcomeError):
            return False
        return True

    monkeypatch.setattr(fence, "_settled", settled)


def other_bytes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: a FENCE at the name of an object is taken for nothing, and the object counts at the next answer."""

    async def resolved(self: LogWriter, sent) -> bool:
        try:
            await self._store.put_if_absent(self._log.object(sent.n), sent.buffers)
        except (ObjectExistsError, EngineError):
            return await first_bytes(self._store, self._log.object(sent.n)) is not None
        return True

    monkeypatch.setattr(LogWriter, "_resolved", resolved)


@pytest.mark.parametrize(
    "plant",
    [acknowledge_alone, exists_is_stored, exists_is_a_fence, fence_behind_the_last, one_fence_at_the_next_name,
     other_bytes_again],
)  # fmt: skip
def test_a_planted_bug_is_flagged(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    with pytest.raises(JudgementError):
        live(200)


def live(lives: int) -> None:
    for seed in range(lives):
        wal_scenario.run(seed)
