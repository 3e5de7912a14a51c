"""The shares of a rate at each of several brokers: fair, and together the rate, whatever each of them wants."""

from __future__ import annotations

import random

import pytest

from engine.broker.limits.elsewhere import PARTS, Elsewhere, Scope, Shown

SCOPE: Scope = ("total acme", "publish")


def settled(wants: list[float], shares: list[float] | None = None, rounds: int = 12) -> list[float]:
    """What each broker uses of the rate, after some rounds in which all have heard of all. `shares`: at the start."""
    found = [1.0] * len(wants) if shares is None else shares
    for _ in range(rounds):
        shown = []
        for want, share in zip(wants, found, strict=True):
            one = Shown()
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
    nonsense = Shown(used={"\n".join(SCOPE): 10**9}, held=[])
    assert Elsewhere([nonsense]).share(SCOPE) == 0.5
    assert Elsewhere([Shown(used={"\n".join(SCOPE): -5}, held=[])]).share(SCOPE) == 1.0
    assert Elsewhere([nonsense]).share(("total else", "publish")) == 1.0
