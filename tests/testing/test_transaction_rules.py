"""Every rule about transactions flags a planted history, and a good one passes: T1 to T7, names, attempts, order."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.testing.checker import check
from engine.testing.evidence import Answer, Evidence, Transaction
from engine.testing.history import Call, History
from engine.testing.transaction_rules import _last_ends

TIMEOUT_S = 20.0


class Story:
    """A history that tells itself; its clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)
        self._offset = 0

    def begin(self, number: str, state: str = "OPEN", **fields: Any) -> None:
        call = self.history.invoke("t", "txn_begin", timeout=TIMEOUT_S, **fields)
        call.ok(transaction=number, state=state)

    def send(self, value: str, number: str | None = None, outcome: str = "ok", **fields: Any) -> int:
        """Its offset."""
        inside = {} if number is None else {"transaction": number}
        call = self.history.invoke("p", "send", value=value, key=None, topic="t", **inside, **fields)
        offset, self._offset = self._offset, self._offset + 1
        call.ok(segment=0, offset=offset) if outcome == "ok" else call.info("lost")
        return offset

    def ask(self, number: str, action: str, **fields: Any) -> Call:
        return self.history.invoke("t", "txn_end", transaction=number, action=action, **fields)

    def commit(self, number: str, **fields: Any) -> None:
        self.ask(number, "commit", **fields).ok(state="COMMITTED")

    def abort(self, number: str) -> None:
        self.ask(number, "abort").ok(state="ABORTED")

    def told(self, number: str, state: str) -> None:
        self.history.record("t", "txn_state", transaction=number, state=state)

    def reads(self, number: str, value: str) -> None:
        self.history.record("t", "txn_read", transaction=number, value=value)

    def attach(self, client: str = "c", kind: str = "stream", subscription: str = "s") -> Call:
        call = self.history.invoke(client, "attach", subscription=subscription, kind=kind, topic="t")
        call.ok()
        return call

    def deliver(self, to: Call, value: str, offset: int, client: str = "c") -> None:
        where = {"segment": 0, "offset": offset, "topic": "t"}
        self.history.record(client, "deliver", attachment=to.number, value=value, key=None, **where)

    def ack(self, position: int, number: str | None = None, client: str = "c") -> None:
        inside = {} if number is None else {"transaction": number}
        self.history.invoke(client, "ack", subscription="s", positions={"0": position}, **inside).ok()

    def ack_one(self, by: Call, offset: int, number: str | None = None, client: str = "c") -> None:
        inside = {"attachment": by.number} if number is None else {"attachment": by.number, "transaction": number}
        self.history.invoke(client, "ack_one", subscription="s", segment=0, offset=offset, **inside).ok()

    def drained(self, **fields: Any) -> None:
        self.history.record("c", "drained", subscription="s", **fields)

    def final(self, shown: dict[int, str], topic: str = "t") -> None:
        """Two readings that show these."""
        for reading in (1, 2):
            self.history.record("f", "reading", reading=reading)
            for offset, value in shown.items():
                where = {"segment": 0, "offset": offset, "topic": topic}
                self.history.record("f", "final", reading=reading, value=value, key=None, **where)

    def rules(self) -> set[str]:
        return {violation.rule for violation in check(self.history.events)}


def good() -> Story:
    """One transaction is committed and read by another, which is aborted; what follows is read behind the hole."""
    story = Story()
    story.begin("a")
    for value in ("a0", "a1"):
        story.send(value, "a")
    story.commit("a")
    story.begin("b")
    one = story.attach()
    story.deliver(one, "a0", 0)
    story.reads("b", "a0")
    story.ack(1, "b")
    story.send("b0", "b")
    story.abort("b")
    story.told("b", "ABORTED")
    story.send("p0")
    other = story.attach("d")
    for value, offset in (("a0", 0), ("a1", 1), ("p0", 3)):
        story.deliver(other, value, offset, "d")
    story.ack(4, client="d")
    story.drained()
    story.final({0: "a0", 1: "a1", 3: "p0"})
    return story


def test_a_good_history_passes() -> None:
    assert check(good().history.events) == []


@pytest.mark.parametrize("answer", ["lost", "known", "told"])
def test_t1_a_torn_transaction_is_flagged(answer: str) -> None:
    story = Story()
    story.begin("a")
    for value in ("a0", "a1"):
        story.send(value, "a")
    end = story.ask("a", "commit")
    end.ok(state="COMMITTED") if answer == "known" else end.info("lost")
    if answer == "told":
        story.told("a", "COMMITTED")
    story.final({0: "a0"})
    assert story.rules() == ({"T1"} if answer == "lost" else {"D1"})


