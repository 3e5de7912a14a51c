"""Rules of transactions: all or none, nothing aborted or early, one answer for ever, no reader blocked past a timeout.

Whether one was committed is what a client was answered, if any was; else it is what the final readings show, and these
may show all of it or nothing.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from math import inf

from engine.testing.evidence import Evidence, Fact, Send, Transaction, TransactionalAck, Violation

LATE_S = 10.0  # behind the end of what held a message back; sweeps and a broker's failure are in it


def _writes(evidence: Evidence) -> dict[str, list[Send]]:
    found: dict[str, list[Send]] = defaultdict(list)
    for send in evidence.sends.values():
        if send.transaction is not None:
            found[send.transaction].append(send)
    return found


def all_or_none(evidence: Evidence) -> Iterator[Violation]:
    """T1: of what a transaction wrote, by attempts that count, a final reading shows all or nothing."""
    for reading, events in evidence.finals.items():
        shown = {event["value"] for event in events}
        for number, sends in _writes(evidence).items():
            transaction = evidence.transactions.get(number)
            if transaction is None or transaction.state != "OPEN":
                continue  # what is known to count is lost or aborted, not torn
            there = [send for send in sends if send.value in shown]
            for send in sends if there else ():
                if send.outcome == "ok" and send.value not in shown and _may_count(transaction, send):
                    text = f"reading {reading} shows {there[0].value} of {number}, and not {send.value}"
                    yield Violation("T1", text, send.ended)


def _may_count(transaction: Transaction, send: Send) -> bool:
    """Whether every commit that was asked for accepts its attempt."""
    lists = [commit["accepted"] for commit in transaction.commits if commit.get("accepted") is not None]
    return all(send.attempt in accepted for accepted in lists)


def _seen(evidence: Evidence) -> Iterator[tuple[Fact, Send]]:
    """All delivered messages of transactions."""
    for events in (evidence.deliveries, *evidence.finals.values()):
        for event in events:
            send = evidence.sends.get(event["value"])
            if send is not None and send.transaction is not None:
                yield event, send


def aborted(evidence: Evidence) -> Iterator[Violation]:
    """T2: what an aborted transaction wrote is never delivered, nor an attempt that its commit does not accept."""
    for event, send in _seen(evidence):
        if evidence.counts(send.transaction, send.attempt) is False:
            state = evidence.transactions[str(send.transaction)].state
            origin = f"by {send.attempt} in {send.transaction}" if state == "COMMITTED" else f"in {send.transaction}"
            yield Violation("T2", f"{send.value}, written {origin}, was given to {event['client']}", event["n"])


def too_early(evidence: Evidence) -> Iterator[Violation]:
    """T3: what a transaction wrote is not delivered before its commit was requested."""
    for event, send in _seen(evidence):
        transaction = evidence.transactions.get(str(send.transaction))
        if transaction is None or not transaction.commits or event["n"] < transaction.commits[0]["n"]:
            text = f"{send.value} was given to {event['client']} before {send.transaction} was committed"
            yield Violation("T3", text, event["n"])


def one_answer(evidence: Evidence) -> Iterator[Violation]:
    """T6: every query is answered with the same outcome, however often it is repeated and answers are lost."""
    for transaction in evidence.transactions.values():
        finals = [answer for answer in transaction.answers if answer.state != "OPEN"]
        for before, after in pairwise(finals):
            if before.state != after.state:
                yield Violation("T6", f"{transaction.id} was said to be {before.state}, then {after.state}", after.n)


def final(evidence: Evidence) -> Iterator[Violation]:
    """T4: a query after the outcome is known is not answered that it is open."""
    for transaction in evidence.transactions.values():
        for answer in transaction.answers:
            if answer.state == "OPEN" and answer.asked > transaction.ended:
                yield Violation("T4", f"{transaction.id} is open again", answer.n)


def late_writes(evidence: Evidence) -> Iterator[Violation]:
    """T5: what is written or acknowledged when the end is known is refused."""
    for send in evidence.sends.values():
        known = evidence.transactions.get(send.transaction or "")
        if known is not None and send.invoked > known.ended and send.outcome == "ok":
            yield Violation("T5", f"{send.value} was taken into {known.id}, which had ended", send.ended)
    for ack in evidence.transactional_acks.values():
        known = evidence.transactions.get(ack.transaction)
        if known is not None and ack.call["n"] > known.ended and ack.outcome == "ok":
            yield Violation("T5", f"{ack.client} acknowledged in {known.id}, which had ended", ack.ended)


# -- acknowledgements -------------------------------------------------------------------------------------------------


class _Acks:
    """What was acknowledged in one subscription, and what of that counts."""

    def __init__(self, evidence: Evidence, subscription: str) -> None:
        acks = [ack for ack in evidence.transactional_acks.values() if ack.subscription == subscription]
        self.void = [
            ack for ack in acks if ack.outcome == "ok" and evidence.counts(ack.transaction, ack.attempt) is False
        ]
        counting = [ack.call for ack in acks if evidence.counts(ack.transaction, ack.attempt) is not False]
        self.counting = counting + [call for call in evidence.plain_acks if call["subscription"] == subscription]


def _covers(call: Fact, message: Fact) -> bool:
    """Whether an acknowledgement is of that message. Buckets' positions are not looked at."""
    if call["what"] == "ack_one":
        return bool((call["segment"], call["offset"]) == (message["segment"], message["offset"]))
    return int(message["offset"]) < int(call["positions"].get(str(message["segment"]), 0))


