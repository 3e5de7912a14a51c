"""The whole model: all steps of all sessions, of the network and of the sweep, and what must hold in every state.

nothing acknowledged is lost     what was acknowledged or delivered is in the log of the owner that serves
nothing is invented              no offset has two values, no FENCE lies inside a log
nothing is stuck                 no path ends with a takeover that waits
no acknowledgement behind the fence    a session acknowledges only what is below its fence
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.explorer import ViolationError
from tests.models.wal.deletion import ending, retention, sweeping, trimming
from tests.models.wal.files import consolidation
from tests.models.wal.state import SESSIONS, Instance, State, Step, name
from tests.models.wal.takeover import takeover
from tests.models.wal.writing import network, writing


class WalModel:
    """One instance as the explorer wants it."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def initial(self) -> State:
        return self._instance.initial()

    def steps(self, state: State) -> Iterator[Step]:
        for me in range(len(SESSIONS)):
            yield from writing(self._instance, state, me)
            yield from takeover(self._instance, state, me)
            yield from consolidation(self._instance, state, me)
            yield from trimming(self._instance, state, me)
            yield from retention(self._instance, state, me)
            yield from ending(self._instance, state, me)
        yield from sweeping(self._instance, state)
        yield from network(self._instance, state)

    def check(self, state: State) -> None:
        self._check_promises(state)
        self._check_sources(state)
        for session, record in enumerate(state.wal_records):
            acknowledged = state.brokers[session].acknowledged
            if record.fenced is not None and acknowledged > record.fenced:
                what = f"{SESSIONS[session]} acknowledged up to {acknowledged}, and is fenced at {record.fenced}"
                raise ViolationError(f"BEHIND THE FENCE: {what}")
            if record.fenced != state.fences[session]:
                what = f"{SESSIONS[session]} was fenced at {state.fences[session]}, and is at {record.fenced}"
                raise ViolationError(f"FENCE MOVED: {what}")

    def _check_promises(self, state: State) -> None:
        for segment, record in enumerate(state.records):
            if record.owner is None or state.brokers[record.owner].terms[segment] != record.term:
                continue  # not served now
            log = state.brokers[record.owner].logs[segment]
            for of, offset, value in state.promised:
                if of == segment and offset >= record.floor and (offset >= len(log) or log[offset] != value):
                    where = f"owner {SESSIONS[record.owner]} of segment {segment} at term {record.term}"
                    raise ViolationError(f"LOST: {value} was promised at offset {offset}, and {where} has it not")

    def _check_sources(self, state: State) -> None:
        """What a record refers to is there, whether or not a session is about to read it."""
        for record in state.records:
            for file in record.files:
                if file not in state.files:
                    raise ViolationError(f"LOST: file {file.name} is gone, or another one")
            for reference in record.references:
                end = state.brokers[reference.session].acknowledged if reference.end is None else reference.end
                for n in range(reference.start, end):
                    if not isinstance(state.wals[reference.session][n], tuple):
                        raise ViolationError(f"LOST: {name(reference.session, n)} is referred to, and gone")

    def check_end(self, state: State) -> None:
        for session, broker in enumerate(state.brokers):
            if broker.takeover is not None and not broker.over:
                raise ViolationError(f"STUCK: the takeover of {SESSIONS[session]} waits for ever")


def rounds_lost(writes: int, window: int, span: int) -> int:
    """The most round trips that a fence can lose to a session that keeps writing; a PUT of either takes one.

    In each round any of the session's PUTs in flight are stored before the FENCEs, at `span` names from the first that
    was missing; then as many new ones are sent.
    """
    worst, seen = 0, set()
    rest = [(min(window, writes), frozenset[int](), 0, 0)]
    while rest:
        round_ = rest.pop()
        if round_ in seen:
            continue
        seen.add(round_)
        sent, stored, at, lost = round_
        worst = max(worst, lost)
        flying = [n for n in range(sent) if n not in stored]
        for chosen in range(1 << len(flying)):
            now = stored | {n for index, n in enumerate(flying) if chosen >> index & 1}
            if now.issuperset(range(at, at + span)):
                rest.append((min(writes, sent + chosen.bit_count()), now, at + span, lost + 1))
    return worst
