"""Rendezvous hashing: balanced, and moving no more than it must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.control.policy.placement import place, score

BROKERS = st.sets(st.integers(0, 1000).map(lambda n: f"engine://broker-{n}:6650"), min_size=1, max_size=12)
NAMES = [f"segment://public/default/t{i % 17}/0000-ffff-{i}" for i in range(2_000)]


def test_nobody_is_chosen_from_nobody() -> None:
    assert place("segment", ()) is None


def test_a_score_never_changes() -> None:
    """Brokers of different releases must agree."""
    assert score("segment://public/default/orders/0000-ffff-0", "engine://a:6650") == 4101113317313314197


@given(BROKERS)
def test_order_does_not_matter(brokers: set[str]) -> None:
    ordered = sorted(brokers)
    for name in NAMES[:20]:
        assert place(name, ordered) == place(name, reversed(ordered)) in brokers


@given(BROKERS)
def test_only_what_a_leaving_broker_had_moves(brokers: set[str]) -> None:
    leaving = min(brokers)
    for name in NAMES[:200]:
        before, after = place(name, brokers), place(name, brokers - {leaving})
        assert after == before or before == leaving


def test_segments_are_spread_evenly() -> None:
    brokers = [f"engine://10.0.0.{i}:6650" for i in range(5)]
    shares = Counter(place(name, brokers) for name in NAMES)
    assert len(shares) == 5
    assert all(0.8 < share / (len(NAMES) / 5) < 1.2 for share in shares.values()), shares
