"""Every rule of the checker flags a planted history, and a good history passes all of them."""

from __future__ import annotations

import copy

import pytest

from engine.model.positions import bucket_position
from engine.testing.checker import check, describe
from engine.testing.history import History, load, parse_value, value_of


def good() -> History:
    """Six sends under two keys, a stream subscription over two lives, a queue, two final readings, two layouts."""
    ticks = iter(range(10_000))
    history = History(lambda: next(ticks))
    for i in range(6):
        call = history.invoke("p", "send", value=f"v{i}", key=f"k{i % 2}")
        call.ok(segment=0, offset=i)
    unknown = history.invoke("p", "send", value="v6", key="k0")
    unknown.info("timeout")
    failed = history.invoke("p", "send", value="v7", key="k0")
    failed.fail("too large")
    attach(history, "c1", 0, 4, ack=3)
    attach(history, "c2", 3, 7, ack=7)
    history.record("c2", "drained", subscription="s")
    queue = history.invoke("q", "attach", subscription="q", kind="queue")
    queue.ok()
    deliver(history, "q", queue.number, 0)
    history.invoke("q", "ack_one", subscription="q", segment=0, offset=0).ok()
    for reading in (1, 2):
        for i in range(7):
            history.record("f", "final", reading=reading, value=f"v{i}", key=f"k{i % 2}", segment=0, offset=i)
    whole = {"id": 0, "start": 0, "end": 0xFFFF}
    history.record("a", "layout", epoch=0, segments=[{**whole, "state": "ACTIVE"}])
    children = [{"id": 1, "start": 0, "end": 0x7FFF}, {"id": 2, "start": 0x8000, "end": 0xFFFF}]
    split = [{**whole, "state": "SEALED"}, *({**child, "state": "ACTIVE"} for child in children)]
    history.record("a", "layout", epoch=1, segments=split)
    return history


def attach(history, client, start, stop, ack):
    call = history.invoke(client, "attach", subscription="s", kind="stream")
    call.ok()
    for i in range(start, stop):
        deliver(history, client, call.number, i)
    history.invoke(client, "ack", subscription="s", positions={"0": ack}).ok()


def deliver(history, client, attachment, i):
    history.record(client, "deliver", attachment=attachment, value=f"v{i}", key=f"k{i % 2}", segment=0, offset=i)


def rules_of(history):
    return {violation.rule for violation in check(history.events)}


def events(history, what, phase="ok"):
    return [event for event in history.events if (event["what"], event["phase"]) == (what, phase)]


def drop(history, doomed):
    history.events = [event for event in history.events if event is not doomed]


def test_a_good_history_passes():
    history = good()
    assert check(history.events) == []


def test_d1_a_lost_message_is_flagged():
    history = good()
    for event in events(history, "final"):
        if event["value"] == "v5":
            drop(history, event)
    assert rules_of(history) == {"D1"}


def test_d1_a_message_at_another_place_than_acknowledged_is_flagged():
    history = good()
    events(history, "send")[2]["offset"] = 9
    assert "D1" in rules_of(history)


def test_d2_a_phantom_is_flagged():
    history = good()
    for event in events(history, "final"):
        if event["value"] == "v6":
            event["value"] = "never"
    assert "D2" in rules_of(history)


def test_d2_a_message_whose_send_failed_is_flagged():
    history = good()
    for event in [*events(history, "final"), *events(history, "deliver")]:
        if event["value"] == "v6":
            event["value"] = "v7"
    assert rules_of(history) == {"D2"}


def test_d2_another_key_than_sent_is_flagged():
    history = good()
    events(history, "deliver")[0]["key"] = "other"
    assert rules_of(history) == {"D2"}


def test_d3_a_duplicate_is_flagged():
    history = good()
    for reading in (1, 2):
        history.record("f", "final", reading=reading, value="v6", key="k0", segment=0, offset=7)
    assert rules_of(history) == {"D3"}


def test_d4_two_values_at_a_position_are_flagged():
    history = good()
    first, second = [event for event in events(history, "final") if event["reading"] == 2][:2]
    first["value"], second["value"] = second["value"], first["value"]
    assert "D4" in rules_of(history)


def test_d4_readings_that_differ_are_flagged():
    history = good()
    drop(history, [event for event in events(history, "final") if event["value"] == "v6"][-1])
    assert rules_of(history) == {"D4"}


