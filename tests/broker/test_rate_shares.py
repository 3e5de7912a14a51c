"""The shares of a rate at each of several brokers: fair, and together the rate, whatever each of them wants."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from engine.aio.tasks import Supervisor
from engine.broker.limits.elsewhere import PARTS, Elsewhere, Scope, Used
from engine.broker.limits.limits import BrokerLimits
from engine.broker.upkeep.rate_shares import RateShares
from engine.clock import SystemClock
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Session
from engine.model.limits import Limit, Limits

SCOPE: Scope = ("total acme", "publish")


def settled(wants: list[float], shares: list[float] | None = None, rounds: int = 12) -> list[float]:
    """What each broker uses of the rate, after some rounds in which all have heard of all. `shares`: at the start."""
    found = [1.0] * len(wants) if shares is None else shares
    for _ in range(rounds):
        shown = []
        for want, share in zip(wants, found, strict=True):
            one = Used()
            one.note(SCOPE, min(want, share), held=want > share)
            shown.append(one)
        found = [Elsewhere([other for other in shown if other is not one]).share(SCOPE) for one in shown]
    return [min(want, share) for want, share in zip(wants, found, strict=True)]


def fair(wants: list[float]) -> list[float]:
    """By the definition: all grow alike until each has what it wants, or the rate is used up."""
    level, left, unmet = 0.0, 1.0, sorted(range(len(wants)), key=lambda at: wants[at])
    for position, at in enumerate(unmet):
        even = left / (len(unmet) - position)
        level = max(level, min(wants[at], even))
        left -= min(wants[at], even)
    return [min(want, level) for want in wants]


@pytest.mark.parametrize(
    ("wants", "used"),
    [
        ([9.0], [1.0]),
        ([9.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([9.0, 9.0], [0.5, 0.5]),
        ([9.0, 0.25], [0.75, 0.25]),
        ([0.5, 0.25], [0.5, 0.25]),
        ([9.0, 9.0, 9.0, 0.25], [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_a_rate_is_used_as_it_is_wanted(wants: list[float], used: list[float]) -> None:
    assert settled(wants) == pytest.approx(used, abs=1 / PARTS)


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_fair_from_any_start(seed: int) -> None:
    """Together they are the rate, but for what is lost as parts of it are whole numbers."""
    rng = random.Random(seed)
    count = rng.randrange(2, 9)
    wants = [rng.choice([0.0, rng.random() / count, rng.random(), 50.0]) for _ in range(count)]
    used = settled(wants, [rng.random() for _ in wants])
    assert sum(used) <= 1 + count / PARTS
    assert used == pytest.approx(fair(wants), abs=count / PARTS)


def test_what_other_brokers_show_is_bounded_by_the_rate() -> None:
    """A broker that shows nonsense takes no more than its even share."""
    nonsense = Used(used={"\n".join(SCOPE): 10**9}, held=[])
    assert Elsewhere([nonsense]).share(SCOPE) == 0.5
    assert Elsewhere([Used(used={"\n".join(SCOPE): -5}, held=[])]).share(SCOPE) == 1.0
    assert Elsewhere([nonsense]).share(("total else", "publish")) == 1.0


class Member:
    """A broker of two, with one rate that all of its clients wait for."""

    url, alone = "engine://b1:6650", False

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._store = store
        self._current: Session | None = None

    @property
    def session_id(self) -> int | None:
        return None if self._current is None else self._current.id

    async def session(self) -> Session:
        if self._current is None:
            self._current = await self._store.session()
        return self._current

    async def lose(self) -> None:
        """Its session ends, with all that is said in it, and another one begins."""
        assert self._current is not None
        await self._current.close()
        self._current = await self._store.session()


async def test_what_a_broker_shows_is_shown_again_when_its_session_was_lost() -> None:
    clock = SystemClock()
    store = MemoryMetadataStore(clock)
    member = Member(store)
    limits, tasks = BrokerLimits(lambda _: None, {"acme"}), Supervisor("test")
    limits.note(keys.limits("acme"), Limits(total_publish_bytes_per_s=1_000).to_json())
    limits.settle()
    bucket = limits._bucket(SCOPE[0], SCOPE[1], None, Limit(1_000, "acme"))
    rounds = RateShares(store, limits, cast(Any, member), clock, tasks)
    key = keys.shown(keys.SHARES, "acme", member.url)

    async def check() -> bool:
        bucket.granted_bytes += 10_000  # far more than the rate: it has used all of it
        await rounds.check()
        return await store.get(key) is not None

    await rounds.check()
    assert await check()
    await member.lose()
    assert await store.get(key) is None
    assert await check()
    limits.note(keys.limits("acme"), None)
    limits.settle()
    await rounds.check()
    assert await store.get(key) is None, "there is no rate any more"
    await tasks.close()
    await store.close()