def test_t1_an_unknown_commit_shows_all_or_nothing() -> None:
    for shown in ({}, {0: "a0", 1: "a1"}):
        story = Story()
        story.begin("a")
        for value in ("a0", "a1"):
            story.send(value, "a")
        story.ask("a", "commit").info("lost")
        story.final(shown)
        assert story.rules() == set()


def test_t1_what_was_not_acknowledged_may_be_missing() -> None:
    story = Story()
    story.begin("a")
    story.send("a0", "a")
    story.send("a1", "a", "info")
    story.ask("a", "commit").info("lost")
    story.final({0: "a0"})
    assert story.rules() == set()


def seen_in(state: str | None, final: bool) -> set[str]:
    """A message of a transaction that was ended so is read by somebody."""
    story = Story()
    story.begin("a")
    story.send("a0", "a")
    if state is not None:
        story.abort("a") if state == "abort" else story.commit("a")
    if final:
        story.final({0: "a0"})
    else:
        story.deliver(story.attach(), "a0", 0)
    return story.rules()


@pytest.mark.parametrize("final", [True, False])
def test_t2_a_read_of_an_aborted_write_is_flagged(final: bool) -> None:
    assert seen_in("abort", final) == {"T2", "T3"}
    assert seen_in("commit", final) == set()


def test_t2_a_read_of_an_attempt_that_does_not_count_is_flagged() -> None:
    for shown, rules in (({0: "a0", 1: "b0"}, {"T2"}), ({0: "a0"}, set()), ({}, {"D1"})):
        story = Story()
        story.begin("a", name="epoch-1")
        story.send("a0", "a", attempt="task-0")
        story.send("b0", "a", attempt="task-1")
        story.commit("a", accepted=["task-0"])
        story.final(shown)
        assert story.rules() == rules


def test_t3_a_read_before_the_commit_was_asked_for_is_flagged() -> None:
    assert seen_in(None, final=False) == {"T3"}
    story = Story()
    story.begin("a")
    story.send("a0", "a")
    story.deliver(story.attach(), "a0", 0)
    story.commit("a")
    story.final({0: "a0"})
    assert story.rules() == {"T3"}


def test_t3_a_read_while_the_commit_is_on_its_way_is_none_too_early() -> None:
    story = Story()
    story.begin("a")
    story.send("a0", "a")
    end = story.ask("a", "commit")
    story.deliver(story.attach(), "a0", 0)
    end.ok(state="COMMITTED")
    assert story.rules() == set()


def test_t4_one_that_is_open_again_is_flagged() -> None:
    story = good()
    story.told("a", "OPEN")
    assert story.rules() == {"T4"}


def test_t4_an_answer_that_was_on_its_way_is_not_flagged() -> None:
    story = Story()
    asked = story.history.invoke("u", "txn_state")
    story.begin("a")
    story.commit("a")
    asked.ok(transaction="a", state="OPEN")
    assert story.rules() == set()


def test_t5_a_write_that_is_taken_behind_the_end_is_flagged() -> None:
    story = good()
    story.send("b9", "b")
    assert story.rules() == {"T5"}


def test_t5_an_acknowledgement_that_is_taken_behind_the_end_is_flagged() -> None:
    story = good()
    story.ack(2, "b", "d")
    assert story.rules() == {"T5"}


def test_t6_two_answers_are_flagged() -> None:
    story = good()
    story.told("a", "ABORTED")
    assert story.rules() == {"T6"}


def drained_behind(outcome: str, *, again: bool, kind: str = "stream") -> set[str]:
    """A message is acknowledged in a transaction; the subscription is read to its end, with that message or not."""
    story = Story()
    for value in ("p0", "p1"):
        story.send(value)
    one = story.attach(kind=kind)
    story.deliver(one, "p0", 0)
    story.begin("a")
    story.ack(1, "a") if kind == "stream" else story.ack_one(one, 0, "a")
    story.abort("a") if outcome == "abort" else story.commit("a")
    other = story.attach(kind=kind)
    for value, offset in (("p0", 0), ("p1", 1))[0 if again else 1 :]:
        story.deliver(other, value, offset)
        story.ack(offset + 1) if kind == "stream" else story.ack_one(other, offset)
    story.drained(**({"finished": True} if kind == "queue" else {}))
    story.final({0: "p0", 1: "p1"})
    return story.rules()


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_t1_an_acknowledgement_that_was_aborted_and_has_an_effect_is_flagged(kind: str) -> None:
    assert drained_behind("abort", again=True, kind=kind) == set()
    assert "T1" in drained_behind("abort", again=False, kind=kind)


