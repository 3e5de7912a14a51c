"""The evidence in a history: its events sorted by what they say, for the rules of checker.py."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

Fact = dict[str, Any]
Place = tuple[str, int, int]  # topic, segment, offset


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and the event that shows it."""

    rule: str
    text: str
    event: int

    def __str__(self) -> str:
        return f"{self.rule} at event {self.event}: {self.text}"


@dataclass(slots=True)
class Send:
    """One produce: how it ended, and where it said it is."""

    value: str
    key: str | None
    client: str
    invoked: int
    topic: str
    due: float = 0.0  # the time before which it must not be delivered
    transaction: str | None = None  # that it is a part of
    attempt: str | None = None
    source: str | None = None  # the value that it was made from
    outcome: str = "info"  # what was never answered is unknown
    segment: int = -1
    offset: int = -1
    ended: int = -1


@dataclass(slots=True)
class Attachment:
    """One consumer's life on a subscription."""

    subscription: str
    kind: str
    topic: str
    client: str
    invoked: int
    resumes: int = -1  # the checkpoint it started from
    ack_timeout: float | None = None
    max_redeliveries: int | None = None  # what comes back more often is a dead letter
    ended: int | None = None  # the event since which it holds nothing
    killed: bool = False  # it did not end in order
    began: Fact | None = None  # the event at which it was there
    end: Fact | None = None


@dataclass(slots=True)
class One:
    """An individual acknowledgement."""

    attachment: int
    place: tuple[str, int, int]  # subscription, segment, offset
    invoked: int
    time: float
    confirmed: int | None = None


class Answer(NamedTuple):
    """An answer about a transaction's state, and when it was requested."""

    n: int
    state: str
    asked: int


@dataclass(slots=True)
class Transaction:
    """One transaction, as far as clients know of it. Places in the history, seconds of its clock."""

    id: str
    name: str | None = None
    began: int = sys.maxsize  # the first answer that named it
    asked: int = sys.maxsize  # the call that was so answered
    deadline: float = inf
    commits: list[Fact] = field(default_factory=list)  # calls, in order
    answers: list[Answer] = field(default_factory=list)
    accepted: frozenset[str] | None = None  # attempts, of the commit that is known to have been done

    @property
    def state(self) -> str:
        """COMMITTED or ABORTED, as it was answered first; OPEN: unknown."""
        return next((answer.state for answer in self.answers if answer.state != "OPEN"), "OPEN")

    @property
    def ended(self) -> int:
        """The first answer that it has ended."""
        return next((answer.n for answer in self.answers if answer.state != "OPEN"), sys.maxsize)

    def takes(self, attempt: str | None) -> bool:
        """Whether its commit accepts that attempt."""
        return self.accepted is None or attempt in self.accepted


@dataclass(slots=True)
class TransactionalAck:
    """An acknowledgement inside a transaction: of one message of a queue, or up to positions of a stream."""

    transaction: str
    attempt: str | None
    subscription: str
    client: str
    call: Fact
    outcome: str = "info"
    ended: int = -1


@dataclass(slots=True)
class Evidence:
    """A history, sorted by what it says."""

    sends: dict[str, Send] = field(default_factory=dict)
    attachments: dict[int, Attachment] = field(default_factory=dict)
    deliveries: list[Fact] = field(default_factory=list)
    finals: dict[Any, list[Fact]] = field(default_factory=lambda: defaultdict(list))
    # Per subscription, in order: (event, place -> position) of cumulative acks.
    acks_issued: dict[str, list[tuple[int, dict[int, int]]]] = field(default_factory=lambda: defaultdict(list))
    acks_confirmed: dict[str, list[tuple[int, dict[int, int]]]] = field(default_factory=lambda: defaultdict(list))
    # (subscription, segment, offset) -> event of the confirmation of an individual ack.
    ones_confirmed: dict[tuple[str, int, int], int] = field(default_factory=dict)
    ones: list[One] = field(default_factory=list)  # all individual acks that say whose they are
    nacks: list[Fact] = field(default_factory=list)
    letters: list[Fact] = field(default_factory=list)  # dead letters, as they were read
    calms: list[list[int]] = field(default_factory=list)  # [first event, last event] of each
    checkpoints: dict[int, Fact] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)  # drained, and nothing is left to be handed back
    layouts: list[Fact] = field(default_factory=list)
    healed: int | None = None
    # Calls since everything was healed that did not end well (or not at all): call -> its last event.
    stalled: dict[int, Fact] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    transactional_acks: dict[Any, TransactionalAck] = field(default_factory=dict)  # by call
    plain_acks: list[Fact] = field(default_factory=list)  # calls, outside transactions
    reads: list[Fact] = field(default_factory=list)  # what transactions went by
    times: list[float] = field(default_factory=list)  # of every event
    # (subscription, the topic of what was made of it, the event at which all of it had to be there)
    made: list[tuple[str, str, int]] = field(default_factory=list)
    _shown: set[Place] | None = None

    def calm_at(self, event: int) -> int:
        """Which calm an event lies in; -1 for none."""
        found = bisect_right(self.calms, event, key=lambda calm: calm[0]) - 1
        return found if found >= 0 and event <= self.calms[found][1] else -1

    def counts(self, transaction: str | None, attempt: str | None) -> bool | None:
        """Whether what was done in it, in time, takes effect; None: unknown. Without a transaction it does."""
        if transaction is None:
            return True
        known = self.transactions.get(transaction)
        if known is None or known.state == "OPEN":
            return None
        return known.state == "COMMITTED" and known.takes(attempt)

    def hidden(self, topic: str, segment: int, offset: int) -> bool:
        """Whether a transaction may have left a hole there: no final reading shows anything at that place."""
        if not self.transactions or not self.finals:
            return False
        if self._shown is None:
            self._shown = {place_of(event) for events in self.finals.values() for event in events}
        return (topic, segment, offset) not in self._shown


def place_of(event: Fact) -> Place:
    """Where a delivered or read message is."""
    return event.get("topic", ""), event["segment"], event["offset"]
