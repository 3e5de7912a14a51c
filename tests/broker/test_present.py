"""Who is at other brokers, and counts: names once, wherever they are; what has no room to be shown, by its number."""

from __future__ import annotations

import random

import pytest

from engine.broker.limits.attendance import Crowd
from engine.broker.limits.open_transactions import RoleTransactions
from engine.broker.limits.present import (
    DIGEST_SIZE,
    NAMES_SHOWN_MAX,
    SCOPES_SHOWN_MAX,
    Attended,
    Present,
    digest,
    others_of,
)

KEY = "producers\nacme"


def names(*which: int) -> list[bytes]:
    return [digest(str(one)) for one in which]


def crowd(here: list[bytes], *elsewhere: Present) -> Crowd:
    found = Crowd("producers")
    for name in here:
        found.enter(("acme",), name)
    found.others = others_of(elsewhere)
    return found


def test_a_name_counts_once_wherever_it_is() -> None:
    shown = [Present.of([(0.5, KEY, names(*one), 0)]) for one in ((1, 2, 3), (3, 4))]
    found = crowd(names(1, 5), *shown)
    assert found.count("acme", digest("9")) == 5
    assert [found.count("acme", digest(one)) for one in "145"] == [-1, -1, -1]
    assert found.count("other", digest("1")) == 0


@pytest.mark.parametrize("seed", range(20))
def test_all_brokers_count_the_same(seed: int) -> None:
    rng = random.Random(seed)
    here = [{rng.randrange(40) for _ in range(rng.randrange(30))} for _ in range(rng.randrange(1, 6))]
    shown = [Present.of([(1.0, KEY, names(*one), 0)]) for one in here]
    for at, one in enumerate(here):
        elsewhere = [other for other in shown if other is not shown[at]]
        assert crowd(names(*one), *elsewhere).count("acme", digest("new")) == len(set().union(*here))


def test_what_has_no_room_counts_by_its_number() -> None:
    """So a limit may be reached early, and is never passed; small scopes have room first."""
    large = names(*range(NAMES_SHOWN_MAX + 10))
    shown = Present.of([(1.0, KEY, large, 0), (0.1, "producers\nsmall", names(1, 2), 0)])
    assert len(shown.names["producers\nsmall"]) == 2 * DIGEST_SIZE
    assert sum(map(len, shown.names.values())) == NAMES_SHOWN_MAX * DIGEST_SIZE
    assert shown.more == {KEY: 12}
    assert crowd([], shown).count("acme", b"none") == len(large)
    assert crowd(large, shown).count("acme", b"none") == len(large) + 12


def test_the_scopes_nearest_to_their_limits_are_shown() -> None:
    found: list[Attended] = [(at / 1_000, f"connections\nrole:{at}", (), at) for at in range(SCOPES_SHOWN_MAX + 5)]
    shown = Present.of(found)
    assert len(shown.more) == SCOPES_SHOWN_MAX
    assert "connections\nrole:4" not in shown.more
    assert shown.more["connections\nrole:5"] == 5


def test_a_transaction_that_is_open_at_two_brokers_counts_once() -> None:
    here, there = RoleTransactions(), RoleTransactions()
    here.begun(1, 100.0, "nightly")
    here.begun(2, 100.0, None)
    there.begun(1, 100.0, "nightly")
    there.begun(3, 100.0, None)
    key = "transactions\nrole:ann"
    there.others = others_of([Present.of([(1.0, key, here.shown(), 0)])])[key]
    assert there.count(0.0) == 3
    assert there.has("nightly")
    there.ended(1)
    assert there.count(0.0) == 3  # the other broker still has it
    assert there.has("nightly")
    assert not there.has("daily")
