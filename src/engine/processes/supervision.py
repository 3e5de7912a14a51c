"""`Supervision`: which processes of a server run, end, and are started again, and when. Pure: events in, actions out.

    STARTING --> SERVING --> STOPPING --> ENDED
        |           |            ^
        v           v            |
        +----> RESTING ----------+       a process that died is started again: at once, or after a pause

The first death of a process is followed by a start at once. When the next one comes before the process has served for
STEADY_S, the pause doubles, so that a process that cannot live does not take the processor from those that do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

STEADY_S = 5.0  # a process that has served for so long is started again at once
PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 5.0
STOP_S_MAX = 30.0  # a process that has not ended by then is killed


class State(enum.Enum):
    """Of one process."""

    STARTING = "starting"
    SERVING = "serving"
    RESTING = "resting"  # it died, and is to be started when it is due
    STOPPING = "stopping"
    ENDED = "ended"


MOVES = {
    State.STARTING: {State.SERVING, State.RESTING, State.STOPPING, State.ENDED},
    State.SERVING: {State.RESTING, State.STOPPING},
    State.RESTING: {State.STARTING, State.ENDED},
    State.STOPPING: {State.ENDED},
    State.ENDED: set(),
}


class Verb(enum.Enum):
    """What is to be done with a process. FAIL: it cannot be started; the server ends."""

    START = "start"
    STOP = "stop"
    KILL = "kill"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done, with the process of this index."""

    verb: Verb
    index: int


@dataclass(slots=True)
class Supervised:
    """One process. Times are monotonic seconds."""

    state: State
    since: float
    due: float | None = None  # when it is to be started, or killed
    deaths: int = 0  # in a row, each before it had served for STEADY_S
    restarts: int = 0

    def move_to(self, state: State, now: float, due: float | None = None) -> None:
        if state not in MOVES[self.state]:
            raise ValueError(f"a process cannot change from {self.state.value} to {state.value}")
        self.state, self.since, self.due = state, now, due


class Supervision:
    """Decides; the caller acts, and reports what happened. begin() first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stopping = False
        self.processes: list[Supervised] = []

    @property
    def complete(self) -> bool:
        """Whether every process serves."""
        return all(process.state is State.SERVING for process in self.processes)

    @property
    def over(self) -> bool:
        """Whether every process has ended for good."""
        return all(process.state is State.ENDED for process in self.processes)

    @property
    def next_due(self) -> float | None:
        """When tick() has something to do."""
        return min((process.due for process in self.processes if process.due is not None), default=None)

    def begin(self, now: float) -> Sequence[Action]:
        self.processes = [Supervised(State.STARTING, now) for _ in range(self._count)]
        return [Action(Verb.START, index) for index in range(self._count)]

    def serves(self, index: int, now: float) -> None:
        """It has started, and accepts connections."""
        process = self.processes[index]
        if process.state is State.STARTING:
            process.move_to(State.SERVING, now)

    def died(self, index: int, now: float, *, refused: bool) -> Sequence[Action]:
        """Its process ended. `refused`: by its own error, before it served, so that another start would not help."""
        process = self.processes[index]
        if self._stopping or process.state is State.STOPPING:
            process.move_to(State.ENDED, now)
            return []
        if refused and process.state is State.STARTING and not process.restarts:
            process.move_to(State.ENDED, now)
            return [Action(Verb.FAIL, index)]
        steady = process.state is State.SERVING and now - process.since >= STEADY_S
        process.deaths = 1 if steady else process.deaths + 1
        process.move_to(State.RESTING, now, now + pause_after(process.deaths))
        return self.tick(now)

    def stop(self, now: float) -> Sequence[Action]:
        """Stop all, and start none again. Idempotent."""
        self._stopping = True
        actions = []
        for index, process in enumerate(self.processes):
            if process.state is State.RESTING:
                process.move_to(State.ENDED, now)
            elif process.state in (State.STARTING, State.SERVING):
                process.move_to(State.STOPPING, now, now + STOP_S_MAX)
                actions.append(Action(Verb.STOP, index))
        return actions

    def tick(self, now: float) -> Sequence[Action]:
        """What is due: starts after a pause, and the end of processes that do not end by themselves."""
        actions = []
        for index, process in enumerate(self.processes):
            if process.due is None or process.due > now:
                continue
            if process.state is State.RESTING:
                process.move_to(State.STARTING, now)
                process.restarts += 1
                actions.append(Action(Verb.START, index))
            else:
                process.due = None
                actions.append(Action(Verb.KILL, index))
        return actions


def pause_after(deaths: int) -> float:
    """Seconds before the next start, after so many deaths in a row."""
    return 0.0 if deaths <= 1 else min(PAUSE_S_FIRST * 2.0 ** min(deaths - 2, 30), PAUSE_S_MAX)
