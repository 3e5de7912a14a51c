"""Who owns which bucket: evenly, with as few moves as that allows, and always the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.broker.delivery.bucket_assignment import UNASSIGNED, spread

OWNERS = st.lists(st.integers(-1, 6), max_size=40)
SHARERS = st.lists(st.integers(0, 8), unique=True, max_size=8)


def fewest_moves(owners: list[int], sharers: list[int]) -> int:
    """Of owned buckets that can stay with their owner, how many cannot, under the best choice of larger shares."""
    floor, larger = divmod(len(owners), len(sharers))
    had = sorted((owners.count(sharer) for sharer in sharers), reverse=True)
    kept = sum(min(count, floor + (i < larger)) for i, count in enumerate(had))
    return sum(owner in sharers for owner in owners) - kept


@given(OWNERS, SHARERS)
def test_shares_are_even_and_moves_few(owners: list[int], sharers: list[int]):
    after = spread(owners, sharers)
    if not sharers:
        assert after == [UNASSIGNED] * len(owners)
        return
    assert len(after) == len(owners)
    counts = [after.count(sharer) for sharer in sharers]
    assert sum(counts) == len(owners)
    assert max(counts) - min(counts) <= 1
    moved = sum(before in sharers and before != owner for before, owner in zip(owners, after, strict=True))
    assert moved == fewest_moves(owners, sharers)
    assert spread(after, sharers) == after


def test_who_joins_takes_from_those_who_have_most():
    assert spread([0] * 8, [0, 1]) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert spread([0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2]) == [0, 0, 0, 2, 1, 1, 1, 2]


def test_what_a_leaver_had_goes_to_the_others():
    assert spread([0, 0, 1, 1, 2, 2], [0, 2]) == [0, 0, 0, 2, 2, 2]
