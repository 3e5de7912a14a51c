"""Bad input of every kind: a typed error, through the awaitable and not before."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import engine

NO_SECONDS = (math.nan, math.inf, -1, -0.001, 1e300, "1", [], True)
NO_COUNT = (0, -1, 1.5, math.nan, "1", True, 10**30)
NO_TOPIC = (3, None, "", "a/b", "x" * 300, "a b/c", "topic://", b"t", "t\0", "/t", "t/")
NO_QUERY: list[dict[str, Any]] = [{"pattern": "("}, {"pattern": b"a"}, {"properties": {"a": 1}}, {"properties": ["a"]}]
NO_TOPICS: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    ([], {}),
    (["a", "b/c"], {}),
    (["a", None], {}),
    (b"a", {}),
    ("a", {"namespace": "a/b"}),
    ("a", {"properties": {"a": "b"}}),
    (["a"], {"pattern": "a"}),
    (None, {"namespace": "a"}),
    *[(None, {"namespace": "a/b", **query}) for query in NO_QUERY],
]
NO_NAME = (3, "", "a/b", "x" * 300, b"s")


async def refused(error: type[Exception], call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
    """The call raises nothing, awaiting it does."""
    awaitable = call(*args, **options)
    with pytest.raises(error):
        await awaitable


async def test_what_a_producer_refuses(client: engine.AsyncClient):
    for topic in NO_TOPIC:
        await refused(engine.InvalidArgumentError, client.producer, topic)
    for name, values in {
        "name": NO_NAME,
        "access_mode": (3, []),
        "batching": (1, False, True, {}),
        "compression": (3, [], None, "gzip"),
        "send_timeout": (*NO_SECONDS, None),
        "max_pending_bytes": (1.5, 1),
        "initial_sequence_id": (1.5, -2, 2**63 - 1),
        "on_error": (3,),
        "properties": ([1], {"a": 1}),
    }.items():
        for value in values:
            await refused(engine.InvalidArgumentError, client.producer, "t", **{name: value})


async def test_what_a_send_refuses(client: engine.AsyncClient):
    producer = await client.producer("t")
    for value in ("x", 3, None):
        await refused(engine.InvalidArgumentError, producer.send, value)
    for name, values in {
        "key": (3, "\ud800"),
        "properties": (3, {1: 2}),
        "event_time": (datetime.now(), "x", 1.5, 2**70),
        "sequence_id": (-1, 1.0, True, 2**63),
    }.items():
        for value in values:
            await refused(engine.InvalidArgumentError, producer.send, b"", **{name: value})
    for too_large in ({"value": bytes(5 << 20) + b"x"}, {"value": b"", "key": bytes(65_537)}):
        await refused(engine.MessageTooLargeError, producer.send, **too_large)
    for values in (3, None, "abc", [3], ["a"], [None]):
        await refused(engine.InvalidArgumentError, producer.send_batch, values)
    await refused(engine.InvalidArgumentError, producer.send_batch, [b"a"], keys=[b"a", b"b"])


async def test_what_a_delay_cannot_be(client: engine.AsyncClient):
    producer = await client.producer("t")
    for option in (
        {"deliver_at": datetime.now()},
        {"deliver_at": "noon"},
        {"deliver_at": 2**70},
        {"deliver_after": -1.0},
        {"deliver_after": "1"},
        {"deliver_after": float("nan")},
        {"deliver_at": datetime.now(UTC), "deliver_after": 1.0},
    ):
        await refused(engine.InvalidArgumentError, producer.send, b"", **option)
        with pytest.raises(engine.InvalidArgumentError, match="deliver_a"):
            producer.send_nowait(b"", **option)


async def test_what_consumers_refuse(client: engine.AsyncClient):
    for topic in NO_TOPIC:
        await refused(engine.InvalidArgumentError, client.stream_consumer, topic, "s")
        await refused(engine.InvalidArgumentError, client.checkpoint_consumer, topic)
    for name in NO_NAME:
        await refused(engine.InvalidArgumentError, client.stream_consumer, "t", name)
        await refused(engine.InvalidArgumentError, client.queue_consumer, "t", "s", name=name)
    await refused(engine.InvalidArgumentError, client.queue_consumer, "t", None)
    for size in NO_COUNT:
        await refused(engine.InvalidArgumentError, client.checkpoint_consumer, "t", receive_queue_size=size)
    for make in (client.stream_consumer, client.queue_consumer):
        for topic, options in NO_TOPICS:
            await refused(engine.InvalidArgumentError, make, topic, "s", **options)


async def test_what_topic_lists_refuse(client: engine.AsyncClient):
    for call in (client.list_topics, client.watch_topics):
        for namespace in (None, "", "a", "a/b/c", 1):
            await refused(engine.InvalidArgumentError, call, namespace)
        for options in NO_QUERY:
            await refused(engine.InvalidArgumentError, call, "a/b", **options)
    async with await client.watch_topics("a/b") as watch:
        for timeout in NO_SECONDS:
            await refused(engine.InvalidArgumentError, watch.next_change, timeout)


@pytest.mark.parametrize("kind", ["stream_consumer", "queue_consumer", "checkpoint_consumer"])
async def test_what_a_receive_refuses(client: engine.AsyncClient, kind: str):
    args = ("t",) if kind == "checkpoint_consumer" else ("t", "s")
    consumer = await getattr(client, kind)(*args)
    waiting = await getattr(client, kind)(*[f"{arg}-waiting" for arg in args])
    async with await client.producer("t-waiting") as producer:
        await producer.send_batch([b"1", b"2"])
    assert (await waiting.receive(timeout=10)).value == b"1"
    for timeout in NO_SECONDS:
        for receive in (consumer.receive, waiting.receive):
            await refused(engine.InvalidArgumentError, receive, timeout)
        await refused(engine.InvalidArgumentError, waiting.receive_batch, timeout=timeout)
        await refused(engine.InvalidArgumentError, consumer.receive_batch, timeout=timeout)
    for count in NO_COUNT:
        await refused(engine.InvalidArgumentError, consumer.receive_batch, count, timeout=0)
        await refused(engine.InvalidArgumentError, consumer.receive_batch, max_bytes=count, timeout=0)
    assert await consumer.receive(timeout=0) is None
    assert (await waiting.receive(timeout=10)).value == b"2"


async def test_everything_refuses_after_close(client: engine.AsyncClient):
    producer = await client.producer("t")
    stream = await client.stream_consumer("t", "s")
    queue = await client.queue_consumer("t", "q")
    reader = await client.checkpoint_consumer("t")
    mid = await producer.send(b"x")
    for one in (producer, stream, queue, reader):
        assert "closed" not in repr(one)
        await one.close()
        await one.close()
        assert repr(one).endswith("of topic://public/default/t (closed)>")
    for call, *args in (
        (producer.send, b""),
        (producer.send_batch, [b""]),
        (producer.flush,),
        (producer.writable,),
        (stream.receive,),
        (stream.acknowledge_cumulative, mid),
        (queue.acknowledge, mid),
        (queue.negative_acknowledge, mid),
        (reader.checkpoint,),
        (reader.seek, engine.Checkpoint.latest()),
    ):
        await refused(engine.AlreadyClosedError, call, *args)
    with pytest.raises(engine.AlreadyClosedError):
        producer.send_nowait(b"")


async def test_negative_acknowledge_checks_its_delay(client: engine.AsyncClient):
    consumer = await client.queue_consumer("t", "s")
    for delay in NO_SECONDS:
        await refused(engine.InvalidArgumentError, consumer.negative_acknowledge, engine.MessageId(0, 0), delay=delay)


@pytest.mark.parametrize(
    "make",
    [
        lambda: engine.AsyncClient("engine://a", token=3),  # type: ignore[arg-type]
        lambda: engine.AsyncClient("engine://a", token="as a file ends\n"),
        lambda: engine.AsyncClient("engine://a", tls=3),  # type: ignore[arg-type]
        lambda: engine.AsyncClient("engine://a", operation_timeout=math.nan),
        lambda: engine.AsyncClient(3),  # type: ignore[arg-type]
        lambda: engine.open(3),  # type: ignore[arg-type]
        lambda: engine.open(None),  # type: ignore[arg-type]
    ],
)
def test_what_a_client_refuses(make: Callable[[], object]):
    with pytest.raises(engine.InvalidArgumentError):
        make()


async def test_messages_are_copied_for_nothing_and_not_pickled(client: engine.AsyncClient):
    producer = await client.producer("t")
    reader = await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest())
    await producer.send(b"x", key=b"k")
    batch = await reader.receive_batch()
    for one in (batch, batch[0]):
        assert copy.copy(one) is one
        assert copy.deepcopy([one])[0] is one
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(one)
    assert pickle.loads(pickle.dumps(batch.last_id)) == batch.last_id
    for make in (engine.Message, lambda: engine.Message.__new__(engine.Message)):
        with pytest.raises(TypeError, match="received, not made"):
            make()
    empty = engine.MessageBatch.__new__(engine.MessageBatch)
    assert (len(empty), empty.last_id, empty.values, empty.positions) == (0, None, [], {})


def test_what_a_blocking_receive_refuses(blocking: engine.Client):
    with blocking.stream_consumer("t", "s") as consumer, blocking.producer("t") as producer:
        producer.send_batch([b"1", b"2"])
        assert consumer.receive(timeout=10).value == b"1"
        for timeout in NO_SECONDS:
            for receive in (consumer.receive, consumer.receive_batch):
                with pytest.raises(engine.InvalidArgumentError):
                    receive(timeout=timeout)
        assert consumer.receive(timeout=0).value == b"2"


def test_a_blocking_send_on_the_loops_own_thread_is_refused_instead_of_hanging(tmp_path: Path):
    """As in an on_error."""
    with engine.open(tmp_path / "data") as e, e.producer("t") as producer:
        for call in (producer.send, producer.send_batch):
            with pytest.raises(engine.InvalidArgumentError, match="own thread"):
                e._portal.call(call, b"x")
