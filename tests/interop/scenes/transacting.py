"""Transactions of the V5 client, and of the classic client of Java."""

from __future__ import annotations

import asyncio

from tests.interop.scenes.java_world import JavaWorld, by_key, numbers
from tests.interop.scenes.world import scenario

# -- V5 ----------------------------------------------------------------------------------------------------------------


@scenario("transaction")
async def a_committed_transaction_is_seen(w: JavaWorld) -> None:
    await _written(w, "commit")


@scenario("transaction")
async def an_aborted_transaction_is_not_seen(w: JavaWorld) -> None:
    await _written(w, "abort")


async def _written(w: JavaWorld, end: str) -> None:
    await w.create(2)
    await w.producer("tc")
    await w.consumer("queue")
    await w.ask("begin", "t", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction="t")
    await w.quiet("before")
    await w.ask(end, "t")
    if end == "commit":
        w.note("after", numbers(await w.take(4)))
    await w.send("later", "k0")
    w.note("then", [one["value"] for one in await w.take(1)])


@scenario("transaction", "redelivery")
async def acknowledgements_of_an_aborted_transaction_are_void(w: JavaWorld) -> None:
    await _acknowledged(w, "queue", "abort")


@scenario("transaction")
async def acknowledgements_of_a_committed_transaction_hold(w: JavaWorld) -> None:
    await _acknowledged(w, "queue", "commit")


@scenario("transaction", "redelivery")
async def what_a_stream_acknowledges_in_an_aborted_transaction_is_void(w: JavaWorld) -> None:
    await _acknowledged(w, "stream", "abort")


@scenario("transaction")
async def what_a_stream_acknowledges_in_a_committed_transaction_holds(w: JavaWorld) -> None:
    await _acknowledged(w, "stream", "commit")


async def _acknowledged(w: JavaWorld, kind: str, end: str) -> None:
    named = {"as": "c"} if kind == "stream" else {}  # one session, also after it was closed
    await w.create(1)
    await w.producer()
    await w.consumer(kind, client="tc", **named)
    await w.send_all(0, 3)
    messages = await w.take(3, ack=False)
    await w.ask("begin", "t", client="tc")
    for message in messages if kind == "queue" else messages[-1:]:
        await w.ask("ack", "c", message=message["message"], transaction="t")
    await w.pause()
    await w.ask(end, "t")
    await w.close_one("c")
    await w.send("more")
    await w.consumer(kind, client="tc", **named)
    count = 4 if end == "abort" else 1
    w.note("came", sorted(one["value"] for one in await w.take(count)))
    await w.quiet("and")


@scenario("transaction")
async def a_transaction_is_of_several_topics(w: JavaWorld) -> None:
    other = f"{w.topic}-other"
    for name, topic in (("a", w.topic), ("b", other)):
        await w.create(2, topic)
        await w.producer("tc", name, topic)
        await w.consumer("stream", name=f"c{name}", topic=topic)
    for name, end in (("t1", "abort"), ("t2", "commit")):
        await w.ask("begin", name, client="tc")
        for producer in "ab":
            await w.send(name, producer=producer, transaction=name)
        await w.ask(end, name)
    for name in ("ca", "cb"):
        w.note(name, [one["value"] for one in await w.take(1, name)])
        await w.quiet("and", name)


@scenario("transaction", "split")
async def a_transaction_is_committed_after_a_split(w: JavaWorld) -> None:
    await _split_in_the_middle(w, "commit")


@scenario("transaction", "split")
async def a_transaction_is_aborted_after_a_split(w: JavaWorld) -> None:
    await _split_in_the_middle(w, "abort")


async def _split_in_the_middle(w: JavaWorld, end: str) -> None:
    await w.create(1)
    await w.producer("tc")
    await w.consumer("queue")
    await w.ask("begin", "t", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction="t")
    w.note("split", await w.split(0))
    await w.ask(end, "t")
    await w.send("4")
    w.note("came", numbers(await w.take_once(5 if end == "commit" else 1)))
    await w.quiet("and")


@scenario("transaction", "split")
async def a_transaction_goes_on_after_a_split(w: JavaWorld) -> None:
    """Once the client has followed: it counts as a failure what it had to send again by itself."""
    await w.create(1)
    await w.producer("tc")
    await w.consumer("queue")
    await w.ask("begin", "t", client="tc")
    for number in range(4):
        await w.send(f"{number}", f"k{number}", transaction="t")
    w.note("split", await w.split(0))
    await w.pause()
    for number in range(4, 8):
        await w.send(f"{number}", f"k{number}", transaction="t")
    await w.outcome("commit", "commit", "t")
    w.note("came", numbers(await w.take_once(8)))
    await w.quiet("and")


