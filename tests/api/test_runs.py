"""`run()`: handlers side by side, in order per key; failures tried again, handed back or moved; and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from tests.api.queues import everything, received

BOUND_S = 60


async def publish(client: engine.AsyncClient, keys: str, topic: str = "t") -> None:
    """One message of each key, with its number as the value."""
    async with await client.producer(topic) as producer:
        for n, key in enumerate(keys):
            producer.send_nowait(b"%d" % n, key=key)
        await producer.flush()


async def test_keys_run_side_by_side_and_each_in_order(client: engine.AsyncClient):
    await publish(client, "abcdef" * 50)
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    seen, running, most = defaultdict[bytes | None, list[int]](list), set[bytes | None](), 0

    async def handle(message: engine.Message) -> None:
        nonlocal most
        assert message.key not in running
        running.add(message.key)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(message.key)
        seen[message.key].append(int(message.value))
        if sum(map(len, seen.values())) == 300:
            await consumer.close()  # in the handler, it ends the run

    await asyncio.wait_for(consumer.run(handle, concurrency=4), BOUND_S)
    assert most == 4
    assert all(numbers == sorted(numbers) and len(numbers) == 50 for numbers in seen.values())
    assert consumer.statistics().handled == 300
    async with await client.stream_consumer("t", "s") as after:
        assert await after.receive(0.05) is None, "all of it is acknowledged"


async def test_a_failed_message_of_a_stream_is_tried_in_its_place_while_other_keys_go_on(
    client: engine.AsyncClient, caplog: pytest.LogCaptureFixture
):
    await publish(client, "aabab")
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    begun, others = list[int](), asyncio.Event()

    async def handle(message: engine.Message) -> None:
        number = int(message.value)
        begun.append(number)
        if number == 1 and begun.count(1) < 3:
            raise ValueError("not yet")
        if number == 4:
            others.set()
        if number == 3:
            await consumer.close()

    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(consumer.run(handle, backoff=0.001), BOUND_S)
    assert others.is_set()
    assert begun.count(1) == 3
    assert [n for n in begun if n in (0, 1, 3)] == [0, 1, 1, 1, 3], "its key waits"
    lines = [record.getMessage() for record in caplog.records if "handler failed" in record.getMessage()]
    assert len(lines) == consumer.statistics().handler_failures == 2, "one line each"
    assert "message 0:1 of topic://public/default/t, key b'a', attempt 1: ValueError: not yet" in lines[0]
    assert "test_runs.py" in lines[0]


async def test_what_lies_before_a_failed_message_is_acknowledged_and_after_max_attempts_run_raises(
    client: engine.AsyncClient,
):
    await publish(client, "abcd")
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")

    async def handle(message: engine.Message) -> None:
        if message.value == b"2":
            raise LookupError("gone")

    with pytest.raises(LookupError, match="gone") as caught:
        await asyncio.wait_for(consumer.run(handle, backoff=0, max_attempts=3), BOUND_S)
    assert "after 3 attempts" in caught.value.__notes__[0]
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.receive()
    async with await client.stream_consumer("t", "s") as after:
        assert (await received(after)).value == b"2", "and everything behind it comes again"  # type: ignore[arg-type]


async def test_a_stream_moves_what_failed_too_often_with_its_reason(client: engine.AsyncClient):
    async with await client.producer("t", schema=str) as producer:
        for text in ("good", "bad", "last"):
            await producer.send(text, key=b"k", properties={"own": text})
    consumer = await client.stream_consumer("t", "s", initial_position="earliest", schema=str)
    attempts = list[str]()

    async def handle(message: engine.Message) -> None:
        attempts.append(message.value)
        if message.value == "bad":
            raise ValueError("of two\nlines")
        if message.value == "last":
            await consumer.close()

    await asyncio.wait_for(consumer.run(handle, backoff=0, max_attempts=2, dead_letter="graves"), BOUND_S)
    assert attempts == ["good", "bad", "bad", "last"]
    async with await client.queue_consumer("graves", "watch", initial_position="earliest") as dead:
        letter = await received(dead)
    assert (letter.key, letter.value) == (b"k", b"bad")
    assert letter.properties["own"] == "bad"
    assert letter.properties["origin-message"] == "0:1"
    assert letter.properties["dead-letter-reason"] == "ValueError: of two lines"
    assert letter.properties["dead-letter-raised-at"].endswith(" in handle")
    async with await client.stream_consumer("t", "s") as after:
        assert await after.receive(0.05) is None


async def test_a_queue_hands_failed_messages_back_and_then_moves_them_with_the_reason(
    client: engine.AsyncClient, caplog: pytest.LogCaptureFixture
):
    await publish(client, "aaab")
    consumer = await client.queue_consumer(
        "t", "s", initial_position="earliest", nack_backoff=0, dead_letter=engine.DeadLetter(max_redeliveries=2)
    )
    attempts, moved = list[int](), asyncio.Event()

    async def handle(message: engine.Message) -> None:
        if message.value == b"1":
            attempts.append(message.redelivery_count)
            raise KeyError("one")

    async def watch() -> engine.Message:
        async with await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead:
            letter = await received(dead, BOUND_S)
        moved.set()
        await consumer.close()
        return letter

    watching = asyncio.create_task(watch())
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(consumer.run(handle, concurrency=2), BOUND_S)
    letter = await watching
    assert attempts == [0, 1, 2]
    lines = [record.getMessage() for record in caplog.records if "handler failed" in record.getMessage()]
    assert [f", attempt {n}: KeyError: 'one'" in line for n, line in enumerate(lines, 1)] == [True] * 3
    assert letter.value == b"1"
    assert letter.properties["dead-letter-reason"] == "KeyError: 'one'"
    assert letter.properties["origin-redelivery-count"] == "2"
    found = consumer.statistics()
    assert (found.handled, found.handler_failures, found.dead_lettered) == (3, 3, 1)
    async with await client.queue_consumer("t", "s") as after:
        assert await after.receive(0.05) is None


async def test_a_reason_given_by_the_program_goes_with_the_letter(client: engine.AsyncClient):
    await publish(client, "ab")
    policy = engine.DeadLetter(0)
    async with (
        await client.queue_consumer("t", "s", initial_position="earliest", dead_letter=policy) as one,
        await client.queue_consumer("t-DLQ", "watch", initial_position="earliest") as dead,
    ):
        batch = await one.receive_batch(timeout=BOUND_S)
        await one.negative_acknowledge(iter(batch), reason="the account is closed")
        letters = await everything(dead, len(batch))
        assert {m.properties["dead-letter-reason"] for m in letters} == {"the account is closed"}
        assert "dead-letter-raised-at" not in letters[0].properties
        with pytest.raises(engine.InvalidArgumentError, match="reason must be a str or an exception, got int"):
            await one.negative_acknowledge(batch[0], reason=5)  # type: ignore[arg-type]


async def test_a_close_from_outside_awaits_and_saves_what_the_handler_has_begun(client: engine.AsyncClient):
    await publish(client, "abcd")
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    begun, may_end, done = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def handle(message: engine.Message) -> None:
        begun.set()
        await may_end.wait()
        done.append(message.value)

    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    may_end.set()
    await asyncio.wait_for(asyncio.gather(closing, running), BOUND_S)
    assert done == [b"0"]
    async with await client.queue_consumer("t", "s") as after:
        rest = await everything(after, 3)
        assert sorted(m.value for m in rest) == [b"1", b"2", b"3"]
        assert {m.redelivery_count for m in rest} == {0}, "received ahead and never begun: not counted"


async def test_calls_that_last_too_long_are_cancelled_and_come_again(client: engine.AsyncClient):
    await publish(client, "a")
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    begun = asyncio.Event()

    async def handle(message: engine.Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(consumer.run(handle, drain_timeout=0))
    await begun.wait()
    await asyncio.wait_for(consumer.close(), BOUND_S)
    await running
    async with await client.stream_consumer("t", "s") as after:
        assert await after.receive(BOUND_S) is not None


async def test_a_cancelled_run_saves_what_is_finished(client: engine.AsyncClient):
    await publish(client, "aaa")
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    stuck = asyncio.Event()

    async def handle(message: engine.Message) -> None:
        if message.value == b"2":
            stuck.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(consumer.run(handle))
    await stuck.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with await client.stream_consumer("t", "s") as after:
        assert (await received(after)).value == b"2"  # type: ignore[arg-type]


async def test_batches_are_handled_as_the_annotation_says(client: engine.AsyncClient):
    await publish(client, "ab" * 100)
    consumer = await client.stream_consumer("t", "s", initial_position="earliest")
    values, failed = list[bytes](), list[int]()

    async def handle(batch: engine.MessageBatch) -> None:
        if not failed:
            failed.append(len(batch))
            raise ValueError
        values.extend(batch.values)
        if len(values) == 200:
            await consumer.close()

    await asyncio.wait_for(consumer.run(handle, max_messages=30, backoff=0), BOUND_S)
    assert sorted(map(int, values)) == list(range(200))
    assert failed[0] <= 30
    assert consumer.statistics().handler_failures == 1
    queue = await client.queue_consumer("t", "q", initial_position="earliest")
    values.clear()

    async def untyped(batch) -> None:  # type: ignore[no-untyped-def]
        await handle(batch)
        if len(values) == 200:
            await queue.close()

    await asyncio.wait_for(queue.run(untyped, batch=True, concurrency=2), BOUND_S)
    assert sorted(map(int, values)) == list(range(200))


async def test_several_topics_run_as_one(client: engine.AsyncClient):
    for topic in ("one", "two"):
        await publish(client, "aabb", topic)
    consumer = await client.stream_consumer(["one", "two"], "s", initial_position="earliest")
    seen = list[tuple[str, int]]()

    async def handle(message: engine.Message) -> None:
        if message.value == b"2" and message.topic.endswith("two") and consumer.statistics().handler_failures < 2:
            raise ValueError
        seen.append((message.topic[-3:], int(message.value)))
        if len(seen) == 7:
            await consumer.close()

    running = consumer.run(handle, concurrency=3, backoff=0, max_attempts=2, dead_letter="graves")
    await asyncio.wait_for(running, BOUND_S)
    assert sorted(seen) == [("one", n) for n in range(4)] + [("two", n) for n in (0, 1, 3)]
    async with await client.queue_consumer("graves", "watch", initial_position="earliest") as dead:
        assert (await received(dead)).properties["origin-topic"] == "topic://public/default/two"
    queue = await client.queue_consumer(["one", "two"], "q", initial_position="earliest")
    seen.clear()

    async def take(message: engine.Message) -> None:
        seen.append((message.topic[-3:], int(message.value)))
        if len(seen) == 8:
            await queue.close()

    await asyncio.wait_for(queue.run(take, concurrency=3), BOUND_S)
    assert sorted(seen) == [(topic, n) for topic in ("one", "two") for n in range(4)]


async def test_what_is_wrong_is_refused(client: engine.AsyncClient):
    async def handle(message: engine.Message) -> None:
        pass

    async with await client.stream_consumer("t", "s") as consumer:
        for options, text in (
            ({"concurrency": 0}, "concurrency must be an int of at least 1"),
            ({"max_attempts": 0}, "max_attempts must be"),
            ({"batch": 1}, "batch must be True, False or None, got 1"),
            ({"drain_timeout": -1}, "drain_timeout must be"),
            ({"dead_letter": "t"}, "dead_letter must be another topic"),
            ({"dead_letter": "x", "max_attempts": None}, "dead_letter needs max_attempts"),
        ):
            with pytest.raises(engine.InvalidArgumentError, match=text):
                await consumer.run(handle, **options)  # type: ignore[arg-type]
        with pytest.raises(engine.InvalidArgumentError, match="handler must be a function, got int"):
            await consumer.run(5)  # type: ignore[arg-type]
        first = asyncio.create_task(consumer.run(handle))
        await asyncio.sleep(0)
        with pytest.raises(engine.InvalidArgumentError, match="run\\(\\) must be called once"):
            await consumer.run(handle)
    await first
    with pytest.raises(engine.AlreadyClosedError):
        await consumer.run(handle)


async def test_what_comes_again_after_a_lost_connection_is_not_handled_twice(served: engine.AsyncEngine):
    async with engine.AsyncClient(served.service_url) as client:
        await publish(client, "abc")
        consumer = await client.stream_consumer("t", "s", initial_position="earliest")
        begun, may_end = list[bytes](), asyncio.Event()
        reached, all_begun = asyncio.Event(), asyncio.Event()

        async def handle(message: engine.Message) -> None:
            begun.append(message.value)
            if message.value == b"3":
                reached.set()
            elif len(begun) == 3:
                all_begun.set()
            if message.value == b"0":
                await may_end.wait()

        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        await asyncio.wait_for(all_begun.wait(), BOUND_S)
        before = consumer.statistics().messages_received
        for connection in client.pool.connections:
            connection.stream.abort()
        async with await served.producer("t") as producer:
            await producer.send(b"3", key=b"d")
        await asyncio.wait_for(reached.wait(), BOUND_S)
        assert consumer.statistics().messages_received > before + 1, "they came again"
        may_end.set()
        await consumer.close()
        await running
        assert sorted(begun) == [b"0", b"1", b"2", b"3"]
        async with await client.stream_consumer("t", "s") as after:
            assert await after.receive(0.05) is None, "and all of it is acknowledged"


# -- blocking ------------------------------------------------------------------------------------------------


def send(client: engine.Client, keys: str) -> None:
    with client.producer("t") as producer:
        for n, key in enumerate(keys):
            producer.send_nowait(b"%d" % n, key=key)


def test_the_blocking_form_runs_on_the_callers_thread_or_on_several(blocking: engine.Client):
    send(blocking, "abcd" * 25)
    for concurrency, expected in ((1, {threading.current_thread().name}), (4, None)):
        consumer = blocking.stream_consumer("t", f"s{concurrency}", initial_position="earliest")
        seen, threads, lock = defaultdict[bytes | None, list[int]](list), set[str](), threading.Lock()
        together = threading.Barrier(concurrency)

        def handle(message: engine.Message) -> None:
            if message.value in (b"0", b"1", b"2", b"3"):
                together.wait(BOUND_S)  # noqa: B023 - only side by side
            with lock:  # noqa: B023
                threads.add(threading.current_thread().name)  # noqa: B023
                seen[message.key].append(int(message.value))  # noqa: B023
                if sum(map(len, seen.values())) == 100:  # noqa: B023
                    consumer.close()  # noqa: B023

        consumer.run(handle, concurrency=concurrency)
        assert all(numbers == sorted(numbers) and len(numbers) == 25 for numbers in seen.values())
        assert expected is None or threads == expected
        assert len(threads) == concurrency
        with blocking.stream_consumer("t", f"s{concurrency}") as after:
            assert after.receive(0.05) is None


def test_a_blocking_queue_is_run_with_batches(blocking: engine.Client):
    send(blocking, "ab" * 20)
    consumer = blocking.queue_consumer("t", "s", initial_position="earliest")
    values = list[bytes]()

    def handle(batch: engine.MessageBatch) -> None:
        values.extend(batch.values)
        if len(values) == 40:
            consumer.close()

    consumer.run(handle)
    assert sorted(map(int, values)) == list(range(40))


@pytest.mark.parametrize("concurrency", [1, 2])
def test_sigterm_finishes_what_has_begun_and_calls_the_handler_before(blocking: engine.Client, concurrency: int):
    send(blocking, "a" * 10)
    consumer = blocking.stream_consumer("t", "s", initial_position="earliest")
    chained, done = list[int](), list[bytes]()

    def handle(message: engine.Message) -> None:
        if message.value == b"4":
            os.kill(os.getpid(), signal.SIGTERM)
            while not chained:  # the handlers of signals run on the main thread
                threading.Event().wait(0.001)
        done.append(message.value)

    mine = lambda number, frame: chained.append(number)  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        consumer.run(handle, concurrency=concurrency)
        assert signal.getsignal(signal.SIGTERM) is mine, "restored"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert chained == [signal.SIGTERM]
    assert done[:5] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(done) < 10
    with blocking.stream_consumer("t", "s") as after:
        message = after.receive(BOUND_S)
        assert message is not None
        assert int(message.value) == len(done), "what was begun is acknowledged, the rest comes again"


async def test_sigterm_ends_an_asynchronous_run_on_the_main_thread(client: engine.AsyncClient):
    await publish(client, "ab")
    consumer = await client.queue_consumer("t", "s", initial_position="earliest")
    chained = list[int]()

    async def handle(message: engine.Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: chained.append(number))
    try:
        await asyncio.wait_for(consumer.run(handle), BOUND_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert chained
    assert consumer.statistics().handled >= 1


def test_run_on_another_thread_installs_no_handler_and_ends_with_close(blocking: engine.Client):
    send(blocking, "abc")
    before = signal.getsignal(signal.SIGTERM)
    consumer = blocking.queue_consumer("t", "s", initial_position="earliest")
    begun, seen = threading.Event(), list[object]()

    def handle(message: engine.Message) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        begun.set()

    thread = threading.Thread(target=consumer.run, args=(handle,))
    thread.start()
    assert begun.wait(BOUND_S)
    consumer.close()
    thread.join(BOUND_S)
    assert not thread.is_alive()
    assert set(seen) == {before}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_ctrl_c_in_a_handler_is_the_callers(blocking: engine.Client, concurrency: int):
    send(blocking, "ab")
    consumer = blocking.stream_consumer("t", "s", initial_position="earliest")

    def handle(message: engine.Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consumer.run(handle, concurrency=concurrency)
    with blocking.stream_consumer("t", "s") as after:
        message = after.receive(BOUND_S)
        assert message is not None
        assert message.value == b"0", "not handled, not acknowledged"


def test_an_async_handler_is_refused_in_the_blocking_form(tmp_path: Path):
    async def handle(message: engine.Message) -> None:
        pass

    with engine.open(tmp_path) as e, e.stream_consumer("t", "s") as consumer:
        wrong: list[tuple[Callable[..., object] | int, str]] = [(handle, "plain function"), (5, "got int")]
        for handler, text in wrong:
            with pytest.raises(engine.InvalidArgumentError, match=text):
                consumer.run(handler)  # type: ignore[arg-type]