def dropped_acks(evidence: Evidence) -> Iterator[Violation]:
    """T1: what was acknowledged only in transactions that were aborted comes again, to a subscription that is read to
    its end; unless it was acknowledged before, or another consumer had it as well, and did.
    """
    for subscription, drained in evidence.drained.items():
        acks = _Acks(evidence, subscription)
        given: dict[tuple[int, int], list[Fact]] = defaultdict(list)
        for event in evidence.deliveries:
            if evidence.attachments[event["attachment"]].subscription == subscription:
                given[event["segment"], event["offset"]].append(event)
        for place, events in given.items() if acks.void else ():
            void = [ack for ack in acks.void if _covers(ack.call, events[0])]
            if void and not _comes_again(void[-1], events, acks):
                text = f"{subscription} lost {place}, acknowledged in {void[-1].transaction}, which was aborted"
                yield Violation("T1", text, drained)


def _comes_again(void: TransactionalAck, events: list[Fact], acks: _Acks) -> bool:
    if events[-1]["n"] > void.call["n"]:
        return True
    others = {event["client"] for event in events} - {void.client}
    return any(
        _covers(call, events[0]) and (call["n"] < void.call["n"] or call["client"] in others) for call in acks.counting
    )


def made_once(evidence: Evidence) -> Iterator[Violation]:
    """T1: of a message that was acknowledged together with what was made of it, one thing was made: consume, transform,
    produce has its effect once.
    """
    for reading, events in evidence.finals.items():
        made: dict[tuple[str, str], Fact] = {}
        for event in events:
            send = evidence.sends.get(event["value"])
            if send is None or send.source is None:
                continue
            before = made.setdefault((send.topic, send.source), event)
            if before is not event:
                text = f"reading {reading}: {before['value']} and {event['value']} were both made of {send.source}"
                yield Violation("T1", text, event["n"])
        for subscription, topic, n in evidence.made:
            topics = {a.topic for a in evidence.attachments.values() if a.subscription == subscription}
            for event in events:
                if event.get("topic", "") in topics and (topic, event["value"]) not in made and event["n"] > n:
                    yield Violation("T1", f"reading {reading}: nothing was made of {event['value']}", event["n"])


# -- order ------------------------------------------------------------------------------------------------------------


def cycles(evidence: Evidence) -> Iterator[Violation]:
    """CYCLE: a transaction that has read what another wrote is behind it, and so is one that began behind its end; that
    is an order: none is behind itself.
    """
    behind: dict[str, set[str]] = {number: set() for number in evidence.transactions}
    for event in evidence.reads:
        send = evidence.sends.get(event["value"])
        reader, writer = event["transaction"], send and send.transaction
        if writer != reader and writer in behind and reader in behind:
            behind[reader].add(writer)
    _add_time(evidence, behind)
    stuck = _unordered(behind)
    named = sorted(number for number in stuck if number in evidence.transactions)
    if named:
        n = max((event["n"] for event in evidence.reads), default=0)
        yield Violation("CYCLE", f"no order of {', '.join(named[:6])} explains what they have read", n)


