"""`engine dead-letters`: what was given up, why, and back again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engine as public

Run = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A data directory whose queue has given up jobs 1 and 3 of 4, for two reasons."""
    path = str(tmp_path / "data")
    with public.open(path) as e:
        with e.producer("jobs") as producer:
            for n in range(4):
                producer.send(b"%d" % n, key=b"k", properties={"n": str(n)}, event_time=1_000 + n)
        policy = public.DeadLetter(max_redeliveries=0)
        jobs = e.queue_consumer("jobs", "workers", initial_position="earliest", dead_letter=policy)

        def work(message: public.Message) -> None:
            if message.value == b"1":
                raise ConnectionError("no route")
            if message.value == b"3":
                jobs.close()
                raise ValueError("bad job")

        jobs.run(work)
        with e.queue_consumer("jobs-DLQ", "watch", initial_position="earliest") as watch:
            for _ in range(2):
                assert watch.receive(60) is not None
    return path


@pytest.mark.parametrize("target", [None, "topic://bank/core/transfers"])
def test_a_letter_does_not_choose_a_topic_of_another_namespace(engine: Run, data: str, target: str | None):
    """It is written by whatever may produce there, and sent back with the rights of what redrives it."""
    secret = "topic://bank/core/transfers"
    with public.open(data) as e:
        e.admin.create_topic(secret)
        with e.producer("jobs-DLQ") as producer:
            producer.send(b"forged", properties={"origin-topic": secret})
    to = () if target is None else ("--to", target)
    result = engine("dead-letters", "redrive", "jobs-DLQ", "--data", data, "--yes", *to)
    with public.open(data) as e:
        after = e.admin.get_stats(secret)["segments"]["0"]["nextOffset"]
    assert (result.code, after) == ((1, 0) if target is None else (0, 3))
    if target is None:
        assert f"names {secret}, which is in another namespace: name a topic with --to" in result.err


def listed(engine: Run, data: str) -> list[Any]:
    found: list[Any] = json.loads(engine("dead-letters", "list", "jobs-DLQ", "--data", data, "--json").out)
    return found


def test_list_and_show_name_the_reason_and_the_place(engine: Run, data: str):
    found = {letter["reason"]: letter for letter in listed(engine, data)}
    assert set(found) == {"ConnectionError: no route", "ValueError: bad job"}
    letter = found["ValueError: bad job"]
    assert (letter["topic"], letter["message"], letter["key"]) == ("topic://public/default/jobs", "0:3", "k")
    assert letter["raisedAt"].endswith(" in work")
    table = engine("dead-letters", "list", "jobs-DLQ", "--data", data).out
    assert "ConnectionError: no route" in table
    shown = engine("dead-letters", "show", "jobs-DLQ", letter["letter"], "--data", data, "--json")
    assert json.loads(shown.out)["value"] == "3"
    assert json.loads(shown.out)["properties"] == {"n": "3"}
    assert "bad job" in engine("dead-letters", "show", "jobs-DLQ", letter["letter"], "--data", data).out
    assert len(listed(engine, data)) == 2, "looking changes nothing"


def test_redrive_sends_back_once_what_was_chosen_as_it_was(engine: Run, data: str):
    back = engine("dead-letters", "redrive", "jobs-DLQ", "--reason", "Connection", "--yes", "--data", data)
    assert (back.code, back.err.strip()) == (0, "1 letter sent back")
    (left,) = listed(engine, data)
    assert left["reason"] == "ValueError: bad job"
    again = engine("dead-letters", "redrive", "jobs-DLQ", left["letter"], "--yes", "--to", "other", "--data", data)
    assert (again.code, "there is no topic" in again.err) == (1, True)
    assert len(listed(engine, data)) == 1, "and it stays"
    with public.open(data) as e, e.queue_consumer("jobs", "workers") as jobs:
        message = jobs.receive(60)
        assert message is not None
        assert (message.value, message.key, message.event_time_ms) == (b"1", b"k", 1_001)
        assert message.properties == {"n": "1"}
        assert jobs.receive(0.05) is None, "once, and the others are acknowledged"
    assert engine("dead-letters", "redrive", "jobs-DLQ", "--yes", "--data", data).err.strip() == "1 letter sent back"
    assert listed(engine, data) == []


def test_what_is_wrong_is_said(engine: Run, data: str):
    missing = engine("dead-letters", "show", "jobs-DLQ", "0:99", "--data", data)
    assert (missing.code, "has no letter 0:99" in missing.err) == (1, True)
    assert "SEGMENT:OFFSET" in engine("dead-letters", "show", "jobs-DLQ", "x", "--data", data).err
    nothing = engine("dead-letters", "list", "none-DLQ", "--data", data)
    assert (nothing.code, "must be a dead-letter topic" in nothing.err) == (1, True)
