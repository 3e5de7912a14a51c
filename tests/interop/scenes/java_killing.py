"""What a server still knows after kill -9, asked by clients of Java. Where a program gives way, it is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.interop.scenes.java_world import JavaWorld, by_key, numbers
from tests.interop.scenes.world import scenario


@scenario("kill", "split")
async def the_dag_outlives_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(2)
    w.note("split", await w.split(0))
    w.note("merge", await w.merge(3, 1))
    yield
    await w.shape("after")
    w.note("split", await w.split(4))
    await w.shape("and")


@scenario("kill", "split")
async def both_sides_of_a_split_are_there_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(1)
    await w.producer()
    await w.send_all(0, 10)
    w.note("split", await w.split(0))
    await w.send_all(10, 20)
    yield
    await w.consumer("queue")
    w.note("came", numbers(await w.take_once(20)))


@scenario("kill")
async def a_stream_goes_on_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    """The client may be given again what it has acknowledged."""
    await w.create(2)
    await w.producer()
    await w.consumer("stream")
    await w.send_all(0, 10)
    before = await w.take(10)
    yield
    await w.send_all(10, 20)
    found = {one["value"]: one for one in before}
    while len(found) < 20:
        (one,) = await w.take(1)
        found.setdefault(one["value"], one)
    w.note("came", by_key(list(found.values())))


@scenario("kill", "redelivery")
async def a_queue_goes_on_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(2)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 10)
    before = await w.take(5)
    yield
    await w.send_all(10, 15)
    found = {one["value"]: one for one in before}
    while len(found) < 15:
        (one,) = await w.take(1)
        found.setdefault(one["value"], one)
    w.note("came", numbers(list(found.values())))


@scenario("kill", "split")
async def a_split_after_a_kill_is_followed(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(1)
    await w.producer()
    await w.consumer("queue")
    await w.send_all(0, 5)
    yield
    w.note("split", await w.split(0))
    await w.send_all(5, 15)
    w.note("came", numbers(await w.take_once(15)))


@scenario("kill")
async def a_checkpoint_means_the_same_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(2)
    await w.producer()
    await w.send_all(0, 10)
    await w.checkpoint("earliest")
    first = await w.take(6, ack=False)
    kept = await w.ask("checkpoint", "c")
    await w.close_one("c")
    yield
    await w.send_all(10, 14)
    await w.checkpoint(kept)
    w.note("all", numbers(first + await w.take(8, ack=False)))


@scenario("kill", "transaction")
async def a_committed_transaction_outlives_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(2)
    await w.producer("tc")
    await w.ask("begin", "t", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction="t")
    await w.ask("commit", "t")
    yield
    await w.consumer("queue")
    w.note("came", numbers(await w.take_once(4)))


@scenario("kill", "transaction")
async def an_aborted_transaction_outlives_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(2)
    await w.producer("tc")
    await w.ask("begin", "t", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction="t")
    await w.ask("abort", "t")
    yield
    await w.send("9")
    await w.consumer("queue")
    w.note("came", numbers(await w.take_once(1)))
    await w.quiet("and")


@scenario("kill", "transaction")
async def an_open_transaction_is_committed_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.create(1)
    await w.producer("tc")
    await w.ask("begin", "t", client="long")
    await w.send("0", transaction="t")
    yield
    await w.outcome("commit", "commit", "t")
    await w.send("1")
    await w.consumer("stream")
    w.note("came", [one["value"] for one in await w.take(2)])


@scenario("kill", "transaction")
async def a_classic_transaction_is_committed_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.classic_producer()
    await w.ask("classic_begin", "t", timeout_ms=300_000)
    await w.classic_send("0", transaction="t")
    yield
    await w.outcome("commit", "classic_commit", "t")
    await w.classic_send("1")
    await w.classic_consumer("Exclusive")
    w.note("came", [one["value"] for one in await w.take(2)])


@scenario("kill", "transaction", "redelivery")
async def a_classic_transaction_is_aborted_after_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.classic_producer()
    await w.classic_consumer("Shared")
    await w.classic_send("0")
    (message,) = await w.take(1, ack=False)
    await w.ask("classic_begin", "t", timeout_ms=300_000)
    await w.ask("classic_ack", "c", message=message["message"], transaction="t")
    await w.classic_send("1", transaction="t")
    yield
    await w.outcome("abort", "classic_abort", "t")
    await w.classic_send("2")
    await w.close_one("c")
    await w.classic_consumer("Shared")
    w.note("came", numbers(await w.take_once(2)))
    await w.quiet("and")


@scenario("kill", "transaction")
async def acknowledgements_of_a_committed_transaction_outlive_a_kill(w: JavaWorld) -> AsyncIterator[None]:
    await w.classic_producer()
    await w.classic_consumer("Shared")
    await w.classic_send("0", "1", "2")
    messages = {one["value"]: one["message"] for one in await w.take(3, ack=False)}
    await w.ask("classic_begin", "t")
    await w.ask("classic_ack", "c", message=messages["1"], transaction="t")
    await w.ask("classic_commit", "t")
    await w.close_one("c")
    yield
    await w.classic_consumer("Shared")
    w.note("came", numbers(await w.take_once(2)))
    await w.quiet("and")
