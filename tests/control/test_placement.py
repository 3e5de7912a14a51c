"""Rendezvous hashing: moving no more than it must, and bounded by load."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.policy.placement import SPARE, place, score, spread, traffic
from engine.model.load import SegmentLoadStats

BROKERS_ONE = st.integers(0, 1000).map(lambda n: f"engine://broker-{n}:6650")
BROKERS = st.sets(BROKERS_ONE, min_size=1, max_size=12)
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


@pytest.mark.parametrize(("brokers", "segments"), [(3, 8), (2, 8), (5, 16), (10, 64)])
def test_every_broker_gets_its_part_of_a_topic(brokers: int, segments: int) -> None:
    """Scores alone leave one of three brokers without any of 8 segments in a tenth of the address sets."""
    rng = random.Random(brokers)
    alone = 0
    for topic in range(300):
        urls = [
            f"engine://10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}:6650" for _ in range(brokers)
        ]
        names = [f"segment://public/default/t{topic}/0000-ffff-{i}" for i in range(segments)]
        counts = Counter(spread(dict.fromkeys(names, 1.0), dict.fromkeys(urls, 0.0)).values())
        assert min(counts[url] for url in urls) >= segments // brokers - 1 >= 1
        assert max(counts.values()) <= -(-segments // brokers) + 1
        alone += len({place(name, urls) for name in names}) < brokers
    assert alone or (brokers, segments) not in ((3, 8), (5, 16)), "it tells the two apart"


@given(
    st.dictionaries(BROKERS_ONE, st.floats(0, 1e6), max_size=8),
    st.lists(st.floats(0.1, 1e4), max_size=30),
)
def test_nothing_goes_to_a_broker_above_the_bound(loads: dict[str, float], weights: list[float]) -> None:
    named = {f"s{i}": weight for i, weight in enumerate(weights)}
    placed = spread(named, loads)
    assert placed.keys() == (named.keys() if loads else set())
    mean = (sum(loads.values()) + sum(weights)) / max(len(loads), 1)
    taken = dict(loads)
    for name, url in placed.items():
        assert taken[url] < min(taken.values()) + max(SPARE * mean, named[name]) * (1 + 1e-9)
        taken[url] += named[name]


def test_where_load_is_large_the_scores_decide() -> None:
    """A name is passed on only for a difference that matters: most stay where all brokers expect them."""
    brokers = {f"engine://10.0.0.{i}:6650": 1_000.0 + i for i in range(5)}
    placed = spread(dict.fromkeys(NAMES[:100], 1.0), brokers)
    assert placed == {name: place(name, brokers) for name in NAMES[:100]}
    brokers["engine://10.0.0.9:6650"] = 0.0
    assert set(spread(dict.fromkeys(NAMES[:50], 1.0), brokers).values()) == {"engine://10.0.0.9:6650"}


def test_load_is_counted_in_units() -> None:
    assert traffic(SegmentLoadStats()) == 0
    assert traffic(SegmentLoadStats(6_000.0, 0.0, 4_000.0, 0.0)) == 1
    assert traffic(SegmentLoadStats(0.0, 2.0 * 1024 * 1024, 0.0, 1024.0 * 1024)) == 3
