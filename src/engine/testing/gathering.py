"""Sorts the events of a history by what they say: evidence.py from the words of history.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from typing import Any

from engine.testing.evidence import (
    Answer,
    Attachment,
    Evidence,
    Fact,
    One,
    Send,
    Transaction,
    TransactionalAck,
)


def gather(events: list[Fact]) -> Evidence:
    evidence = Evidence()
    calls: dict[Any, Fact] = {}
    evidence.times = [event["time"] for event in events]
    for event in events:
        if event["phase"] == "invoke":
            calls[event["call"]] = event
        call = calls.get(event.get("call"), event)
        _gather_progress(evidence, event, call)
        _GATHERERS.get(event["what"], _gather_nothing)(evidence, event, call)
    _count_acks(evidence)
    return evidence


def _gather_nothing(evidence: Evidence, event: Fact, call: Fact) -> None:
    pass


def _gather_progress(evidence: Evidence, event: Fact, call: Fact) -> None:
    """In a transaction, which may have ended meanwhile, a refusal is an answer."""
    if event["what"] == "healed":
        evidence.healed = event["n"]
    if evidence.healed is None or "call" not in event:
        return
    refused = event["phase"] != "ok" and "transaction" not in call
    if event["phase"] == "invoke" or (refused and event["call"] in evidence.stalled):
        evidence.stalled[event["call"]] = event
    else:
        evidence.stalled.pop(event["call"], None)


def _gather_send(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] == "invoke":
        topic = event.get("topic", "")
        due = event["time"] + event["after"] if event.get("after") else 0.0
        send = Send(event["value"], event["key"], event["client"], event["n"], topic, due)
        send.transaction, send.attempt = event.get("transaction"), event.get("attempt")
        send.source = event.get("source")
        evidence.sends[event["value"]] = send
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


def _gather_transactional_ack(evidence: Evidence, event: Fact, call: Fact) -> None:
    attempt, known = call.get("attempt"), evidence.transactional_acks
    made = TransactionalAck(call["transaction"], attempt, call["subscription"], call["client"], call)
    ack = known.setdefault(call["call"], made)
    if event["phase"] != "invoke":
        ack.outcome, ack.ended = event["phase"], event["n"]


def _gather_ack(evidence: Evidence, event: Fact, call: Fact) -> None:
    if "transaction" in call:
        _gather_transactional_ack(evidence, event, call)
        return
    if event["phase"] == "invoke":
        evidence.plain_acks.append(event)
    said: dict[str, int] = event["positions"] if "positions" in event else call["positions"]
    positions = {int(segment): position for segment, position in said.items()}
    if event["phase"] == "invoke":
        evidence.acks_issued[call["subscription"]].append((event["n"], positions))
    elif event["phase"] == "ok":
        evidence.acks_confirmed[call["subscription"]].append((event["n"], positions))


def _gather_ack_one(evidence: Evidence, event: Fact, call: Fact) -> None:
    if "transaction" in call:
        _gather_transactional_ack(evidence, event, call)
        return
    if event["phase"] == "invoke":
        evidence.plain_acks.append(event)
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
    if "made" in event:
        evidence.made.append((event["subscription"], event["made"], event["n"]))


def _gather_layout(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.layouts.append(event)


def _transaction(evidence: Evidence, number: str) -> Transaction:
    return evidence.transactions.setdefault(number, Transaction(number))


def _gather_begin(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] != "ok":
        return
    known = _transaction(evidence, event["transaction"])
    known.name = call.get("name")
    known.began, known.asked = min(known.began, event["n"]), min(known.asked, call["n"])
    deadline = event["time"] + call["timeout"]
    known.deadline = deadline if known.deadline == inf else max(known.deadline, deadline)
    _gather_answer(known, event, call)


def _gather_end(evidence: Evidence, event: Fact, call: Fact) -> None:
    known = _transaction(evidence, call["transaction"])
    if event["phase"] == "invoke" and event["action"] == "commit":
        known.commits.append(event)
    _gather_answer(known, event, call)


def _gather_state(evidence: Evidence, event: Fact, call: Fact) -> None:
    if event["phase"] == "ok":
        _gather_answer(_transaction(evidence, event["transaction"]), event, call)


def _gather_answer(known: Transaction, event: Fact, call: Fact) -> None:
    if "state" not in event:
        return
    known.answers.append(Answer(event["n"], event["state"], call["n"]))
    accepted = event.get("accepted", call.get("accepted"))
    if event["state"] == "COMMITTED" and accepted is not None:
        known.accepted = frozenset(accepted)


def _gather_read(evidence: Evidence, event: Fact, call: Fact) -> None:
    evidence.reads.append(event)


def _count_acks(evidence: Evidence) -> None:
    """Put the acknowledgements of transactions beside the others: asked for at once, confirmed by the commit.

    One whose transaction was aborted counts as asked for all the same: a consumer may have gone on behind it.
    """
    for ack in evidence.transactional_acks.values():
        known = evidence.transactions.get(ack.transaction)
        counts = known is not None and evidence.counts(ack.transaction, ack.attempt)
        confirmed = known.ended if known is not None and counts and ack.outcome == "ok" else None
        if ack.call["what"] == "ack":
            positions = {int(place): position for place, position in ack.call["positions"].items()}
            evidence.acks_issued[ack.subscription].append((ack.call["n"], positions))
            if confirmed is not None:
                evidence.acks_confirmed[ack.subscription].append((confirmed, positions))
        elif counts is not False:
            _count_one(evidence, ack, confirmed)
    for acks in (*evidence.acks_issued.values(), *evidence.acks_confirmed.values()):
        acks.sort(key=lambda ack: ack[0])


def _count_one(evidence: Evidence, ack: TransactionalAck, confirmed: int | None) -> None:
    place = (ack.subscription, ack.call["segment"], ack.call["offset"])
    if confirmed is not None:
        evidence.ones_confirmed[place] = min(confirmed, evidence.ones_confirmed.get(place, confirmed))
    if "attachment" in ack.call:
        evidence.ones.append(One(ack.call["attachment"], place, ack.call["n"], ack.call["time"], confirmed))


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
    "txn_begin": _gather_begin,
    "txn_end": _gather_end,
    "txn_state": _gather_state,
    "txn_read": _gather_read,
}
