"""The evidence in a history: its events sorted by what they say, for the rules of checker.py."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    due: float = 0.0  # the time before which nobody is to get it
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

    def calm_at(self, event: int) -> int:
        """Which calm an event lies in; -1 for none."""
        found = bisect_right(self.calms, event, key=lambda calm: calm[0]) - 1
        return found if found >= 0 and event <= self.calms[found][1] else -1


def gather(events: list[Fact]) -> Evidence:
    """Sort a history."""
    evidence = Evidence()
    calls: dict[Any, Fact] = {}
    for event in events:
        if event["phase"] == "invoke":
            calls[event["call"]] = event
        _gather_progress(evidence, event)
        _GATHERERS.get(event["what"], _gather_nothing)(evidence, event, calls.get(event.get("call"), event))
    return evidence


def _gather_nothing(evidence: Evidence, event: Fact, call: Fact) -> None:
    """Events for people."""


def _gather_progress(evidence: Evidence, event: Fact) -> None:
    if event["what"] == "healed":
        evidence.healed = event["n"]
    if evidence.healed is None or "call" not in event:
        return
    if event["phase"] == "invoke" or (event["phase"] != "ok" and event["call"] in evidence.stalled):
        evidence.stalled[event["call"]] = event
    else:
        evidence.stalled.pop(event["call"], None)


def _gather_send(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] == "invoke":
        topic = event.get("topic", "")
        due = event["time"] + event["after"] if event.get("after") else 0.0
        evidence.sends[event["value"]] = Send(event["value"], event["key"], event["client"], event["n"], topic, due)
        return
    send = evidence.sends[call["value"]]
    send.outcome, send.ended = event["phase"], event["n"]
    send.segment, send.offset = event.get("segment", -1), event.get("offset", -1)


def _gather_attach(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] == "invoke":
        topic = event.get("topic", "")
        resumes = event.get("resumes", -1)
        found = Attachment(event["subscription"], event["kind"], topic, event["client"], event["n"], resumes)
        found.ack_timeout, found.max_redeliveries = event.get("ack_timeout"), event.get("max_redeliveries")
        evidence.attachments[event["call"]] = found
    elif event["phase"] == "ok":
        evidence.attachments[event["call"]].began = event


def _gather_detach(evidence: Evidence, event: Fact, call: Fact) -> None:
    attachment = evidence.attachments[event["attachment"]]
    attachment.end, attachment.ended, attachment.killed = event, event["n"], event.get("killed", False)


def _gather_deliver(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.deliveries.append(event)


def _gather_reading(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.finals.setdefault(event["reading"], [])  # also one that shows nothing is a reading


def _gather_final(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.finals[event["reading"]].append(event)


def _gather_ack(evidence: Evidence, event: Fact, call: Fact) -> None:
    said: dict[str, int] = event["positions"] if "positions" in event else call["positions"]
    positions = {int(segment): position for segment, position in said.items()}
    if event["phase"] == "invoke":
        evidence.acks_issued[call["subscription"]].append((event["n"], positions))
    elif event["phase"] == "ok":
        evidence.acks_confirmed[call["subscription"]].append((event["n"], positions))


def _gather_ack_one(evidence: Evidence, event: Fact, call: Fact) -> None:
    place = (call["subscription"], call["segment"], call["offset"])
    confirmed = event["n"] if event["phase"] == "ok" else None
    if confirmed is not None:
        evidence.ones_confirmed.setdefault(place, confirmed)
    if event["phase"] != "invoke" and "attachment" in call:
        evidence.ones.append(One(call["attachment"], place, call["n"], call["time"], confirmed))


def _gather_nack(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.nacks.append(event)


def _gather_letter(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.letters.append(event)


def _gather_calm(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] == "invoke":
        evidence.calms.append([event["n"], sys.maxsize])
    else:
        evidence.calms[-1][1] = event["n"]


def _gather_checkpoint(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.checkpoints[event["n"]] = event


def _gather_drained(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.drained[event["subscription"]] = event["n"]
    if event.get("finished"):
        evidence.finished.add(event["subscription"])


def _gather_layout(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.layouts.append(event)


_GATHERERS: dict[str, Callable[[Evidence, Fact, Fact], None]] = {
    "send": _gather_send,
    "attach": _gather_attach,
    "detach": _gather_detach,
    "deliver": _gather_deliver,
    "reading": _gather_reading,
    "final": _gather_final,
    "ack": _gather_ack,
    "ack_one": _gather_ack_one,
    "nack": _gather_nack,
    "letter": _gather_letter,
    "calm": _gather_calm,
    "checkpoint": _gather_checkpoint,
    "drained": _gather_drained,
    "layout": _gather_layout,
}


def place_of(event: Fact) -> Place:
    """Where a delivered or read message is."""
    return event.get("topic", ""), event["segment"], event["offset"]
