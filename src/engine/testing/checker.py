"""Checks a history against the rules, knowing nothing of the broker but what clients did and saw.

Each rule is a function of the evidence. The first line of its docstring names the rule and says what must hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from engine.testing import queue_rules, sharing_rules, transaction_rules
from engine.testing.evidence import Evidence, Fact, Place, Send, Violation, place_of
from engine.testing.gathering import gather
from engine.testing.reach import Buckets, Reach

RING_END = 0xFFFF
_VIOLATIONS_SHOWN = 20


Rule = Callable[[Evidence], Iterator[Violation]]


def lost(evidence: Evidence) -> Iterator[Violation]:
    """D1: an acknowledged message is in every final reading, at the position acknowledged; one of a transaction, if
    that is known to be committed.
    """
    for reading, events in evidence.finals.items():
        at = {event["value"]: place_of(event) for event in events}
        for send in evidence.sends.values():
            if send.outcome != "ok" or not evidence.counts(send.transaction, send.attempt):
                continue
            if send.value not in at:
                yield Violation("D1", f"acknowledged {send.value} is not in reading {reading}", send.ended)
            elif send.offset >= 0 and at[send.value][1:] != (send.segment, send.offset):
                where = f"{send.segment}:{send.offset}"
                yield Violation("D1", f"{send.value} was acknowledged at {where}, read at {at[send.value]}", send.ended)


def _seen(evidence: Evidence) -> Iterator[Fact]:
    yield from evidence.deliveries
    for events in evidence.finals.values():
        yield from events


def phantom(evidence: Evidence) -> Iterator[Violation]:
    """D2: every message seen was sent, and its send is not known to have failed."""
    for event in _seen(evidence):
        send = evidence.sends.get(event["value"])
        if send is None:
            yield Violation("D2", f"{event['value']} was never sent", event["n"])
        elif send.outcome == "fail":
            yield Violation("D2", f"{event['value']} was reported as not sent", event["n"])
        elif send.key != event.get("key"):
            yield Violation("D2", f"{event['value']} was sent under {send.key}, seen under {event['key']}", event["n"])


def duplicate(evidence: Evidence) -> Iterator[Violation]:
    """D3: a value is at one position only."""
    for reading, events in evidence.finals.items():
        seen: dict[str, Place] = {}
        for event in events:
            if event["value"] in seen:
                text = f"reading {reading}: {event['value']} is at {seen[event['value']]} and {place_of(event)}"
                yield Violation("D3", text, event["n"])
            seen[event["value"]] = place_of(event)


def disagreement(evidence: Evidence) -> Iterator[Violation]:
    """D4: a position holds one value for every reader, and every final reading is the same."""
    held: dict[Place, str] = {}
    for event in _seen(evidence):
        value = held.setdefault(place_of(event), event["value"])
        if value != event["value"]:
            yield Violation("D4", f"{place_of(event)} holds {value} and {event['value']}", event["n"])
    for send in evidence.sends.values():
        place = (send.topic, send.segment, send.offset)
        if send.outcome == "ok" and send.offset >= 0 and held.get(place, send.value) != send.value:
            yield Violation("D4", f"{send.value} was acknowledged at {place}, which holds {held[place]}", send.ended)
    readings = [(reading, {place_of(e): e["value"] for e in events}) for reading, events in evidence.finals.items()]
    for (first, one), (second, other) in pairwise(readings):
        if one != other:
            differ = sorted(one.items() ^ other.items())[:4]
            at = max((e["n"] for e in evidence.finals[second]), default=0)
            yield Violation("D4", f"readings {first} and {second} differ: {differ}", at)


def _overtaken(evidence: Evidence, events: list[Fact]) -> Iterator[tuple[Fact, Send, Send]]:
    """(event, its send, the send before it) of each event that came before an earlier send of its client, topic and
    key.
    """
    last: dict[tuple[str, str, str], Send] = {}
    for event in events:
        send = evidence.sends.get(event["value"])
        if send is None or send.key is None:
            continue
        before = last.get((send.topic, send.client, send.key))
        if before is not None and before.invoked > send.invoked:
            yield event, send, before
        last[send.topic, send.client, send.key] = send


def key_order(evidence: Evidence) -> Iterator[Violation]:
    """O1: what one client sent under one key is read in the order it was sent."""
    for events in evidence.finals.values():
        for event, send, before in _overtaken(evidence, events):
            yield Violation("O1", f"{send.value} is read behind {before.value}", event["n"])


def delivered_key_order(evidence: Evidence) -> Iterator[Violation]:
    """O1 for a stream subscription, over all of its consumers: first deliveries in send order."""
    firsts: dict[str, dict[str, Fact]] = defaultdict(dict)
    for event in evidence.deliveries:
        attachment = evidence.attachments[event["attachment"]]
        if attachment.kind == "stream":
            firsts[attachment.subscription].setdefault(event["value"], event)
    for name, given in firsts.items():
        for event, send, before in _overtaken(evidence, list(given.values())):
            yield Violation("O1", f"{name} was given {send.value} behind {before.value}", event["n"])


def delivery_order(evidence: Evidence) -> Iterator[Violation]:
    """O2: a stream consumer sees a segment without gaps, rising, from earliest; a shared one bucket by bucket.

    A consumer that attaches to it, or attaches again, starts at or before the furthest acknowledgement issued.
    """
    buckets, given = Buckets(evidence), defaultdict[tuple[int, int], dict[int, int]](dict)
    reaches = {name: Reach(acks) for name, acks in evidence.acks_issued.items()}
    for event in evidence.deliveries:
        attachment = evidence.attachments[event["attachment"]]
        if attachment.kind != "stream":
            continue
        segment, offset = int(event["segment"]), int(event["offset"])
        place = int(event.get("place", segment))
        reach = reaches.setdefault(attachment.subscription, Reach([]))
        reach.advance(event["n"])
        here = given[event["attachment"], segment]  # offset -> event of its last delivery
        again = here.get(offset, -1)  # what comes again comes behind what came again before it
        here[offset] = event["n"]
        for missed in buckets.below(segment, place, offset):
            if here.get(missed, -1) > again or missed < reach.upto(segment):
                break
            if evidence.hidden(attachment.topic, segment, missed):
                continue
            if missed >= reach.upto(segment, buckets.place(segment, missed)):
                came = "starts" if len(here) == 1 else "jumps"
                where = f"{segment}:{offset}; acknowledged is only up to {reach.upto(segment)}, not {missed}"
                yield Violation("O2", f"{attachment.client} {came} at {where}", event["n"])
                break


def ack_regression(evidence: Evidence) -> Iterator[Violation]:
    """C1: a consumer that attaches after a cumulative ack was confirmed does not receive what it covers."""
    buckets, covered = Buckets(evidence), dict[int, Reach]()
    for event in evidence.deliveries:
        attachment = evidence.attachments[event["attachment"]]
        segment, offset, name = event["segment"], event["offset"], attachment.subscription
        if event["attachment"] not in covered:
            reach = covered[event["attachment"]] = Reach(evidence.acks_confirmed[name])
            reach.advance(attachment.invoked)
        upto = covered[event["attachment"]].upto(segment, buckets.place(segment, offset))
        if offset < upto and attachment.kind == "stream":
            text = f"{segment}:{offset} delivered again; {name} had acknowledged up to {upto}"
            yield Violation("C1", text, event["n"])


def redelivered_after_ack(evidence: Evidence) -> Iterator[Violation]:
    """C2: a consumer that attaches after an individual ack was confirmed does not receive that message."""
    for event in evidence.deliveries:
        attachment = evidence.attachments[event["attachment"]]
        place = (attachment.subscription, event["segment"], event["offset"])
        confirmed = evidence.ones_confirmed.get(place)
        if attachment.kind == "queue" and confirmed is not None and confirmed < attachment.invoked:
            yield Violation("C2", f"{place} delivered again after its acknowledgement", event["n"])


def never_delivered(evidence: Evidence) -> Iterator[Violation]:
    """C2: a drained subscription was given everything that the final readings show, but for its dead letters: some of
    these a killed consumer had each time, unseen by its user.
    """
    for subscription, drained in evidence.drained.items():
        ours = {n for n, a in evidence.attachments.items() if a.subscription == subscription}
        given = {event["value"] for event in evidence.deliveries if event["attachment"] in ours}
        given |= {letter["value"] for letter in evidence.letters if letter["subscription"] == subscription}
        topics = {evidence.attachments[n].topic for n in ours}
        for events in list(evidence.finals.values())[:1]:
            for event in events:
                if event["value"] not in given and event.get("topic", "") in topics:
                    yield Violation("C2", f"{subscription} was never given {event['value']}", drained)


def _chains(evidence: Evidence) -> Iterator[tuple[int, list[Fact]]]:
    """Each life of a checkpoint consumer, with all that it and those before it were given up to its checkpoint."""
    chains: dict[int, list[Fact]] = {}
    for number, attachment in evidence.attachments.items():
        if attachment.kind == "reader":
            before = evidence.checkpoints.get(attachment.resumes)
            kept = [] if before is None else [e for e in chains[before["attachment"]] if e["n"] < before["n"]]
            chains[number] = kept + [e for e in evidence.deliveries if e["attachment"] == number]
    yield from chains.items()


def checkpoints(evidence: Evidence) -> Iterator[Violation]:
    """C3: from a checkpoint on comes what follows it, in each key's order, and nothing of what was before it."""
    for number, events in _chains(evidence):
        name = evidence.attachments[number].client
        places: set[Place] = set()
        for event in events:
            if place_of(event) in places:
                yield Violation("C3", f"{name} was given {event['value']} twice", event["n"])
            places.add(place_of(event))
        for event, send, before in _overtaken(evidence, events):
            yield Violation("C3", f"{name} was given {send.value} behind {before.value}", event["n"])