def _add_time(evidence: Evidence, behind: dict[str, set[str]]) -> None:
    """One that was begun when another had ended is behind it: by way of a mark at each end, so that these are few."""
    known = [t for t in evidence.transactions.values() if t.began < sys.maxsize]
    steps = [(t.asked, 0, t.id) for t in known] + [(t.ended, 1, t.id) for t in known if t.state != "OPEN"]
    mark = ""
    for n, is_end, number in sorted(steps):
        if is_end:
            before, mark = mark, f"behind {n}"
            behind[mark] = {number, before} - {""}
        elif mark:
            behind[number].add(mark)


def _unordered(behind: dict[str, set[str]]) -> set[str]:
    """Those that are behind themselves, or behind such: whatever is behind nothing is taken away again and again."""
    ahead: dict[str, list[str]] = defaultdict(list)
    for number, others in behind.items():
        for other in others:
            ahead[other].append(number)
    left = {number: len(others) for number, others in behind.items()}
    free = [number for number, count in left.items() if not count]
    while free:
        number = free.pop()
        del left[number]
        for other in ahead[number]:
            left[other] -= 1
            if not left[other]:
                free.append(other)
    return set(left)


# -- names and time ---------------------------------------------------------------------------------------------------


def names(evidence: Evidence) -> Iterator[Violation]:
    """NAMED: of the transactions of one name at most one is committed, and beginning it again returns that one."""
    committed: dict[str, Transaction] = {}
    for transaction in sorted(evidence.transactions.values(), key=lambda t: t.ended):
        if transaction.name is None:
            continue
        known = committed.get(transaction.name)
        if known is not None and transaction.asked > known.ended:
            text = f"{transaction.name} was begun as {transaction.id}, though {known.id} was committed"
            yield Violation("NAMED", text, transaction.began)
        elif known is not None and transaction.state == "COMMITTED":
            text = f"{known.id} and {transaction.id}, both {transaction.name}, were committed"
            yield Violation("NAMED", text, transaction.ended)
        elif transaction.state == "COMMITTED":
            committed[transaction.name] = transaction


def held_up(evidence: Evidence) -> Iterator[Violation]:
    """T7: a consumer that reads all the time, while nothing breaks, receives a message soon after the end of every
    transaction that can hold it back, and each of these ends at its deadline at the latest.
    """
    given: dict[tuple[str, str], float] = {}
    for event in evidence.deliveries:
        subscription = evidence.attachments[event["attachment"]].subscription
        given.setdefault((subscription, event["value"]), event["time"])
    last_end = _last_ends(evidence)
    due = {
        send.value: (send, max(evidence.times[send.ended], last_end(send.ended)))  # nothing can hold it back any more
        for send in evidence.sends.values()
        if _arrives(evidence, send)
    }
    for attachment in evidence.attachments.values():
        began, end = attachment.began, attachment.end
        if began is None or end is None or attachment.kind == "stream" or not _one_calm(evidence, began, end):
            continue
        for send, time in due.values():
            came = given.get((attachment.subscription, send.value), inf)
            if send.topic == attachment.topic and max(began["time"], time) + LATE_S < min(end["time"], came):
                yield Violation("T7", f"{send.value} was held back from {attachment.client}", end["n"])


def _one_calm(evidence: Evidence, began: Fact, end: Fact) -> bool:
    return evidence.calm_at(began["n"]) == evidence.calm_at(end["n"]) >= 0


def _arrives(evidence: Evidence, send: Send) -> bool:
    return send.outcome == "ok" and not send.due and evidence.counts(send.transaction, send.attempt) is True


def _last_ends(evidence: Evidence) -> Callable[[int], float]:
    """A function: when all transactions that were asked for before an event have ended, the event's own too."""
    known = sorted(evidence.transactions.values(), key=lambda t: t.asked)
    asked = [transaction.asked for transaction in known]
    places = ((transaction.deadline, transaction.ended) for transaction in known)
    ends = (min(at, evidence.times[n] if n < len(evidence.times) else inf) for at, n in places)
    last = list(accumulate(ends, max, initial=-inf))  # of so many that were asked for first
    return lambda event: last[bisect_left(asked, event)]


RULES: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    all_or_none,
    aborted,
    too_early,
    one_answer,
    final,
    late_writes,
    dropped_acks,
    made_once,
    cycles,
    names,
    held_up,
)
