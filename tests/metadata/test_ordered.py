"""The sorted set against a plain one, with chunks and delays that are small enough to end."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from engine.metadata import ordered
from engine.metadata.ordered import OrderedSet

ITEMS = st.integers(0, 60).map(lambda n: f"{n:02}")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), ITEMS),
        st.tuples(st.just("toggle all"), st.lists(ITEMS, unique=True, max_size=9).map(tuple)),
        st.tuples(st.just("read"), ITEMS, ITEMS, st.none() | st.integers(-1, 9)),
    ),
    max_size=200,
)


@pytest.fixture(params=[0, 3, 16])
def unsorted_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "_CHUNK_SIZE_MAX", 6)
    monkeypatch.setattr(ordered, "_UNSORTED_MAX", request.param)
    monkeypatch.setattr(ordered, "_SORTED_AT_ONCE", 2)


@pytest.mark.usefixtures("unsorted_max")
@given(st.sets(ITEMS), STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_agrees_with_a_plain_set(first: set[str], steps: list[tuple[Any, ...]]):
    plain, made = set(first), OrderedSet(sorted(first))
    for name, *arguments in [*steps, ("read", "", "99", None)]:
        if name == "toggle":
            (item,) = arguments
            (made.remove if item in plain else made.add)(item)
            plain ^= {item}
        elif name == "toggle all":
            (items,) = arguments
            for item in items:
                if item in plain:
                    made.remove(item)
            for item in items:
                if item not in plain:
                    made.add(item)
            plain ^= set(items)
        else:
            start, end, limit = arguments
            wanted = [item for item in sorted(plain) if start <= item < end]
            assert made.between(start, end, limit) == (wanted if limit is None else wanted[: max(limit, 0)])
        assert len(made) == len(plain)


def test_what_waits_for_its_place_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ordered, "_UNSORTED_MAX", 10)
    made: OrderedSet[str] = OrderedSet()
    items = [f"{n:04}" for n in range(1_000)]
    for item in items:
        made.add(item)
        assert len(made.added) <= 10
    for item in items[::2]:
        made.remove(item)
        assert len(made.removed) <= 10
    assert made.between("", "z") == items[1::2]
    for item in items[::2]:
        made.add(item)
    assert len(made.added) <= 10
    for item in items[1::2]:
        made.remove(item)
    assert len(made.removed) <= 10
    assert made.between("", "z") == items[::2]


def test_what_is_soon_taken_out_again_never_has_a_place():
    made = OrderedSet(["0"])
    for n in range(1, 1_000):
        made.add(f"{n:04}")
        if n > 100:
            made.remove(f"{n - 100:04}")
    assert made.chunks == [["0"]]
    assert len(made) == 101
