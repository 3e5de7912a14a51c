"""Every rule about groups flags a planted history, and a good history passes: owners, counts, dead letters, delays."""

from __future__ import annotations

from typing import Any

import pytest

from engine.model.positions import bucket_position
from engine.testing.checker import check
from engine.testing.history import Call, History


class Story:
    """A history that tells itself; its clock is set by hand."""

    def __init__(self, calm: bool = True) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)
        self.calm = self.history.invoke("nemesis", "calm") if calm else None

    def send(self, offset: int, key: str | None = None, **fields: Any) -> None:
        call = self.history.invoke("p", "send", value=f"v{offset}", key=key, topic="t", **fields)
        call.ok(segment=0, offset=offset)

    def attach(self, client: str, kind: str = "stream", **fields: Any) -> Call:
        call = self.history.invoke(client, "attach", subscription="s", kind=kind, topic="t", **fields)
        call.ok()
        return call

    def deliver(self, to: Call, offset: int, key: str | None = None, **fields: Any) -> None:
        where = {"segment": 0, "offset": offset, "topic": "t"}
        self.history.record("c", "deliver", attachment=to.number, value=f"v{offset}", key=key, **where, **fields)

    def ack(self, positions: dict[int, int]) -> None:
        said = {str(place): position for place, position in positions.items()}
        self.history.invoke("c", "ack", subscription="s", positions=said).ok()

    def ack_one(self, by: Call, offset: int) -> None:
        where = {"segment": 0, "offset": offset}
        self.history.invoke("c", "ack_one", subscription="s", attachment=by.number, **where).ok()

    def detach(self, call: Call, **fields: Any) -> None:
        self.history.record("c", "detach", attachment=call.number, **fields)

    def rules(self) -> set[str]:
        return {violation.rule for violation in check(self.history.events)}


ZERO, ONE = bucket_position(0, 0), bucket_position(0, 1)


def handover(before: int, after: int, *, acked: bool = False, left: bool = False, calm: bool = True) -> set[str]:
    """One is given a message at a place, another the next one at another place."""
    story = Story(calm)
    for offset in (0, 1):
        story.send(offset)
    one, other = story.attach("c1"), story.attach("c2")
    story.deliver(one, 0, place=before)
    if acked:
        story.ack({before: 1})
    if left:
        story.detach(one)
    story.deliver(other, 1, place=after)
    return story.rules() & {"C4"}


@pytest.mark.parametrize(("before", "after"), [(ZERO, ZERO), (0, ZERO), (ZERO, 0), (0, 0)])
def test_c4_a_message_for_another_one_while_its_bucket_is_held_is_flagged(before: int, after: int) -> None:
    assert handover(before, after) == {"C4"}
    assert handover(before, after, acked=True) == set()
    assert handover(before, after, left=True) == set()
    assert handover(before, after, calm=False) == set()


def test_c4_two_buckets_have_two_owners() -> None:
    assert handover(ZERO, ONE) == set()


@pytest.mark.parametrize(("place", "rules"), [(ZERO, set()), (ONE, {"C4"})])
def test_c4_a_key_is_in_one_bucket(place: int, rules: set[str]) -> None:
    story = Story()
    one = story.attach("c1")
    for offset, at in ((0, ZERO), (1, place)):
        story.send(offset, "k")
        story.deliver(one, offset, "k", place=at)
    assert story.rules() == rules


def queue(*counts: int, killed: bool = False, **options: Any) -> Story:
    """A message is given to one consumer after the other, with these counts."""
    story = Story()
    story.send(0)
    for count in counts:
        story.now += 5
        consumer = story.attach("q", "queue", **options)
        story.deliver(consumer, 0, count=count)
        story.detach(consumer, killed=killed)
    return story


@pytest.mark.parametrize("counts", [(1,), (0, 0), (0, 2), (0, 1, 1)])
def test_c2_a_count_that_is_not_one_more_is_flagged(counts: tuple[int, ...]) -> None:
    assert queue(*counts).rules() == {"C2"}


def test_c2_counts_grow_by_one_or_by_one_more_for_each_that_was_killed() -> None:
    assert queue(0, 1, 2).rules() == set()
    assert queue(0, 2, killed=True).rules() == set()
    assert queue(0, 3, killed=True).rules() == {"C2"}


def test_c2_a_delivery_beyond_what_is_allowed_is_flagged() -> None:
    assert queue(0, 1, 2, max_redeliveries=2).rules() == set()
    assert queue(0, 1, 2, max_redeliveries=1).rules() == {"C2"}


def letter(story: Story, value: str = "v0") -> None:
    story.history.record("f", "letter", subscription="s", topic="t", segment=0, offset=0, value=value)


def test_c2_a_dead_letter_comes_once_and_behind_the_last_delivery() -> None:
    story = queue(0, 1, max_redeliveries=1)
    letter(story)
    assert story.rules() == set()
    letter(story)
    assert story.rules() == {"C2"}
    story = queue(0, max_redeliveries=1)
    letter(story)
    assert story.rules() == {"C2"}


def test_c2_a_dead_letter_is_what_was_sent() -> None:
    story = queue(0, 1, max_redeliveries=1)
    letter(story, "v1")
    assert story.rules() == {"C2"}


@pytest.mark.parametrize(("waited", "nacked", "rules"), [(1, False, {"C2"}), (9, False, set()), (1, True, set())])
def test_c2_what_its_holder_acknowledged_in_time_never_comes_again(waited: int, nacked: bool, rules: set[str]) -> None:
    story = Story()
    story.send(0)
    one, other = story.attach("q1", "queue", ack_timeout=5), story.attach("q2", "queue", ack_timeout=5)
    story.deliver(one, 0, count=0)
    if nacked:
        story.history.record("q1", "nack", attachment=one.number, segment=0, offset=0)
    story.now += waited
    story.ack_one(one, 0)
    story.deliver(other, 0, count=1)
    assert story.rules() == rules


def test_c2_of_a_finished_subscription_everything_is_acknowledged_or_a_dead_letter() -> None:
    for end in ("nothing", "ack", "letter"):
        story = queue(0, 1, max_redeliveries=1)
        consumer = story.attach("q", "queue", max_redeliveries=1)
        if end == "ack":
            story.ack_one(consumer, 0)
        story.history.record("q", "drained", subscription="s", finished=True)
        story.history.record("f", "final", reading=1, topic="t", value="v0", key=None, segment=0, offset=0)
        if end == "letter":
            letter(story)
        assert story.rules() == ({"C2"} if end == "nothing" else set())


@pytest.mark.parametrize(("at", "rules"), [(1.0, {"DELAY"}), (2.0, set()), (5.0, set()), (20.0, {"DELAY"})])
def test_delay_a_message_that_is_early_or_late_is_flagged(at: float, rules: set[str]) -> None:
    story = Story()
    story.send(0, after=2.0)
    consumer = story.attach("q", "queue")
    story.now = at
    story.deliver(consumer, 0, count=0)
    story.now = 30.0
    story.detach(consumer)
    assert story.rules() == rules


def test_delay_nobody_has_to_deliver_to_who_is_not_there() -> None:
    story = Story()
    story.send(0, after=2.0)
    story.now = 30.0
    story.deliver(story.attach("q", "queue"), 0, count=0)
    assert story.rules() == set()
