"""Rules of queue subscriptions: redelivery counts, dead letters, delayed messages.

Counts are in the server's memory, and a lost connection counts unseen deliveries: they are compared within a
calm. A killed consumer may have had messages that its user had not seen: they come back with one more as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from engine.testing.evidence import Attachment, Evidence, Fact, One, Violation

CLOCKS_APART_S = 0.05  # greatest difference between the clock of the history and that of messages
LATE_S = 10.0  # a message this long after its time is late
NOTICED_S = 2.0  # within this the broker notices that a client is dead; until then it is sent messages
Message = tuple[str, int, int]  # subscription, segment, offset


class _Given(NamedTuple):
    """The last delivery of a message."""

    event: Fact
    calm: int
    times: int


def _deliveries(evidence: Evidence) -> Iterator[tuple[Fact, Attachment, Message]]:
    for event in evidence.deliveries:
        attachment = evidence.attachments[event["attachment"]]
        if attachment.kind == "queue":
            yield event, attachment, (attachment.subscription, event["segment"], event["offset"])


def _kills(evidence: Evidence) -> dict[str, list[float]]:
    """When the server may have noticed, at the latest, that a subscription's consumers were killed."""
    kills = defaultdict[str, list[float]](list)
    for attachment in evidence.attachments.values():
        if attachment.killed and attachment.end is not None:
            kills[attachment.subscription].append(attachment.end["time"] + NOTICED_S)
    return kills


def counts(evidence: Evidence) -> Iterator[Violation]:
    """C2: a message's redelivery count is 0 first and then one more each time."""
    kills, last = _kills(evidence), dict[Message, _Given]()
    for event, _, message in _deliveries(evidence):
        if "count" not in event:
            continue
        calm, count, before = evidence.calm_at(event["n"]), event["count"], last.get(message)
        last[message] = _Given(event, calm, count)
        if calm < 0 or (calm > 0 if before is None else before.calm != calm):
            continue
        least, since = (0, 0.0) if before is None else (before.times + 1, before.event["time"])
        unseen = sum(since < noticed < event["time"] + NOTICED_S for noticed in kills[message[0]])
        if not least <= count <= least + unseen:
            expected = least if not unseen else f"{least} to {least + unseen}"
            yield Violation("C2", f"{message} was delivered with the count {count}, not {expected}", event["n"])


def too_often(evidence: Evidence) -> Iterator[Violation]:
    """C2: no message is delivered more often than its subscription allows."""
    for event, attachment, message in _deliveries(evidence):
        allowed = attachment.max_redeliveries
        if allowed is not None and event.get("count", 0) > allowed:
            yield Violation("C2", f"{message} was delivered with the count {event['count']}", event["n"])


def dead_letters(evidence: Evidence) -> Iterator[Violation]:
    """C2: a message is a dead letter once at most, behind its last allowed delivery, and as it was sent."""
    given = Counter(message for _, _, message in _deliveries(evidence))
    kills, seen = _kills(evidence), set[Message]()
    allowed = {a.subscription: a.max_redeliveries for a in evidence.attachments.values() if a.kind == "queue"}
    broken = len(evidence.calms) != 1  # counts may have grown unseen
    values = {(e.get("topic", ""), e["segment"], e["offset"]): e["value"] for e in evidence.deliveries}
    for letter in evidence.letters:
        message = (letter["subscription"], letter["segment"], letter["offset"])
        if message in seen:
            yield Violation("C2", f"{message} is a dead letter twice", letter["n"])
        seen.add(message)
        most = allowed.get(message[0])
        if most is None:
            yield Violation("C2", f"{message} is a dead letter of a subscription that has none", letter["n"])
        elif not broken and given[message] + len(kills[message[0]]) <= most:
            yield Violation("C2", f"{message} is a dead letter after {given[message]} deliveries", letter["n"])
        value = values.get((letter.get("topic", ""), *message[1:]), letter["value"])
        if letter["value"] != value:
            yield Violation("C2", f"{message} is {value}, its dead letter {letter['value']}", letter["n"])