def test_o1_key_order_is_checked():
    history = good()
    sends = events(history, "send", "invoke")
    sends[0]["n"], sends[4]["n"] = sends[4]["n"], sends[0]["n"]
    assert "O1" in rules_of(history)


def test_o1_a_later_message_given_first_is_flagged():
    history = good()
    first, third = events(history, "deliver")[0], events(history, "deliver")[2]
    first["n"], third["n"] = third["n"], first["n"]
    first["segment"] = 1  # as if the child were read before its parent
    history.events.sort(key=lambda event: event["n"])
    assert "O1" in rules_of(history)


def test_o1_a_second_delivery_is_no_disorder():
    history = good()
    attach(history, "c3", 0, 3, ack=3)
    assert "O1" not in rules_of(history)


def test_o2_a_gap_is_flagged():
    history = good()
    drop(history, events(history, "deliver")[2])
    assert rules_of(history) == {"O2", "C2"}


def test_o2_a_start_behind_what_was_acknowledged_is_flagged():
    history = good()
    for event in events(history, "deliver"):
        if event["client"] == "c2" and event["offset"] == 3:
            drop(history, event)
    assert rules_of(history) == {"O2"}


def test_c1_delivery_of_what_was_confirmed_is_flagged():
    history = good()
    acks = events(history, "ack", "invoke")
    acks[0]["positions"]["0"] = 4
    assert rules_of(history) == {"C1"}


def test_c1_an_unconfirmed_ack_may_be_forgotten():
    history = good()
    events(history, "ack", "invoke")[0]["positions"]["0"] = 4
    drop(history, events(history, "ack")[0])
    assert check(history.events) == []


def test_c2_a_queue_message_after_its_ack_is_flagged():
    history = good()
    again = history.invoke("q2", "attach", subscription="q", kind="queue")
    again.ok()
    deliver(history, "q2", again.number, 0)
    assert rules_of(history) == {"C2"}


def test_c2_a_message_that_a_drained_subscription_never_got_is_flagged():
    history = good()
    history.record("q", "drained", subscription="q")
    assert rules_of(history) == {"C2"}


def reader(history, first, second):
    """Two lives of a checkpoint consumer that is read to the end; the second goes on from the end of the first."""
    one = history.invoke("r", "attach", subscription="r", kind="reader", resumes=-1)
    for i in first:
        deliver(history, "r", one.number, i)
    resumes = history.record("r", "checkpoint", attachment=one.number)
    other = history.invoke("r", "attach", subscription="r", kind="reader", resumes=resumes)
    deliver(history, "r", one.number, 6)  # behind the checkpoint: not the second life's
    for i in second:
        deliver(history, "r", other.number, i)
    history.record("r", "drained", subscription="r")
    return {(violation.rule, violation.text.split()[-1]) for violation in check(history.events)}


def test_c3_what_follows_a_checkpoint_passes():
    assert reader(good(), range(3), range(3, 7)) == set()


def test_c3_a_message_that_comes_again_after_a_checkpoint_is_flagged():
    assert ("C3", "twice") in reader(good(), range(3), range(2, 7))


def test_c3_a_message_that_is_left_out_after_a_checkpoint_is_flagged():
    assert reader(good(), range(3), range(4, 7)) >= {("C3", "v3")}


def test_c3_an_order_across_a_checkpoint_is_flagged():
    assert ("C3", "v2") in reader(good(), [1, 2, 3], [0, 4, 5, 6])


def test_g1_a_hole_in_the_ring_is_flagged():
    history = good()
    events(history, "layout")[1]["segments"][2]["start"] = 0x8001
    assert rules_of(history) == {"G1"}


def test_g1_two_layouts_of_one_epoch_are_flagged():
    history = good()
    other = copy.deepcopy(events(history, "layout")[0])
    other["segments"][0]["id"] = 9
    history.events.append({**other, "n": len(history.events)})
    assert "G1" in rules_of(history)


def test_g2_a_segment_that_comes_back_is_flagged():
    history = good()
    first = copy.deepcopy(events(history, "layout")[0])
    history.events.append({**first, "n": len(history.events), "epoch": 2})
    assert rules_of(history) == {"G2"}


