"""What pages say, without a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.console.views import PAGE_ROWS, TopicLine, duration, held_by, page_of, spoken


def line(name: str, backlog: int = 0, *, rate_in: float = 0.0, rate_out: float = 0.0, consumers: int = 0) -> TopicLine:
    return TopicLine(name, 1, 0, rate_in, rate_out, backlog, 0, 0, consumers)


@pytest.mark.parametrize(
    ("topic", "lag"),
    [
        (line("a"), ""),
        (line("a", 10), "no consumer is connected"),
        (line("a", 10, consumers=1), "its consumers take nothing"),
        (line("a", 10, consumers=1, rate_in=2.0, rate_out=1.0), "more comes in than goes out"),
        (
            replace(line("a", 10, consumers=1, rate_in=2.0, rate_out=1.0), unread=("bills",)),
            "nothing is delivered to bills",
        ),
        (line("a", 600, consumers=1, rate_out=1.0), "10.0 min at this rate"),
    ],
)
def test_a_topic_says_why_it_lags(topic: TopicLine, lag: str) -> None:
    assert topic.lag == lag


def test_pages_hold_part_of_the_rows_in_the_order_asked_for() -> None:
    lines = [line(f"t{n:04}", backlog=n) for n in range(1_000)]
    first = page_of(lines)
    assert [one.backlog for one in first.rows] == list(range(999, 999 - PAGE_ROWS, -1))
    assert (first.pages, first.found) == (20, 1_000)
    assert page_of(lines, sort="name", number=99).rows[-1].topic == "t0999"
    assert [one.topic for one in page_of(lines, text="T0042").rows] == ["t0042"]
    assert page_of([]).pages == 1


def test_what_a_transaction_holds_back() -> None:
    segment = "segment://public/default/orders/0000-7fff-3"
    write = {"segment": segment, "kind": "write", "subscription": None, "records": 1, "messages": 1}
    ack = {"segment": segment, "kind": "ack", "subscription": "bills", "records": 2, "messages": 1_200}
    assert held_by({"operations": [write, ack]}) == [
        ("topic://public/default/orders", "segment 3: 1 message of its own, and what was sent behind them"),
        ("topic://public/default/orders", "segment 3: 1,200 messages that bills has acknowledged in it"),
    ]
    assert held_by({"operations": []}) == []


def test_words() -> None:
    assert [duration(s) for s in (5, 90, 7200, 172_800)] == ["5 s", "1.5 min", "2.0 h", "2.0 days"]
    assert spoken(None) == "none yet"
    assert spoken({"action": "split", "segments": [3], "reason": "rate"}) == "split of 3: rate"
