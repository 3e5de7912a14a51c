"""The assignment of a stream subscription, while nothing breaks: one owner at a time, of a segment or a bucket.

Only deliveries within one calm are compared: a broken connection takes away what its consumer holds, and the history
does not say when the server notices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.testing.evidence import Evidence, Violation
from engine.testing.reach import Buckets, Reach


class _Hold(NamedTuple):
    """The last that an attachment was given at a place."""

    offset: int
    calm: int


Holds = dict[int, dict[int, _Hold]]  # by place and attachment


def one_owner(evidence: Evidence) -> Iterator[Violation]:
    """C4: no consumer receives a message while another live one holds messages of its bucket, or of its segment.

    To hold is to have been given it, with no acknowledgement asked for that covers it.
    """
    buckets, held = Buckets(evidence), defaultdict[tuple[str, int], Holds](dict)
    reaches = {name: Reach(acks) for name, acks in evidence.acks_issued.items()}
    for event in evidence.deliveries:
        number, calm = event["attachment"], evidence.calm_at(event["n"])
        attachment, segment, offset = evidence.attachments[number], int(event["segment"]), int(event["offset"])
        if attachment.kind != "stream":
            continue
        place, name = int(event.get("place", segment)), attachment.subscription
        reach = reaches.setdefault(name, Reach([]))
        reach.advance(event["n"])
        holds = held[name, segment]
        for other, at in _others(holds, segment, place, number):
            hold = holds[at][other]
            ended = evidence.attachments[other].ended
            alive = hold.calm == calm >= 0 and (ended is None or ended > event["n"])
            if alive and hold.offset >= reach.upto(segment, buckets.place(segment, hold.offset)):
                reader, holder = attachment.client, evidence.attachments[other].client
                text = f"{reader} was given {segment}:{offset} of {name} while {holder} held {segment}:{hold.offset}"
                yield Violation("C4", text, event["n"])
        holds.setdefault(place, {})[number] = _Hold(offset, calm)


def _others(holds: Holds, segment: int, place: int, number: int) -> Iterator[tuple[int, int]]:
    """(attachment, place) of all others with anything that this place is a part of, or that is part of it."""
    for at in list(holds) if place == segment else [p for p in (segment, place) if p in holds]:
        for other in holds[at]:
            if other != number:
                yield other, at


def one_bucket(evidence: Evidence) -> Iterator[Violation]:
    """C4: a key of a shared segment is in one of its buckets, over all receivers."""
    places: dict[tuple[str, int, str], int] = {}
    for event in evidence.deliveries:
        segment, key = int(event["segment"]), event.get("key")
        place = int(event.get("place", segment))
        if key is None or place == segment:
            continue
        before = places.setdefault((event.get("topic", ""), segment, key), place)
        if before != place:
            yield Violation("C4", f"{key} of segment {segment} is in the buckets {before} and {place}", event["n"])


RULES: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (one_owner, one_bucket)
