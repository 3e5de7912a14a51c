"""Breadth-first exploration of a model: all states that can be reached, or a shortest way to one that must not be.

A model has no clock: a message may arrive at any time, and a process that takes no more steps has crashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class ViolationError(Exception):
    """A state, or a step out of it, breaks an invariant."""


class Model(Protocol[S]):
    """What is explored. States are immutable and hashable."""

    def initial(self) -> S:
        """Where every path begins."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Each step that may come next, by name, with the state that it leads to. Raises ViolationError."""

    def check(self, state: S) -> None:
        """Raise ViolationError where an invariant does not hold."""

    def check_end(self, state: S) -> None:
        """Raise ViolationError where a path must not end in this state, out of which no step leads."""


class Explored(NamedTuple):
    """`states`: how many were found. `fault`: what is broken, "" for nothing. `complete`: no state was left out."""

    states: int
    fault: str
    trace: list[str]
    complete: bool

    def story(self) -> str:
        """The fault, and the steps that lead to it, a line each."""
        steps = (f"  {number}. {step}" for number, step in enumerate(self.trace, 1))
        return "\n".join([self.fault or f"clean: {self.states} states", *steps])


class Search(Generic[S]):
    """One exploration."""

    def __init__(self, model: Model[S]) -> None:
        self._model = model
        self._came_from: dict[S, tuple[S, str] | None] = {}

    def run(self, states_max: int) -> Explored:
        """Explore until everything is seen, something is broken, or there are so many states."""
        first = self._model.initial()
        self._came_from = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            step = ""
            try:
                ended = True
                for step, following in self._model.steps(state):
                    ended = False
                    if following in self._came_from:
                        continue
                    self._came_from[following] = state, step
                    self._model.check(following)
                    queue.append(following)
                    state_count = len(self._came_from)
                    if state_count >= states_max:
                        return Explored(state_count, "", [], False)
                step = ""
                if ended:
                    self._model.check_end(state)
            except ViolationError as e:
                return Explored(len(self._came_from), str(e), [*self._way_to(state), *([step] if step else [])], True)
        return Explored(len(self._came_from), "", [], True)

    def _way_to(self, state: S) -> list[str]:
        way = []
        while (origin := self._came_from[state]) is not None:
            state, step = origin
            way.append(step)
        return way[::-1]


def explore(model: Model[S], states_max: int = 3_000_000) -> Explored:
    """Explore a model exhaustively."""
    return Search(model).run(states_max)
