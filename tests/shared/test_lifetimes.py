"""What is collected unclosed closes itself, with a warning, and what it held is free at once."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.kit.peer import until
from tests.kit.programs import environment


def test_a_lost_producer_flushes_and_says_so(tmp_path: Path):
    with engine.open(tmp_path / "data") as e:
        producer = e.producer("t")
        producer.send_nowait(b"x")
        with pytest.warns(ResourceWarning, match="Producer .* was not closed"):
            del producer
        with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=30).value == b"x"


@pytest.mark.parametrize("kind", ["queue_consumer", "stream_consumer"])
def test_a_lost_consumer_gives_its_messages_back_at_once(tmp_path: Path, kind: str):
    with engine.open(tmp_path / "data") as e, e.producer("t") as producer:
        consumer = getattr(e, kind)("t", "s", initial_position="earliest")
        producer.send(b"x", key="k")
        assert consumer.receive(timeout=30).value == b"x"
        with pytest.warns(ResourceWarning, match="Consumer .* was not closed"):
            del consumer
        with getattr(e, kind)("t", "s") as other:
            assert other.receive(timeout=30).value == b"x"


@pytest.mark.parametrize("name", ["TopicView", "TopicWatch", "RangeReader"])
def test_what_else_is_lost_closes_itself(tmp_path: Path, name: str):
    with engine.open(tmp_path / "data") as e, e.producer("t") as producer:
        producer.send(b"x")
        make: dict[str, Callable[[], object]] = {
            "TopicView": lambda: e.topic_view("t"),
            "TopicWatch": e.watch_topics,
            "RangeReader": lambda: e.range_reader("t", {0: (0, 1)}),
        }
        lost = make[name]()
        with pytest.warns(ResourceWarning, match=f"{name} .* was not closed, and is now: use `with`"):
            del lost


def test_a_cell_that_runs_twice_has_one_engine(tmp_path: Path):
    e = engine.open(tmp_path / "data")
    e.admin.create_topic("t")
    with pytest.warns(ResourceWarning, match="Engine .* was not closed"):
        e = engine.open(tmp_path / "data")  # the old handle lives until the new one is there
    assert e.admin.list_topics() == ["topic://public/default/t"]
    e.close()
    engine.open(tmp_path / "data", shared=False).close()


def test_a_lost_client_ends_its_thread(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0") as e:
        client = engine.Client(e.service_url)
        thread = client._portal._thread
        with pytest.warns(ResourceWarning, match="Client .* was not closed"):
            del client
        thread.join(30)
        assert not thread.is_alive()


def test_what_a_client_has_made_keeps_it(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as e:
        producer, admin = engine.Client(e.service_url).producer("t"), engine.Client(e.service_url).admin
        gc.collect()
        producer.send(b"x")
        assert admin.list_topics() == ["topic://public/default/t"]
        with pytest.warns(ResourceWarning, match="was not closed"):
            del producer, admin


def test_what_is_closed_is_collected_silently(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    gc.collect()
    recwarn.clear()
    with engine.open(tmp_path / "data") as e:
        e.producer("t").close()
        unclosed = e.queue_consumer("t", "s")
    assert unclosed.closed  # by its client
    del e, unclosed
    gc.collect()
    assert not recwarn.list


FORGOTTEN = """
import sys, engine
e = engine.open(sys.argv[1])
p = e.producer("t")
p.send_nowait(b"x")
"""


def test_a_program_that_ends_closes_what_it_forgot(tmp_path: Path):
    command = [sys.executable, "-W", "error", "-c", FORGOTTEN, str(tmp_path / "data")]
    done = subprocess.run(command, env=environment(), timeout=60, check=True, capture_output=True, text=True)
    assert not done.stderr
    with engine.open(tmp_path / "data") as e, e.stream_consumer("t", "s", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=30).value == b"x"


EXITING = """
import atexit, sys, threading, engine
def late():
    for what in (lambda: engine.open(sys.argv[1]), lambda: engine.Client("engine://127.0.0.1:1")):
        try:
            what()
        except engine.UnsupportedError as e:
            print(e)
