"""The explorer: it finds the shortest way to a fault, sees every state, and says when it did not."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.explorer import ViolationError, explore


class Counters:
    """Two counters up to a limit; `forbidden` states are at fault, `stuck` ones may not end a path."""

    def __init__(self, limit: int, forbidden: tuple[int, int] = (-1, -1), stuck: bool = False) -> None:
        self._limit, self._forbidden, self._stuck = limit, forbidden, stuck

    def initial(self) -> tuple[int, int]:
        return 0, 0

    def steps(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        a, b = state
        if a < self._limit:
            yield "a", (a + 1, b)
        if b < self._limit:
            yield "b", (a, b + 1)

    def check(self, state: tuple[int, int]) -> None:
        if state == self._forbidden:
            raise ViolationError("forbidden")

    def check_end(self, state: tuple[int, int]) -> None:
        if self._stuck:
            raise ViolationError("stuck")


def test_all_states_are_seen():
    assert explore(Counters(9)) == (100, "", [], True)


def test_the_way_to_a_fault_is_a_shortest_one():
    found = explore(Counters(9, forbidden=(2, 1)))
    assert found.fault == "forbidden"
    assert sorted(found.trace) == ["a", "a", "b"]
    assert found.story().splitlines()[0] == "forbidden"


def test_a_path_that_must_not_end_is_a_fault():
    found = explore(Counters(1, stuck=True))
    assert (found.fault, sorted(found.trace)) == ("stuck", ["a", "b"])


def test_a_limit_of_states_is_said():
    assert explore(Counters(9), states_max=50) == (50, "", [], False)
