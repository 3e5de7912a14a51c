"""`Journal`: what was delivered of each of several topics, as it was at any moment that an id may ask for.

A message keeps a mark of the moment it was delivered at; the vectors of that moment are put together when somebody
asks for the message's id. A step of the journal is one topic's turn. It is kept in chapters that begin with the vectors
of all topics, so that what a message holds on to is bounded, and what nobody holds on to is gone.
"""

from __future__ import annotations

from engine.aio.locks import Lock
from engine.model.positions import TopicPositions

_STEPS_MIN = 1024

Vectors = dict[str, TopicPositions]


class Chapter:
    """The vectors at its beginning, and the steps since. Ids are asked for on any thread."""

    __slots__ = ("_base", "_lock", "_state", "_steps", "_walked")

    def __init__(self, base: Vectors) -> None:
        self._base = base
        self._steps: list[tuple[str, TopicPositions | None]] = []
        # The state before step `_walked`, so that ids asked for in order cost no walk each.
        self._lock = Lock()
        self._state: Vectors = {}
        self._walked = -1

    def __len__(self) -> int:
        return len(self._steps)

    def append(self, topic: str, vector: TopicPositions | None) -> bool:
        """One more step; whether it should be the last."""
        self._steps.append((topic, vector))
        return len(self._steps) >= max(_STEPS_MIN, 2 * len(self._base))

    def before(self, step: int) -> Vectors:
        """The vectors as they were before that step, a new dict."""
        with self._lock:
            if self._walked < 0 or self._walked > step:
                self._state, self._walked = self._base.copy(), 0
            for topic, vector in self._steps[self._walked : step]:
                if vector is None:
                    self._state.pop(topic, None)
                else:
                    self._state[topic] = vector
            self._walked = step
            return self._state.copy()


class Journal:
    """Steps are written one at a time."""

    def __init__(self) -> None:
        self._chapter = Chapter({})

    def mark(self) -> tuple[Chapter, int]:
        """This moment: `chapter.before(step)` is what was delivered until now."""
        return self._chapter, len(self._chapter)

    def note(self, topic: str, vector: TopicPositions | None) -> None:
        """How far a topic was delivered; None: it is none of ours any more."""
        if self._chapter.append(topic, vector):
            self._chapter = Chapter(self._chapter.before(len(self._chapter)))