def test_c1_c2_an_acknowledgement_that_was_committed_and_has_none_is_flagged() -> None:
    for kind, rule in (("stream", "C1"), ("queue", "C2")):
        assert drained_behind("commit", again=False, kind=kind) == set()
        assert rule in drained_behind("commit", again=True, kind=kind)


def test_t1_what_was_made_of_a_message_twice_or_not_at_all_is_flagged() -> None:
    for made, rules in ((1, set()), (2, {"T1"}), (0, {"T1"})):
        story = Story()
        story.send("p0")
        story.deliver(story.attach(), "p0", 0)
        for number in range(made):
            call = story.history.invoke("m", "send", value=f"m{number}", key=None, topic="out", source="p0")
            call.ok(segment=0, offset=number)
        story.drained(made="out")
        story.history.record("f", "reading", reading=1)
        for number in range(made):
            story.history.record(
                "f", "final", reading=1, value=f"m{number}", key=None, topic="out", segment=0, offset=number
            )
        story.history.record("f", "final", reading=1, value="p0", key=None, topic="t", segment=0, offset=0)
        assert story.rules() == rules, made


def test_two_that_have_read_each_other_are_flagged() -> None:
    story = Story()
    for number in "ab":
        story.begin(number)
        story.send(f"{number}0", number)
    story.reads("a", "b0")
    story.reads("b", "a0")
    for number in "ab":
        story.commit(number)
    story.final({0: "a0", 1: "b0"})
    assert story.rules() == {"CYCLE"}


def test_one_that_has_read_what_was_begun_behind_its_end_is_flagged() -> None:
    story = Story()
    story.begin("a")
    story.commit("a")
    story.begin("b")
    story.send("b0", "b")
    story.commit("b")
    story.reads("a", "b0")
    assert story.rules() == {"CYCLE"}


def test_a_chain_of_readers_is_no_cycle() -> None:
    story = Story()
    for number, before in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
        story.begin(number)
        story.send(f"{number}0", number)
        if before is not None:
            story.reads(number, f"{before}0")
        story.commit(number)
    assert story.rules() == set()


def test_two_committed_transactions_of_one_name_are_flagged() -> None:
    story = Story()
    for number in "ab":
        story.begin(number, name="epoch-1")
    for number in "ab":
        story.commit(number)
    assert story.rules() == {"NAMED"}


def test_a_name_that_is_begun_anew_when_it_was_committed_is_flagged() -> None:
    for number, rules in (("a", set()), ("b", {"NAMED"})):
        story = Story()
        story.begin("a", name="epoch-1")
        story.commit("a")
        story.begin(number, "COMMITTED" if number == "a" else "OPEN", name="epoch-1")
        assert story.rules() == rules


def test_a_name_whose_transaction_was_aborted_is_free() -> None:
    story = Story()
    story.begin("a", name="epoch-1")
    story.abort("a")
    story.begin("b", name="epoch-1")
    story.commit("b")
    assert story.rules() == set()


@pytest.mark.parametrize(("reads_s", "rules"), [(TIMEOUT_S + 5, set()), (TIMEOUT_S + 11, {"T7"})])
@pytest.mark.parametrize("kind", ["queue", "reader"])
def test_t7_a_message_held_back_beyond_the_timeout_of_a_forgotten_transaction_is_flagged(
    kind: str, reads_s: float, rules: set[str]
) -> None:
    story = Story()
    calm = story.history.invoke("nemesis", "calm")
    one = story.attach(kind=kind)
    story.begin("a")
    story.send("a0", "a")
    offset = story.send("p0")
    story.now = reads_s
    story.deliver(one, "p0", offset)
    story.history.record("c", "detach", attachment=one.number)
    calm.ok()
    assert story.rules() == rules


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 25), st.floats(0, 30)), max_size=8))
def test_the_last_end_is_that_of_all_that_were_asked_for_before(drawn: list[tuple[int, int, float]]):
    known = {
        str(i): Transaction(str(i), asked=asked, deadline=deadline, answers=[Answer(end, "ABORTED", asked)])
        for i, (asked, end, deadline) in enumerate(drawn)
    }
    evidence = Evidence(transactions=known, times=[1.5 * n for n in range(21)])
    found = _last_ends(evidence)
    for event in range(22):
        before = [t for t in known.values() if t.asked < event]
        ends = [min(t.deadline, evidence.times[t.ended] if t.ended < 21 else inf) for t in before]
        assert found(event) == max(ends, default=-inf)