atexit.register(late)
"""


def test_in_an_exit_handler_nothing_is_opened(tmp_path: Path):
    command = [sys.executable, "-W", "error", "-c", EXITING, str(tmp_path / "data")]
    done = subprocess.run(command, env=environment(), timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout.count("must be opened before the interpreter shuts down") == 2
    assert not done.stderr


async def test_a_lost_asynchronous_handle_closes(tmp_path: Path):
    e = await engine.open_async(tmp_path / "data")
    async with e.producer("t") as producer:
        await producer.send(b"x")
    del producer
    thread = e._hold.portal._thread  # type: ignore[attr-defined]
    with pytest.warns(ResourceWarning, match="AsyncEngine .* was not closed"):  # noqa: PT031 - it is in a cycle
        del e
        gc.collect()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    engine.open(tmp_path / "data", shared=False).close()


async def test_what_an_asynchronous_handle_has_made_keeps_it(tmp_path: Path):
    async def of_a_handle_that_is_lost() -> engine.AsyncProducer[bytes]:
        return await (await engine.open_async(tmp_path / "data")).producer("t")

    producer = await of_a_handle_that_is_lost()
    gc.collect()
    await producer.send(b"x")
    await producer._client.close()  # type: ignore[attr-defined]


Make = Callable[[engine.AsyncClient], Awaitable[Any]]

CONSUMERS: dict[str, Make] = {
    "AsyncQueueConsumer": lambda e: e.queue_consumer("t", "s", initial_position="earliest", ack_timeout=60),
    "AsyncStreamConsumer": lambda e: e.stream_consumer("t", "s", initial_position="earliest"),
    "AsyncMultiQueueConsumer": lambda e: e.queue_consumer(["t", "u"], "s", initial_position="earliest"),
    "AsyncMultiStreamConsumer": lambda e: e.stream_consumer(["t", "u"], "s", initial_position="earliest"),
}
OTHERS: dict[str, Make] = {
    "AsyncProducer": lambda e: e.producer("t"),
    "AsyncCheckpointConsumer": lambda e: e.checkpoint_consumer("t", start=engine.Checkpoint.earliest()),
    "AsyncRangeReader": lambda e: e.range_reader("t", {0: (0, 2)}),
    "AsyncTopicView": lambda e: e.topic_view("t"),
    "AsyncTopicWatch": lambda e: e.watch_topics("public/default"),
}


@pytest.mark.parametrize("where", ["shared", "alone"])
async def test_a_lost_asynchronous_producer_flushes_and_says_so(tmp_path: Path, where: str):
    async with engine.open_async(tmp_path / "data", shared=where == "shared") as e:
        producer = await e.producer("t")
        sent = producer.send(b"x")
        producer.send_nowait(b"y")
        with pytest.warns(ResourceWarning, match="AsyncProducer .* was not closed"):
            del producer
        assert (await sent).offset == 0
        async with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert [(await consumer.receive(timeout=30)).value for _ in range(2)] == [b"x", b"y"]
        assert await _are_closed(e)


async def test_a_lost_producer_whose_sends_wait_for_room_is_closed_behind_them(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as e:
        producer = await e.producer("t", max_pending_bytes=5 * 2**20)
        sends = [producer.send(b"%d" % i * 2**20) for i in range(9)]
        with pytest.warns(ResourceWarning, match="AsyncProducer .* was not closed"):  # noqa: PT031 - once it holds none
            del producer
            await asyncio.gather(*sends)
            assert await _are_closed(e)


@pytest.mark.parametrize("name", CONSUMERS)
async def test_a_lost_asynchronous_consumer_gives_its_messages_back_at_once(tmp_path: Path, name: str):
    async with engine.open_async(tmp_path / "data") as e, e.producer("t") as producer:
        await e.admin.create_topic("u")
        consumer = await CONSUMERS[name](e)
        assert type(consumer).__name__ == name
        await producer.send(b"x", key="k")
        assert (await consumer.receive(timeout=30)).value == b"x"
        with pytest.warns(ResourceWarning, match=f"{name} .* was not closed"):
            del consumer
        other = await CONSUMERS[name](e)
        assert (await other.receive(timeout=30)).value == b"x"
        await other.close()


@pytest.mark.parametrize("name", [*CONSUMERS, *OTHERS])
async def test_whatever_was_done_with_it_the_program_alone_holds_it(tmp_path: Path, name: str):
    """Each call of its public interface that ends, ends without a reference to it."""
    async with engine.open_async(tmp_path / "data") as e, e.producer("t") as producer:
        await e.admin.create_topic("u")
        await producer.send(b"x", key="k")
        await producer.send(b"y", key="k")
        made = await {**CONSUMERS, **OTHERS}[name](e)
        await _use(made, e)
        with pytest.warns(ResourceWarning, match=f"{name} .* was not closed"):
            del made
        assert await _are_closed(e, but=1)


async def _use(made: Any, e: engine.AsyncClient) -> None:
    if isinstance(made, engine.AsyncProducer):
        async with e.transaction() as transaction:
            await made.send(b"y", transaction=transaction)
        await made.flush()
        await made.writable()
    elif hasattr(made, "receive"):
        message = await made.receive(timeout=30)
        if not hasattr(made, "deleted"):
            await made.receive_batch(timeout=30)
            await made.receive_batch(timeout=0)
        if hasattr(made, "acknowledge_cumulative"):
            await made.acknowledge_cumulative(message)
            await made.seek("earliest")
        elif hasattr(made, "acknowledge"):
            await made.negative_acknowledge(message, delay=0)
            async with e.transaction() as transaction:
                await made.acknowledge(await made.receive(timeout=30), transaction=transaction)
            await made.seek("earliest")
        made.pause()
        made.resume()
        made.statistics()
    elif hasattr(made, "segments"):
        await made.segments()
        made.listen()
    else:
        await made.next_change(timeout=30)


async def test_a_run_keeps_its_consumer_until_it_ends(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as e, e.producer("t") as producer:
        handled = asyncio.Event()

        async def handle(message: engine.Message[Any]) -> None:
            handled.set()

        async def run() -> None:
            consumer = await e.queue_consumer("t", "s", initial_position="earliest")
            await consumer.run(handle)

        running = asyncio.create_task(run())
        await producer.send(b"x")
        await asyncio.wait_for(handled.wait(), 30)
        gc.collect()
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_a_lost_asynchronous_client_closes(tmp_path: Path):
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0") as e:
        client = engine.AsyncClient(e.service_url)
        producer = await client.producer("t")
        producer.send_nowait(b"x")
        with pytest.warns(ResourceWarning) as warned:  # noqa: PT031 - one is collected when the other is closed
            del client, producer
            async with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
                assert (await consumer.receive(timeout=30)).value == b"x"
            await until(lambda: gc.collect() >= 0 and any("AsyncClient" in str(w.message) for w in warned))
        assert [str(w.message)[:6] for w in warned if "closed" in str(w.message)] == ["<Async", "<Async"]


async def test_a_client_that_closes_waits_for_what_was_lost_before(tmp_path: Path):
    e = await engine.open_async(tmp_path / "data")
    producer = await e.producer("t")
    for i in range(1000):
        producer.send_nowait(b"%d" % i)
    with pytest.warns(ResourceWarning, match="AsyncProducer"):
        del producer
    await e.close()
    async with engine.open_async(tmp_path / "data") as again, await again.topic_view("t") as view:
        assert sum(s.end for s in (await view.segments()).segments.values()) == 1000


@pytest.mark.parametrize("name", ["AsyncProducer", "AsyncQueueConsumer", "AsyncTopicView"])
async def test_what_an_asynchronous_client_has_closed_is_collected_silently(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, name: str
):
    async with engine.open_async(tmp_path / "data") as e:
        await e.admin.create_topic("t")
        closed, by_client = [await {**CONSUMERS, **OTHERS}[name](e) for _ in range(2)]
        await closed.close()
    gc.collect()
    recwarn.clear()
    del closed, by_client, e
    gc.collect()
    assert not [w for w in recwarn.list if "was not closed" in str(w.message)]


async def _are_closed(e: engine.AsyncClient, but: int = 0) -> bool:
    """Wait until the client has nothing open but so many."""
    await until(lambda: len(e._children._open) == but)
    return True


def test_a_lost_transaction_is_aborted_at_once(tmp_path: Path):
    with engine.open(tmp_path / "data") as e, e.producer("t") as producer:
        transaction = e.transaction(3600.0)
        producer.send(b"lost", transaction=transaction)
        ident = transaction.id
        with pytest.warns(ResourceWarning, match="<Transaction .* was not closed, and is now: it is aborted"):
            del transaction
        producer.send(b"x")
        with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=30).value == b"x"  # else it waits for the transaction's end
        with pytest.raises(engine.TransactionConflictError):
            e.join_transaction(ident).commit()


async def test_a_lost_asynchronous_transaction_is_aborted_at_once(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as e, e.producer("t") as producer:
        transaction = await e.transaction(3600.0)
        await producer.send(b"lost", transaction=transaction)
        with pytest.warns(ResourceWarning, match="AsyncTransaction .* was not closed, and is now: it is aborted"):
            del transaction
        await producer.send(b"x")
        async with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert (await consumer.receive(timeout=30)).value == b"x"


async def test_a_transaction_that_has_ended_or_is_left_to_others_is_lost_silently(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    async with engine.open_async(tmp_path / "data") as e:
        gc.collect()
        recwarn.clear()
        for action in ("commit", "abort"):
            transaction = await e.transaction()
            await getattr(transaction, action)()
        transaction = await e.transaction()
        transaction.leave()
        joined = await e.join_transaction(transaction.id)
        del transaction, joined
        async with e.transaction():
            pass
        gc.collect()
        assert not recwarn.list
