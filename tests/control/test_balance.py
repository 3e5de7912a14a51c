"""Which segments move between brokers: tables, and what holds for any load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.policy.balance import BalanceRules, Holding, Move, givers, imbalance, plan

RULES = BalanceRules(guard=0.2, cooldown=300.0, moves_max=4)
OLD = 1_000.0


def held(*loads: float, since: float = OLD, name: str = "s") -> list[Holding]:
    return [Holding(f"{name}{i}", load, since) for i, load in enumerate(loads)]


def moved(holdings: dict[str, list[Holding]], rules: BalanceRules = RULES) -> list[tuple[str, str, str]]:
    loads = {url: sum(h.load for h in held) for url, held in holdings.items()}
    return [(move.segment, move.source, move.target) for move in plan(loads, holdings, rules)]


TO_B = [("s0", "a", "b"), ("s1", "a", "b"), ("s2", "a", "b"), ("s3", "a", "b")]
TABLE: list[tuple[str, dict[str, list[Holding]], list[tuple[str, str, str]]]] = [
    ("one broker alone", {"a": held(9, 9)}, []),
    ("nothing at all", {"a": [], "b": []}, []),
    ("idle segments, as even as can be", {"a": held(1, 1, 1), "b": held(1, 1, 1), "c": held(1, 1)}, []),
    ("one more than the other", {"a": held(1, 1), "b": held(1)}, []),
    ("a broker that joins gets half", {"a": held(1, 1, 1, 1), "b": []}, TO_B[:2]),
    ("within the guard", {"a": held(5.5, 5.5), "b": held(4.6, 4.6)}, []),
    ("the one next to half the gap goes first", {"a": held(8, 3, 1), "b": held(2)}, TO_B[1:3]),
    ("a hot segment stays, the others leave it", {"a": held(90, 2, 1), "b": held(2)}, TO_B[1:3]),
    ("what would only turn the roles round", {"a": held(10), "b": held(1)}, []),
    ("what has just come stays", {"a": held(1, 1, 1, 1, since=299.0), "b": []}, []),
    ("what came a while ago goes", {"a": held(1, 1, 1, 1, since=300.0), "b": []}, TO_B[:2]),
    (
        "the least loaded gets the next one",
        {"a": held(*[1.0] * 9), "b": held(1, 1, 1), "c": held(1, 1)},
        [("s0", "a", "c"), ("s1", "a", "b"), ("s2", "a", "c"), ("s3", "a", "b")],
    ),
    ("no more than a few at a time", {"a": held(*[1.0] * 9), "b": []}, TO_B),
]


@pytest.mark.parametrize(("why", "holdings", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_a_round(why: str, holdings: dict[str, list[Holding]], expected: list[tuple[str, str, str]]) -> None:
    assert moved(holdings) == expected


def test_a_broker_with_nothing_to_give_does_not_stop_the_next_one() -> None:
    """The most loaded one has a single hot segment."""
    found = moved({"a": held(100), "b": held(30, 30, name="t"), "c": []})
    assert found == [("t0", "b", "c")]


def test_imbalance_is_what_the_most_loaded_is_above_the_mean() -> None:
    assert imbalance([]) == imbalance([0.0, 0.0]) == 0
    assert imbalance([3.0, 1.0]) == pytest.approx(0.5)


def test_givers_are_those_above_the_mean_the_most_loaded_first() -> None:
    assert givers({"a": 10.0, "b": 30.0, "c": 1.0, "d": 20.0}, 0.2) == ["b", "d"]
    assert givers({"a": 10.0, "b": 11.0}, 0.2) == []
    assert givers({"a": 10.0}, 0.2) == []


SEGMENTS = st.lists(st.floats(1, 100), max_size=25)


def applied(holdings: dict[str, list[Holding]], moves: list[Move]) -> dict[str, list[Holding]]:
    now = {url: list(held) for url, held in holdings.items()}
    for move in moves:
        (one,) = [h for h in now[move.source] if h.segment == move.segment]
        now[move.source].remove(one)
        now[move.target].append(one)
    return now


@given(st.lists(SEGMENTS, min_size=1, max_size=6), st.floats(0, 0.5))
def test_rounds_end_and_each_move_narrows_its_gap(brokers: list[list[float]], guard: float) -> None:
    """Without a cooldown, and for ever the same loads: it comes to rest, nothing goes back and forth."""
    rules = BalanceRules(guard, 0.0, 4)
    holdings = {f"b{i}": held(*loads, name=f"{i}-") for i, loads in enumerate(brokers)}
    widest = max(sum(h.load for h in one) for one in holdings.values())
    for _ in range(200):
        loads = {url: sum(h.load for h in one) for url, one in holdings.items()}
        assert max(loads.values()) <= widest * (1 + 1e-9), "the most loaded broker never gets more"
        widest = max(loads.values())
        moves = plan(loads, holdings, rules)
        if not moves:
            return
        for move in moves:
            assert move.load <= 0.75 * (loads[move.source] - loads[move.target]) * (1 + 1e-9)
            loads[move.source] -= move.load
            loads[move.target] += move.load
        holdings = applied(holdings, moves)
    raise AssertionError("it does not come to rest")
