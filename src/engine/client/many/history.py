"""`History`: the positions delivered of each of several topics, at any step that a message's id may refer to.

A message keeps the step at which it was delivered; the vectors of that step are built when the message's id is read.
A step is one topic's turn. Steps are kept in chapters, each of which begins with the vectors of all topics: what a
message keeps alive is bounded, and a chapter without messages is freed.
"""

from __future__ import annotations

from engine.aio.locks import Lock
from engine.model.positions import TopicPositions

_STEPS_MIN = 1024

Vectors = dict[str, TopicPositions]


class Chapter:
    """The vectors at its beginning, and the steps since. Ids are read on any thread."""

    __slots__ = ("_base", "_lock", "_state", "_steps", "_walked")

    def __init__(self, base: Vectors) -> None:
        self._base = base
        self._steps: list[tuple[str, TopicPositions | None]] = []
        # The state before step `_walked`: ids that are read in order are built step by step.
        self._lock = Lock()
        self._state: Vectors = {}
        self._walked = -1

    def __len__(self) -> int:
        return len(self._steps)

    def append(self, topic: str, vector: TopicPositions | None) -> bool:
        """Add a step; whether the chapter is full."""
        self._steps.append((topic, vector))
        return len(self._steps) >= max(_STEPS_MIN, 2 * len(self._base))

    def before(self, step: int) -> Vectors:
        """The vectors before that step, a new dict."""
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


class History:
    """Steps are added by one thread at a time."""

    def __init__(self) -> None:
        self._chapter = Chapter({})

    def mark(self) -> tuple[Chapter, int]:
        """The present step: `chapter.before(step)` is what was delivered until now."""
        return self._chapter, len(self._chapter)

    def note(self, topic: str, vector: TopicPositions | None) -> None:
        """Add the positions delivered of a topic; None: the topic has left."""
        if self._chapter.append(topic, vector):
            self._chapter = Chapter(self._chapter.before(len(self._chapter)))
