"""Handlers on a real broker, embedded and served: order, redelivery, dead letters, a broker that is lost and back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, StopConsume
from faststream_engine import EngineBroker, EngineMessage, EngineResponse, TestEngineBroker

import engine
from tests.cli.cli_server import start_server, stop_server

LONG_S = 60.0


@pytest.fixture(params=["embedded", "served"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., EngineBroker]]:
    """Makes brokers of one engine, quiet ones; they are stopped at the end."""
    made: list[EngineBroker] = []
    if request.param == "embedded":

        def embedded(**options: Any) -> EngineBroker:
            made.append(EngineBroker(data=":memory:", logger=None, **options))
            return made[-1]

        yield embedded
    else:
        async with engine.open_async(":memory:", listen="127.0.0.1:0", admin="127.0.0.1:0") as e:

            def served(**options: Any) -> EngineBroker:
                made.append(EngineBroker(e.service_url, logger=None, **options))
                return made[-1]

            yield served
            for broker in made:
                await broker.stop()
        return
    for broker in made:
        await broker.stop()


class Calls(list[Any]):
    """What handlers were called with, to await."""

    def __init__(self) -> None:
        super().__init__()
        self._came = asyncio.Event()

    def add(self, what: Any) -> None:
        self.append(what)
        self._came.set()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(LONG_S):
            while len(self) < count:
                self._came.clear()
                await self._came.wait()


async def until(is_so: Callable[[], Any]) -> None:
    """Until what it returns, or what that awaits to, is true."""
    async with asyncio.timeout(LONG_S):
        while True:
            found = is_so()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)


async def settled(consumer: Any) -> None:
    """Until the subscription has nothing that is not acknowledged."""

    async def is_empty() -> bool:
        return not await consumer.lag()

    await until(is_empty)


async def letter_of(broker: EngineBroker, topic: str) -> engine.Message[bytes]:
    async with broker.client.queue_consumer(topic, "look", initial_position="earliest") as dead:
        letter = await dead.receive(timeout=LONG_S)
    assert letter is not None
    return letter


async def test_a_queue_hands_back_what_failed_and_buries_what_fails_for_ever(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("jobs", subscription="workers", nack_backoff=0.0, dead_letter=engine.DeadLetter(2))
    async def work(n: int, message: EngineMessage) -> None:
        calls.add((n, message.redelivery_count))
        if n == 1:
            raise ValueError("one is too few")

    await broker.start()
    await broker.publish_batch(*range(3), topic="jobs")
    letter = await letter_of(broker, "jobs-DLQ")
    assert letter.value == b"1"
    assert letter.properties["dead-letter-reason"] == "ValueError: one is too few"
    assert sorted(calls) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    await settled(broker.subscribers[0].consumer)  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_stream_keeps_the_order_of_each_key_through_failures(make: Callable[..., EngineBroker], workers: int):
    broker, calls, failed = make(), Calls(), set()

    @broker.subscriber("steps", subscription="book", kind="stream", max_workers=workers, nack_backoff=0.0)
    async def book(n: int, message: EngineMessage) -> None:
        if n % 7 == 0 and n not in failed:
            failed.add(n)
            raise ValueError(n)
        calls.add((message.key, n))

    await broker.start()
    for n in range(60):
        await broker.publish(n, "steps", key=f"key-{n % 5}")
    await calls.reach(60)
    for key in range(5):
        assert [n for name, n in calls if name == b"key-%d" % key] == list(range(key, 60, 5))
    await settled(broker.subscribers[0].consumer)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_what_is_rejected_is_a_dead_letter_and_is_not_delivered_again(
    make: Callable[..., EngineBroker], kind: Any
):
    broker, calls = make(), Calls()

    @broker.subscriber(
        "jobs", subscription="w", kind=kind, ack_policy=AckPolicy.REJECT_ON_ERROR, dead_letter=engine.DeadLetter(9)
    )
    async def work(n: int) -> None:
        calls.add(n)
        if n == 0:
            raise KeyError("zero")

    await broker.start()
    await broker.publish(0, "jobs", key="k", headers={"kind": "bad"})
    await broker.publish(1, "jobs", key="k")
    letter = await letter_of(broker, "jobs-DLQ")
    assert (letter.value, letter.key, letter.properties["kind"]) == (b"0", b"k", "bad")
    assert letter.properties["dead-letter-reason"] == "KeyError: 'zero'"
    assert letter.properties["origin-subscription"] == "w"
    await calls.reach(2)
    await settled(broker.subscribers[0].consumer)  # type: ignore[attr-defined]
    assert calls == [0, 1]


async def test_a_stream_buries_what_fails_for_ever_and_goes_on(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("s", subscription="b", kind="stream", nack_backoff=0.0, dead_letter=engine.DeadLetter(1, "bad"))
    async def book(n: int, message: EngineMessage) -> None:
        calls.add((n, message.redelivery_count))
        if n == 0:
            raise NackMessage(reason="by hand", delay=0.0)

    await broker.start()
    await broker.publish_batch(0, 1, topic="s", key="k")
    assert (await letter_of(broker, "bad")).properties["dead-letter-reason"] == "by hand"
    await calls.reach(3)
    assert calls == [(0, 0), (0, 1), (1, 0)]


async def test_batches_are_settled_whole(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("n", subscription="q", batch=True, max_messages=10, max_workers=2, nack_backoff=0.0)
    async def queue(numbers: list[int], message: EngineMessage) -> None:
        if message.redelivery_count == 0:
            raise ValueError
        calls.extend(numbers)
        calls.add(None)

    @broker.subscriber("n", subscription="s", kind="stream", batch=True, max_messages=10, nack_backoff=0.0)
    async def stream(numbers: list[int], message: EngineMessage) -> None:
        if message.redelivery_count == 0:
            raise ValueError
        in_order.extend(numbers)

    in_order: list[int] = []
    await broker.start()
    await broker.publish_batch(*range(30), topic="n", key="one")
    for subscriber in broker.subscribers:
        await settled(subscriber.consumer)  # type: ignore[attr-defined]
    assert sorted(n for n in calls if n is not None) == list(range(30))
    assert in_order == list(range(30))


async def test_workers_work_side_by_side(make: Callable[..., EngineBroker]):
    broker, calls, all_here = make(), Calls(), asyncio.Barrier(3)

    @broker.subscriber("jobs", subscription="w", max_workers=3)
    async def work(n: int) -> None:
        async with asyncio.timeout(LONG_S):
            await all_here.wait()
        calls.add(n)

    await broker.start()
    await broker.publish_batch(*range(3), topic="jobs")
    await calls.reach(3)


async def test_delays_keys_headers_and_transactions_arrive(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("in", subscription="w")
    @broker.publisher("out", headers={"from": "publisher"})
    async def work(n: int) -> EngineResponse:
        return EngineResponse(n, key=f"key-{n}", headers={"by": "handler"}, deliver_after=0.05)

    @broker.subscriber("out", subscription="w")
    async def end(n: int, message: EngineMessage) -> None:
        calls.add((n, message.key, message.headers["by"], message.headers["from"]))

    await broker.start()
    aborted = await broker.client.transaction()
    await broker.publish(1, "in", transaction=aborted)
    await aborted.abort()
    async with broker.client.transaction() as txn:
        await broker.publish(2, "in", transaction=txn)
    await calls.reach(1)
    assert calls == [(2, b"key-2", "handler", "publisher")]


async def test_requests_are_answered_and_their_topic_goes(make: Callable[..., EngineBroker]):
    broker = make()

    @broker.subscriber("square", subscription="w", max_workers=4)
    async def square(n: int) -> int:
        return n * n

    await broker.start()
    asked = (broker.request(n, "square", timeout=LONG_S, correlation_id=f"id-{n}") for n in range(20))
    answers = await asyncio.gather(*asked)
    assert [await answer.decode() for answer in answers] == [n * n for n in range(20)]
    assert [answer.correlation_id for answer in answers] == [f"id-{n}" for n in range(20)]
    with pytest.raises(TimeoutError):
        await broker.request(1, "nobody-answers", timeout=0.05)
    with pytest.raises(engine.InvalidArgumentError, match="a request must have no deliver_after"):
        await broker.request(EngineResponse(1, deliver_after=1.0), "square", timeout=LONG_S)
    assert any("replies-" in topic for topic in await broker.client.admin.list_topics("public/default"))
    if (url := broker._connection_kwargs["open_with"].get("url")) is not None:  # an embedded one ends with it
        await broker.stop()
        async with engine.AsyncClient(url) as client:
            assert not any("replies-" in topic for topic in await client.admin.list_topics("public/default"))


async def test_checkpoints_go_on_where_they_were_kept(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("log", kind="checkpoint", initial_position="earliest")
    async def first(n: int) -> None:
        calls.add(n)

    await broker.start()
    await broker.publish_batch(0, 1, 2, topic="log", key="k")
    await calls.reach(3)
    kept = await broker.subscribers[0].consumer.checkpoint()  # type: ignore[attr-defined]
    await broker.publish(3, "log", key="k")
    again = broker.subscriber("log", kind="checkpoint", initial_position=kept)
    message = await again.get_one(timeout=LONG_S)
    assert message is not None
    assert await message.decode() == 3
    await again.stop()


async def test_one_by_one_without_a_handler(make: Callable[..., EngineBroker]):
    broker = make()
    one_by_one = broker.subscriber("jobs", subscription="w", kind="stream", initial_position="earliest")
    await broker.start()
    assert await one_by_one.get_one(timeout=0.01) is None
    await broker.publish_batch("a", "b", "c", topic="jobs", key="k")
    found = []
    async for message in one_by_one:
        found.append(await message.decode())
        if len(found) == 3:
            await message.ack()
            break
    assert found == ["a", "b", "c"]
    assert await one_by_one.consumer.lag() == 0


async def test_a_subscriber_stops_itself_and_what_it_has_not_begun_stays(make: Callable[..., EngineBroker]):
    broker, calls = make(), Calls()

    @broker.subscriber("jobs", subscription="w")
    async def work(n: int) -> None:
        calls.add(n)
        raise StopConsume

    await broker.start()
    await broker.publish_batch(0, 1, 2, topic="jobs")
    await calls.reach(1)
    await until(lambda: broker.subscribers[0].consumer is None)  # type: ignore[attr-defined]
    async with broker.client.queue_consumer("jobs", "w") as c:
        left = [await c.receive(timeout=LONG_S) for _ in range(2)]
    assert len({message.value for message in left if message is not None}) == 2
    assert len(calls) == 1


async def test_the_end_waits_for_the_handler_that_runs(make: Callable[..., EngineBroker]):
    broker, calls, go = make(), Calls(), asyncio.Event()

    @broker.subscriber("jobs", subscription="w")
    async def work(n: int) -> None:
        calls.add("begun")
        await go.wait()
        calls.add("done")

    await broker.start()
    await broker.publish(1, "jobs")
    await calls.reach(1)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    go.set()
    await stopping
    assert calls == ["begun", "done"]
    assert await broker.ping() is False


async def test_the_test_broker_with_a_real_one(make: Callable[..., EngineBroker]):
    broker = make()

    @broker.subscriber("in", subscription="w")
    @broker.publisher("out")
    async def work(n: int) -> int:
        return n + 1

    publisher = broker.publishers[0]
    async with TestEngineBroker(broker, with_real=True) as real:
        await real.publish(1, "in")
        await work.wait_call(timeout=LONG_S)
        work.mock.assert_called_once_with(1)
        await until(lambda: publisher.mock.called)  # type: ignore[attr-defined]
        publisher.mock.assert_called_once_with(2)  # type: ignore[attr-defined]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def test_handlers_go_on_when_the_broker_was_killed_and_is_back(tmp_path: Path):
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    server = start_server(tmp_path / "data", *listen)
    broker, calls = EngineBroker(server.url, logger=None), Calls()

    @broker.subscriber("jobs", subscription="w")
    async def work(n: int) -> None:
        calls.add(("queue", n))

    @broker.subscriber("jobs", subscription="s", kind="stream")
    async def book(n: int) -> None:
        calls.add(("stream", n))

    try:
        await broker.start()
        assert await broker.ping()
        await broker.publish(1, "jobs")
        await calls.reach(2)
        server.process.kill()
        stop_server(server)
        sending = asyncio.create_task(broker.publish(2, "jobs"))
        server = start_server(tmp_path / "data", *listen)
        await asyncio.wait_for(sending, LONG_S)
        async with asyncio.timeout(LONG_S):
            while not {("queue", 2), ("stream", 2)} <= set(calls):
                await calls.reach(len(calls) + 1)
    finally:
        await broker.stop()
        stop_server(server)


async def test_without_a_broker_the_start_says_so():
    broker = EngineBroker(f"engine://127.0.0.1:{free_port()}", logger=None)
    with pytest.raises(engine.ConnectError):
        await broker.start()
    await broker.stop()
