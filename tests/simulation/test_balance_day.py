"""A day of traffic over brokers that join, leave and die: each gets its share, and segments keep still."""

from __future__ import annotations

from functools import cache

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.control.policy.balance import BalanceRules, Move
from engine.testing import balance_day
from engine.testing.balance_day import HOUR_S, INTERVAL_S, RULES, BalanceDay, Segment, simulate

SEEDS = range(2)
HASTY = BalanceRules(guard=0.0, cooldown=0.0, moves_max=100)


@cache
def lived(seed: int) -> BalanceDay:
    return simulate(1.0, seed)


def test_the_rules_of_the_day_are_those_of_a_broker() -> None:
    config = BrokerConfig()
    assert BalanceRules(config.balance_guard, config.balance_cooldown, config.balance_moves_max) == RULES
    assert config.balance_interval == INTERVAL_S


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_keep_still(seed: int) -> None:
    """Less than a move a segment and day, with nine brokers that come and go, and none that is undone at once."""
    day = lived(seed)
    assert 20 <= len(day.moves) <= len(day.segments)
    assert day.flips(RULES.cooldown) == []
    assert len(day.flips(HOUR_S)) <= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("hour", "broker"), [(9.0, "b4"), (10.0, "b5"), (13.5, "b2"), (22.1, "b1")])
def test_a_broker_that_joins_gets_its_share_within_a_quarter_of_an_hour(seed: int, hour: float, broker: str) -> None:
    day = lived(seed)
    at_s = next(at_s for at_s in sorted(day.shares) if at_s >= hour * HOUR_S + 900)
    shares = day.shares[at_s]
    assert shares[broker] >= 0.6 / len(shares), shares


@pytest.mark.parametrize("seed", SEEDS)
def test_no_broker_has_much_more_than_the_others_for_long(seed: int) -> None:
    """But for bursts, and segments that are hotter than a broker's share, which stay."""
    above = sorted(imbalance for at_s, imbalance, _ in lived(seed).rounds if at_s > 900)
    assert sum(above) / len(above) < 0.15
    assert above[int(0.95 * len(above))] < 0.35


def test_the_guards_are_what_keeps_them_still() -> None:
    hasty = simulate(0.5, 0, HASTY)
    assert len(hasty.moves) > 5 * len(lived(0).moves)
    assert hasty.flips(RULES.cooldown)


def test_flips_are_seen() -> None:
    """The detector itself."""
    segment = Segment("s", "a", 0.0, moved=[(0.0, "a", "b"), (100.0, "b", "c"), (150.0, "c", "a")])
    day = BalanceDay(segments={"s": segment}, moves=[(0.0, Move("s", "a", "b", 1.0))])
    assert day.flips(151.0) == ["s"]
    assert day.flips(150.0) == []


def test_the_same_seed_gives_the_same_day() -> None:
    assert simulate(0.5, 1).moves == [move for move in lived(1).moves if move[0] < 12 * HOUR_S]


def test_the_command_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    balance_day.main(["--days", "0.1"])
    assert "came back within an hour" in capsys.readouterr().out