def handed_back(evidence: Evidence) -> Iterator[Violation]:
    """C2: a message acknowledged by its holder, in time, and confirmed, is never delivered again."""
    given, done = dict[Message, _Given](), dict[Message, int]()
    returned = {(e["attachment"], e["segment"], e["offset"]): e["n"] for e in evidence.nacks}
    steps: list[tuple[int, Fact | One]] = [(event["n"], event) for event, _, _ in _deliveries(evidence)]
    steps += [(one.confirmed, one) for one in evidence.ones if one.confirmed is not None]
    for n, step in sorted(steps, key=lambda item: item[0]):
        if isinstance(step, One):
            if _held(evidence, step, given.get(step.place), returned):
                done.setdefault(step.place, n)
            continue
        attachment = evidence.attachments[step["attachment"]]
        message = (attachment.subscription, step["segment"], step["offset"])
        if message in done:
            yield Violation("C2", f"{message} was delivered again after its acknowledgement", n)
        given[message] = _Given(step, evidence.calm_at(n), 0)


def _held(evidence: Evidence, one: One, given: _Given | None, returned: dict[tuple[int, int, int], int]) -> bool:
    """Whether no other consumer could have received the message when it was acknowledged."""
    if given is None or given.event["attachment"] != one.attachment or one.confirmed is None:
        return False
    attachment, (_, segment, offset) = evidence.attachments[one.attachment], one.place
    if given.calm < 0 or given.calm != evidence.calm_at(one.confirmed):
        return False
    if attachment.ended is not None and attachment.ended < one.confirmed:
        return False
    late = attachment.ack_timeout is not None and one.time - given.event["time"] >= attachment.ack_timeout
    return not late and returned.get((one.attachment, segment, offset), -1) < given.event["n"] < one.invoked


def unfinished(evidence: Evidence) -> Iterator[Violation]:
    """C2: of a subscription that is done with, everything was acknowledged or is a dead letter."""
    done = {one.place for one in evidence.ones}
    done |= {(letter["subscription"], letter["segment"], letter["offset"]) for letter in evidence.letters}
    final = next(iter(evidence.finals.values()), [])
    for name in evidence.finished:
        topics = {a.topic for a in evidence.attachments.values() if a.subscription == name}
        for event in final:
            message = (name, event["segment"], event["offset"])
            if event.get("topic", "") in topics and message not in done:
                text = f"{message} was neither acknowledged nor is it a dead letter"
                yield Violation("C2", text, evidence.drained[name])


def early(evidence: Evidence) -> Iterator[Violation]:
    """DELAY: a queue is given nothing before its time."""
    for event, _, message in _deliveries(evidence):
        send = evidence.sends.get(event["value"])
        if send is not None and event["time"] < send.due - CLOCKS_APART_S:
            yield Violation("DELAY", f"{message} was delivered {send.due - event['time']:.3f} s early", event["n"])


def late(evidence: Evidence) -> Iterator[Violation]:
    """DELAY: a queue with a consumer all the time delivers a message soon after its time."""
    given: dict[tuple[str, str], float] = {}
    for event, attachment, _ in _deliveries(evidence):
        given.setdefault((attachment.subscription, event["value"]), event["time"])
    for number, attachment in evidence.attachments.items():
        began, end = attachment.began, attachment.end
        if attachment.kind != "queue" or began is None or end is None or not _is_calm(evidence, began, end):
            continue
        for send in evidence.sends.values():
            if send.outcome != "ok" or not send.due or send.topic != attachment.topic:
                continue
            if not evidence.counts(send.transaction, send.attempt):
                continue
            if max(began["time"], send.due) + LATE_S < min(
                end["time"], given.get((attachment.subscription, send.value), inf)
            ):
                text = (
                    f"{send.value} was due while {attachment.client} (attachment {number}) was there, and did not come"
                )
                yield Violation("DELAY", text, end["n"])


def _is_calm(evidence: Evidence, first: Fact, last: Fact) -> bool:
    return evidence.calm_at(first["n"]) == evidence.calm_at(last["n"]) >= 0


RULES: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    counts,
    too_often,
    dead_letters,
    handed_back,
    unfinished,
    early,
    late,
)
