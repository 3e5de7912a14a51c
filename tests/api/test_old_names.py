"""Names that are refused from now on: nothing is made by them, and what has one is listed, used and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
import engine.control.service
from engine.errors import InvalidArgumentError
from engine.model.names import TopicName

OLD = "-rf *\u202ecafe\u0301"
FULL = f"topic://public/default/{OLD}"


@contextmanager
def before_the_rules() -> Iterator[None]:
    """A build that lets everything be made that can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicName, "check_new", lambda self: None)
        patch.setattr(engine.control.service, "check_new_name", lambda name, what, pattern=True: name)
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a topic and a subscription of that name, and messages of it."""
    with before_the_rules(), engine.open(tmp_path / "data") as e:
        e.admin.create_topic(OLD)
        e.admin.create_subscription(OLD, OLD, initial_position="earliest")
        with e.producer(OLD) as p:
            p.send(b"one")
    return tmp_path / "data"


def test_an_old_topic_is_used_and_deleted(data: Path) -> None:
    with engine.open(data) as e:
        assert e.list_topics("public/default") == [FULL]
        assert e.admin.get_metadata(OLD)["segments"]
        assert list(e.admin.get_stats(OLD)["subscriptions"]) == [OLD]
        with e.producer(FULL) as p:
            p.send(b"two")
        with e.stream_consumer(OLD, OLD) as c:
            messages = [c.receive(timeout=20.0) for _ in range(2)]
            assert [m.value for m in messages if m] == [b"one", b"two"]
            c.acknowledge_cumulative(messages[-1])
        e.admin.seek_subscription(OLD, OLD, "earliest")
        with e.checkpoint_consumer(OLD, start=engine.Checkpoint.earliest()) as c:
            assert c.receive(timeout=20.0) is not None
        e.admin.split_segment(OLD, 0)
        e.admin.delete_subscription(OLD, OLD)
        e.admin.delete_topic(OLD)
        assert e.list_topics("public/default") == []
        with pytest.raises(InvalidArgumentError, match="the name of a new topic"):
            e.admin.create_topic(OLD)


def test_queues_and_dead_letters_of_an_old_topic(data: Path) -> None:
    with engine.open(data) as e:
        e.admin.delete_subscription(OLD, OLD)
        policy = engine.DeadLetter(max_redeliveries=0)
        with e.queue_consumer(OLD, "q", initial_position="earliest", dead_letter=policy) as c:
            message = c.receive(timeout=20.0)
            assert message is not None
            c.negative_acknowledge(message)
            with e.checkpoint_consumer(f"{OLD}-DLQ", start=engine.Checkpoint.earliest()) as dead:
                moved = dead.receive(timeout=20.0)
                assert moved is not None
                assert moved.value == b"one"


def uses(e: Any, topic: str) -> list[Any]:
    return [
        lambda: e.admin.create_topic(topic),
        lambda: e.producer(topic),
        lambda: e.stream_consumer(topic, "s"),
        lambda: e.queue_consumer(topic, "s"),
        lambda: e.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()),
        lambda: e.stream_consumer(["good", topic], "s"),
    ]


@pytest.mark.parametrize("topic", ["a b", "orders.*", "^orders", "-rf", "a\u202eb", "cafe\u0301", "no-DLQ\u200d-DLQ"])
def test_no_topic_is_made_by_such_a_name(blocking: engine.Client, topic: str) -> None:
    for use in uses(blocking, topic):
        with pytest.raises(InvalidArgumentError, match="the name of a new topic must"):
            use()
    assert blocking.list_topics("public/default") in ([], ["topic://public/default/good"])


def test_what_looks_like_a_pattern_is_told_of_patterns(blocking: engine.Client) -> None:
    with pytest.raises(InvalidArgumentError, match=r"namespace=…, pattern=…"):
        blocking.stream_consumer("orders-*", "s")


@pytest.mark.parametrize("name", ["a b", "-s", "a\u202eb", "cafe\u0301"])
def test_no_subscription_consumer_or_producer_has_such_a_name(blocking: engine.Client, name: str) -> None:
    blocking.admin.create_topic("t")
    uses = [
        lambda: blocking.admin.create_subscription("t", name),
        lambda: blocking.stream_consumer("t", name),
        lambda: blocking.queue_consumer("t", name),
        lambda: blocking.producer("t", name=name),
        lambda: blocking.stream_consumer("t", "s", name=name),
        lambda: blocking.queue_consumer("t", "s", name=name),
        lambda: blocking.checkpoint_consumer("t", start=engine.Checkpoint.earliest(), group=name),
    ]
    for use in uses:
        with pytest.raises(InvalidArgumentError, match="the name of a new"):
            use()
    assert not blocking.admin.get_stats("t")["subscriptions"]
    with pytest.raises(InvalidArgumentError, match="property"):
        blocking.admin.create_topic("u", properties={"a\x1b": ""})