def complete_checkpoints(evidence: Evidence) -> Iterator[Violation]:
    """C3: a reader that reached the end received everything, in its last life and those that it continues."""
    final = next(iter(evidence.finals.values()), [])
    ends = {evidence.attachments[number].subscription: (number, events) for number, events in _chains(evidence)}
    for subscription, (number, events) in ends.items():
        given = {place_of(event) for event in events}
        topic = evidence.attachments[number].topic
        for event in final if subscription in evidence.drained else []:
            if event.get("topic", "") == topic and place_of(event) not in given:
                yield Violation("C3", f"{subscription} was never given {event['value']}", event["n"])


def tiling(evidence: Evidence) -> Iterator[Violation]:
    """G1: the active ranges tile the ring; an epoch means one layout, and a sealed segment stays so."""
    known: dict[tuple[str, int], list[Fact]] = {}
    for event in sorted(evidence.layouts, key=lambda e: e["epoch"]):
        active = sorted((s["start"], s["end"]) for s in event["segments"] if s["state"] == "ACTIVE")
        ends = [-1, *(end for _, end in active)]
        starts = [*(start for start, _ in active), RING_END + 1]
        if any(end + 1 != start for end, start in zip(ends, starts, strict=True)):
            yield Violation("G1", f"epoch {event['epoch']}: active ranges {active} do not tile the ring", event["n"])
        shape = sorted(event["segments"], key=lambda s: int(s["id"]))
        if known.setdefault((event.get("topic", ""), event["epoch"]), shape) != shape:
            yield Violation("G1", f"epoch {event['epoch']} names two layouts", event["n"])


