"""Why a topic is behind and whom to ask, the time line of auto-scale, and what a person may do: without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from engine.broker.rights.need import Need
from engine.client.admin.exposition import Metrics
from engine.console.acts import ACTS, May
from engine.console.views import TopicLine, causes, namespace_lines, owner_of, pools, timeline
from engine.model.rights import Right

TOPIC = "topic://public/default/orders"
FIELDS: dict[str, dict[str, Any]] = {
    "split": {"topic": TOPIC, "segment": 1},
    "merge": {"topic": TOPIC, "segment": 1, "other": 2},
    "skip-backlog": {"topic": TOPIC, "subscription": "bills"},
    "rewind": {"topic": TOPIC, "subscription": "bills"},
    "delete-subscription": {"topic": TOPIC, "subscription": "bills"},
    "abort": {"transaction": "0000000000000001"},
    "drain": {"broker": "engine://192.0.2.1:6650"},
    "undrain": {"broker": "engine://192.0.2.1:6650"},
    "redrive": {"topic": f"{TOPIC}-DLQ", "letters": "all"},
}


def consumer(connected: bool = True, unacked: int = 0) -> dict[str, Any]:
    return {"connected": connected, "unackedMessages": unacked, "msgRateOut": 0.0, "segments": [0]}


def stats(
    *,
    backlog: int = 100,
    rate_out: float = 0.0,
    rate_in: float = 0.0,
    delayed: int = 0,
    consumers: dict[str, Any] | None = None,
    held: str | None = None,
    drain: bool = False,
    limits: dict[str, Any] | None = None,
) -> Any:
    bills = {"backlog": backlog, "msgRateOut": rate_out, "delayed": delayed, "consumers": consumers or {}}
    bills["segmentSharing"] = {"7": {"drain": drain}}
    return {
        "msgRateIn": rate_in, "msgRateOut": rate_out, "bytesRateOut": 0.0, "limits": limits or {},
        "segments": {"0": {"unavailable": None, "heldBackBy": held}}, "subscriptions": {"bills": bills},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (stats(backlog=0), []),
        (stats(backlog=6, consumers={"a": consumer(unacked=6)}, rate_in=4_000.0, rate_out=4_000.0), []),
        (stats(), ["bills: no consumer is connected"]),
        (stats(consumers={"a": consumer(connected=False)}), ["bills: no consumer is connected"]),
        (stats(consumers={"a": consumer()}), ["bills: its consumers take nothing: a"]),
        (
            stats(consumers={"a": consumer(unacked=40)}),
            ["bills: consumers have messages that they do not acknowledge: a (40)"],
        ),
        (
            stats(consumers={"a": consumer(unacked=100)}, rate_out=5.0),
            ["bills: consumers have messages that they do not acknowledge: a (100)"],
        ),
        (stats(consumers={"a": consumer()}, delayed=100), ["bills: its messages are delayed until their time"]),
        (
            stats(consumers={"a": consumer(unacked=7)}, rate_in=20.0, rate_out=10.0),
            ["bills: more comes in (20/s) than goes out (10/s); not acknowledged yet: a (7)"],
        ),
        (stats(consumers={"a": consumer()}, rate_out=10.0), ["bills: it is read in 10 s at this rate"]),
        (
            stats(consumers={"a": consumer()}, held="00000000000000ab", drain=True),
            [
                "bills: its consumers take nothing: a",
                "bills: what follows segment 7 is delivered when all of it is acknowledged",
                "readers of segment 0 wait for transaction 00000000000000ab",
            ],
        ),
        (
            stats(
                consumers={"a": consumer()},
                rate_in=20.0,
                rate_out=9.5,
                limits={"dispatch_messages_per_s": {"value": 10, "origin": "public"}},
            ),
            [
                "bills: more comes in (20/s) than goes out (10/s)",
                "the limit dispatch_messages_per_s of 10 (of public) holds what goes out",
            ],
        ),
    ],
)
def test_a_topic_says_why_it_is_behind(seen: Any, said: list[str]) -> None:
    assert causes(seen) == said


def test_whom_to_ask_is_a_property() -> None:
    assert owner_of({"contact": "b", "owner": "a"}) == "a"
    assert owner_of({"contact": "b", "owner": ""}) == "b"
    assert owner_of({"colour": "red"}) == ""


def test_the_time_line_says_what_was_done_and_what_was_not() -> None:
    one = {"action": "split", "segments": [3], "reason": "rate", "suppressed": [], "times": 1, "atMs": 0, "lastMs": 0}
    cause = {"rate": "msg_rate_in", "value": 12_000.0, "threshold": 10_000.0}
    done = {**one, "cause": cause, "changed": True, "failure": None}
    failed = {**one, "cause": None, "changed": False, "failure": "no disk", "times": 3, "lastMs": 61_000}
    held = {**one, "action": "nothing", "segments": [], "reason": "split_cooldown", "cause": None, "changed": False}
    held |= {"failure": None, "suppressed": ["split_cooldown", "max_segments"]}
    rows = timeline([done, failed, held])
    assert [row.kind for row in rows] == ["changed", "failed", "held"]
    assert rows[0].text == "split of 3: rate; msg_rate_in is 12,000, above 10,000"
    assert rows[1].note == "no disk; 3 times until 1970-01-01 00:01:01"
    assert rows[2].text == "nothing: split_cooldown; held back by max_segments"


def test_namespaces_have_the_sums_of_their_topics() -> None:
    lines = [TopicLine(f"topic://a/b/{n}", 2, 1, 1.0, 2.0, 3, 4, 0, 0) for n in range(5)]
    first, second = namespace_lines(["a/c"], lines)
    assert (first.name, first.topics, first.segments, first.rate_in, first.backlog, first.stored) == (
        "a/b", 5, 5, 5.0, 15, 20,
    )  # fmt: skip
    assert (second.name, second.topics) == ("a/c", 0)


def test_pools_have_their_limits() -> None:
    text = (
        'engine_memory_pool_used_bytes{pool="publish"} 5\nengine_memory_pool_limit_bytes{pool="publish"} 10\n'
        'engine_pool_used{pool="lookups"} 1\nengine_pool_limit{pool="lookups"} 3\n'
        'engine_pool_queue_size{pool="lookups"} 2\nengine_pool_refused_total{pool="lookups"} 7\n'
    )
    publish, lookups = pools(Metrics(text))
    assert (publish.name, publish.used, publish.limit, publish.size) == ("publish", 5, 10, True)
    assert (lookups.limit, lookups.waiting, lookups.refused, lookups.size) == (3, 2, 7, False)


def told(*rights: str, prefixes: list[str] | None = None) -> May:
    return May({"role": "ann", "rights": rights, "subscriptionPrefixes": prefixes})


def test_each_act_is_of_an_operation_and_asks_for_its_right() -> None:
    assert set(FIELDS) == set(ACTS)
    superuser = told(*(str(right) for right in Right if right is not Right.BROKER))
    for name, fields in FIELDS.items():
        assert superuser.act(name, fields)
        assert May(None).act(name, fields)
        assert not told("lookup").act(name, fields)
    assert [name for name in FIELDS if told("consume", "lookup").act(name, FIELDS[name])] == [
        "skip-backlog", "rewind", "delete-subscription", "redrive",
    ]  # fmt: skip
    assert [name for name in FIELDS if told("operate").act(name, FIELDS[name])] == ["abort", "drain", "undrain"]
    prefixed = told("consume", "lookup", prefixes=["mine-"])
    assert not prefixed.act("rewind", FIELDS["rewind"])
    assert prefixed.act("rewind", {"topic": TOPIC, "subscription": "mine-1"})
    assert not superuser.act("rewind", {"topic": "topic://", "subscription": "s"})
    assert prefixed.read(TOPIC)
    assert not told("produce", "lookup").read(TOPIC)
    assert told().holds(Need(0))