@scenario("transaction", "split")
async def a_transaction_begins_after_a_merge(w: JavaWorld) -> None:
    await w.create(2)
    await w.producer("tc")
    await w.consumer("stream")
    await w.send_all(0, 4)
    w.note("merge", await w.merge(0, 1))
    await w.send_all(4, 8)
    await w.ask("begin", "t", client="tc")
    await w.send_all(8, 12, transaction="t")
    await w.ask("commit", "t")
    w.note("came", by_key(await w.take(12)))


@scenario("transaction", "split", "redelivery")
async def acknowledgements_of_a_sealed_segment_are_aborted(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer()
    await w.consumer("queue", client="tc")
    await w.send("v")
    (message,) = await w.take(1, ack=False)
    await w.ask("begin", "t", client="tc")
    await w.ask("ack", "c", message=message["message"], transaction="t")
    await w.pause()
    w.note("split", await w.split(0))
    await w.ask("abort", "t")
    await w.close_one("c")
    await w.consumer("queue", client="tc")
    w.note("again", [one["value"] for one in await w.take(1)])


@scenario("transaction")
async def what_is_behind_an_open_transaction_waits(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer("tc")
    await w.consumer("stream")
    await w.ask("begin", "t", client="tc")
    await w.send("in", transaction="t")
    await w.send("behind")
    await w.quiet("before")
    await w.ask("commit", "t")
    w.note("after", [one["value"] for one in await w.take(2)])


@scenario("transaction")
async def two_transactions_keep_the_places_of_their_messages(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer("tc")
    await w.consumer("stream")
    for name in ("t1", "t2"):
        await w.ask("begin", name, client="tc")
    for value, name in (("0", "t1"), ("1", "t2"), ("2", "t1"), ("3", "t2")):
        await w.send(value, transaction=name)
    for name in ("t2", "t1"):
        await w.ask("commit", name)
    w.note("came", [one["value"] for one in await w.take(4)])


@scenario("transaction")
async def a_transaction_is_ended_once(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer("tc")
    await w.ask("begin", "t", client="tc")
    await w.send("v", transaction="t")
    for end in ("commit", "commit", "abort"):
        await w.outcome(end, end, "t")
    w.note("state", await w.ask("state", "t"))
    await w.outcome("send", "send", "p", value="late", key="k", transaction="t")


@scenario("transaction")
async def a_transaction_that_takes_too_long_is_aborted(w: JavaWorld) -> None:
    await w.create(1)
    await w.producer("short")
    await w.consumer("queue")
    await w.ask("begin", "t", client="short")
    await w.send("v", transaction="t")
    await asyncio.sleep(4)
    await w.outcome("commit", "commit", "t")
    await w.send("later")
    w.note("came", [one["value"] for one in await w.take(1)])
    await w.quiet("and")


@scenario("transaction", "redelivery")
async def what_is_read_and_written_in_a_transaction_is_done_once(w: JavaWorld) -> None:
    out = f"{w.topic}-out"
    await w.create(1)
    await w.create(1, out)
    await w.producer()
    await w.producer("tc", "out", out)
    await w.consumer("queue", name="result", topic=out)
    await w.send_all(0, 3)
    for turn, end in enumerate(("abort", "commit")):
        await w.consumer("queue", client="tc")
        await w.ask("begin", f"t{turn}", client="tc")
        for message in await w.take(3, ack=False):
            await w.send(f"{turn}{message['value']}", producer="out", transaction=f"t{turn}")
            await w.ask("ack", "c", message=message["message"], transaction=f"t{turn}")
        await w.pause()
        await w.ask(end, f"t{turn}")
        await w.close_one("c")
    w.note("result", numbers(await w.take(3, "result")))
    await w.quiet("and", "result")


# -- classic -----------------------------------------------------------------------------------------------------------


@scenario("transaction")
async def a_classic_transaction_is_committed(w: JavaWorld) -> None:
    await _written_classic(w, "commit")


@scenario("transaction")
async def a_classic_transaction_is_aborted(w: JavaWorld) -> None:
    await _written_classic(w, "abort")


@scenario("transaction")
async def batches_of_a_classic_transaction_are_committed(w: JavaWorld) -> None:
    await _written_classic(w, "commit", batched=True)


@scenario("transaction")
async def batches_of_a_classic_transaction_are_aborted(w: JavaWorld) -> None:
    await _written_classic(w, "abort", batched=True)


async def _written_classic(w: JavaWorld, end: str, *, batched: bool = False) -> None:
    await w.classic_producer(batched=batched)
    await w.classic_consumer("Exclusive")
    await w.ask("classic_begin", "t")
    await w.classic_send("0", "1", "2", "3", transaction="t")
    await w.quiet("before")
    await w.ask(f"classic_{end}", "t")
    await w.classic_send("later")
    w.note("after", [one["value"] for one in await w.take(5 if end == "commit" else 1)])
    await w.quiet("and")


@scenario("transaction")
async def classic_acknowledgements_are_committed(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "commit", "Shared")


@scenario("transaction", "redelivery")
async def classic_acknowledgements_are_aborted(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "abort", "Shared")


@scenario("transaction")
async def a_cumulative_acknowledgement_is_committed(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "commit", "Exclusive", cumulative=True)


@scenario("transaction", "redelivery")
async def a_cumulative_acknowledgement_is_aborted(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "abort", "Failover", cumulative=True)


@scenario("transaction")
async def acknowledgements_inside_of_a_batch_are_committed(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "commit", "Shared", batched=True)


@scenario("transaction", "redelivery")
async def acknowledgements_inside_of_a_batch_are_aborted(w: JavaWorld) -> None:
    await _acknowledged_classic(w, "abort", "Shared", batched=True)


async def _acknowledged_classic(
    w: JavaWorld, end: str, kind: str, *, cumulative: bool = False, batched: bool = False
) -> None:
    """Of six messages four are acknowledged."""
    await w.classic_producer(batched=batched)
    await w.classic_consumer(kind)
    await w.classic_send(*map(str, range(6)))
    messages = {one["value"]: one["message"] for one in await w.take(6, ack=False)}
    await w.ask("classic_begin", "t")
    for value in "3" if cumulative else "0123":
        more = {"cumulative": True} if cumulative else {}
        await w.ask("classic_ack", "c", message=messages[value], transaction="t", **more)
    await w.ask(f"classic_{end}", "t")
    await w.close_one("c")
    await w.classic_consumer(kind)
    w.note("came", numbers(await w.take(2 if end == "commit" else 6)))
    await w.quiet("and")


@scenario("transaction")
async def two_classic_transactions_cannot_acknowledge_one_message(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer()
    await w.classic_send("v")
    (message,) = await w.take(1, ack=False)
    for name in ("t1", "t2"):
        await w.ask("classic_begin", name)
        await w.outcome(name, "classic_ack", "c", message=message["message"], transaction=name)
    await w.outcome("commit", "classic_commit", "t1")
    await w.outcome("abort", "classic_abort", "t2")
    await w.close_one("c")
    await w.classic_consumer()
    await w.quiet("and")


@scenario("transaction")
async def a_message_that_was_acknowledged_cannot_be_in_a_transaction(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer()
    await w.classic_send("v")
    (message,) = await w.take(1)
    await w.pause()
    await w.ask("classic_begin", "t")
    await w.outcome("acknowledge", "classic_ack", "c", message=message["message"], transaction="t")
    await w.outcome("abort", "classic_abort", "t")


@scenario("transaction")
async def a_classic_transaction_is_ended_once(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.ask("classic_begin", "t")
    await w.classic_send("v", transaction="t")
    for end in ("commit", "commit", "abort"):
        await w.outcome(end, f"classic_{end}", "t")
    w.note("state", await w.ask("classic_state", "t"))
    await w.outcome("send", "classic_send", "p", value="late", transaction="t")


@scenario("transaction")
async def a_classic_transaction_that_takes_too_long_is_aborted(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer()
    await w.ask("classic_begin", "t", timeout_ms=1_000)
    await w.classic_send("v", transaction="t")
    await asyncio.sleep(4)
    await w.outcome("commit", "classic_commit", "t")
    await w.classic_send("later")
    w.note("came", [one["value"] for one in await w.take(1)])
    await w.quiet("and")


@scenario("transaction")
async def a_classic_transaction_is_of_several_topics(w: JavaWorld) -> None:
    other = f"{w.topic}-other"
    for name, topic in (("a", w.topic), ("b", other)):
        await w.classic_producer(name, topic)
        await w.classic_consumer("Exclusive", f"c{name}", topic)
    for name, end in (("t1", "abort"), ("t2", "commit")):
        await w.ask("classic_begin", name)
        for producer in "ab":
            await w.classic_send(name, producer=producer, transaction=name)
        await w.ask(f"classic_{end}", name)
    for name in ("ca", "cb"):
        w.note(name, [one["value"] for one in await w.take(1, name)])
        await w.quiet("and", name)


@scenario("transaction")
async def what_is_behind_an_open_classic_transaction_waits(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer("Exclusive")
    await w.ask("classic_begin", "t")
    await w.classic_send("in", transaction="t")
    await w.classic_send("behind")
    await w.quiet("before")
    await w.ask("classic_commit", "t")
    w.note("after", [one["value"] for one in await w.take(2)])


@scenario("transaction", "redelivery")
async def a_message_that_is_refused_after_an_abort_is_counted(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer()
    await w.classic_send("v")
    (message,) = await w.take(1, ack=False)
    await w.ask("classic_begin", "t")
    await w.ask("classic_ack", "c", message=message["message"], transaction="t")
    await w.ask("classic_abort", "t")
    await w.ask("classic_nack", "c", message=message["message"])
    (again,) = await w.take(1)
    w.note("again", again["redelivered"])