def segment_life(evidence: Evidence) -> Iterator[Violation]:
    """G2: ACTIVE, then SEALED, then gone; a range never changes; an id is never used again."""
    seen: dict[tuple[str, int], tuple[Fact, int]] = {}
    for event in sorted(evidence.layouts, key=lambda e: e["epoch"]):
        for segment in event["segments"]:
            name = (event.get("topic", ""), segment["id"])
            before, _ = seen.get(name, (segment, 0))
            if before["state"] == "SEALED" and segment["state"] == "ACTIVE":
                yield Violation("G2", f"segment {name} became active again", event["n"])
            if (before["start"], before["end"]) != (segment["start"], segment["end"]):
                yield Violation("G2", f"segment {name} changed its range", event["n"])
            seen[name] = (segment, event["epoch"])


def progress(evidence: Evidence) -> Iterator[Violation]:
    """L2: an operation requested after all faults are healed succeeds."""
    for event in evidence.stalled.values():
        text = f"{event['client']}: {event['what']} since all is healed: {event.get('error', 'no answer')}"
        yield Violation("L2", text, event["n"])


RULES: tuple[Rule, ...] = (
    lost,
    phantom,
    duplicate,
    disagreement,
    key_order,
    delivered_key_order,
    delivery_order,
    ack_regression,
    redelivered_after_ack,
    never_delivered,
    *queue_rules.RULES,
    *sharing_rules.RULES,
    *transaction_rules.RULES,
    checkpoints,
    complete_checkpoints,
    tiling,
    segment_life,
    progress,
)


def check(events: list[Fact]) -> list[Violation]:
    """All violations in the history, in the order of the events."""
    evidence = gather(events)
    found = [violation for rule in RULES for violation in rule(evidence)]
    return sorted(found, key=lambda violation: violation.event)


def describe(violations: list[Violation]) -> str:
    """The first violations, one per line."""
    lines = [str(violation) for violation in violations[:_VIOLATIONS_SHOWN]]
    more = len(violations) - len(lines)
    return "\n".join([*lines, f"and {more} more"] if more > 0 else lines)