def test_l2_calls_that_fail_after_healing_are_flagged():
    history = good()
    late = history.invoke("c", "ack", subscription="s", positions={"0": 1})
    history.record("nemesis", "healed")
    late.info("begun before")
    history.invoke("c", "ack", subscription="s", positions={"0": 1}).ok()
    assert check(history.events) == []
    history.invoke("c", "ack", subscription="s", positions={"0": 1}).info("still fenced")
    history.invoke("c", "ack", subscription="s", positions={"0": 1})
    assert [violation.rule for violation in check(history.events)] == ["L2", "L2"]


def test_a_history_travels_as_lines():
    lines: list[str] = []
    history = History(lambda: 0.0, lines.append)
    history.invoke("p", "send", value="v", key=None).ok(segment=0, offset=0)
    assert load(lines) == history.events
    assert load([*lines, '{"torn']) == history.events


@pytest.mark.parametrize("key", [None, "k", "ü"])
def test_values_name_their_origin(key):
    value = value_of("c", 7, key, 100)
    assert len(value) == 100
    assert parse_value(value) == ("c", 7, key)


def test_a_description_is_bounded():
    history = good()
    history.events = [event for event in history.events if event["what"] != "final"]
    for i in range(50):
        history.record("f", "final", reading=1, value=f"x{i}", key=None, segment=0, offset=100 + i)
    text = describe(check(history.events))
    assert text.count("\n") == 20
    assert "more" in text


def test_d1_a_reading_that_shows_nothing_is_flagged():
    history = good()
    history.record("f", "reading", reading=3)
    assert rules_of(history) == {"D1", "D4"}


# A segment that is shared: offsets 0, 2, 4 are in one bucket, 1, 3, 5 in the other.


def sharing(*given: int, acks: dict[int, int] | None = None) -> History:
    """One sharer is given these offsets after another one acknowledged so far in each bucket."""
    ticks = iter(range(10_000))
    history = History(lambda: next(ticks))
    before = history.invoke("c1", "attach", subscription="s", kind="stream")
    before.ok()
    for i in range(6):
        share(history, "c1", before.number, i)
    positions = {str(bucket_position(0, bucket)): position for bucket, position in (acks or {}).items()}
    history.invoke("c1", "ack", subscription="s", positions=positions).ok()
    after = history.invoke("c2", "attach", subscription="s", kind="stream")
    after.ok()
    for i in given:
        share(history, "c2", after.number, i)
    return history


def share(history: History, client: str, attachment: int, i: int) -> None:
    deliver(history, client, attachment, i)
    history.events[-1]["place"] = bucket_position(0, i % 2)


def order_and_acks(history: History) -> set[str]:
    return rules_of(history) & {"O2", "C1"}


@pytest.mark.parametrize("given", [(), (0, 1, 2), (0, 2, 4, 1), (1, 3, 0, 5), (0, 0, 2)])
def test_a_sharer_may_be_given_its_buckets_in_any_order_of_buckets(given: tuple[int, ...]) -> None:
    assert order_and_acks(sharing(*given)) == set()


@pytest.mark.parametrize("given", [(2,), (0, 4), (1, 0, 5), (0, 2, 1, 5)])
def test_o2_a_bucket_is_given_without_gaps(given: tuple[int, ...]) -> None:
    assert order_and_acks(sharing(*given)) == {"O2"}


def test_o2_a_bucket_may_begin_where_it_is_acknowledged() -> None:
    assert order_and_acks(sharing(4, 1, acks={0: 4})) == set()
    assert order_and_acks(sharing(4, 3, acks={0: 4})) == {"O2"}


def test_c1_what_is_acknowledged_in_a_bucket_is_not_given_again() -> None:
    assert order_and_acks(sharing(2, acks={0: 4})) == {"C1"}
    assert order_and_acks(sharing(1, acks={0: 4})) == set()


def test_who_reads_alone_later_skips_what_sharers_acknowledged() -> None:
    for given, broken in (((1, 3, 4, 5), set()), ((1, 2, 3), {"C1"}), ((3,), {"O2"})):
        history = sharing(acks={0: 4})
        alone = history.invoke("c3", "attach", subscription="s", kind="stream")
        alone.ok()
        for i in given:
            deliver(history, "c3", alone.number, i)
        assert order_and_acks(history) == broken
