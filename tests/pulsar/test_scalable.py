"""Scalable topics, command by command, without a client: what is sent for each, and pushed later.

The same by Apache Pulsar's own client is in tests/interop.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from engine.model.names import TopicName
from engine.pulsar import server_errors
from engine.pulsar.producers import Producers
from tests.pulsar.raw import Raw, framed_send, greeted
from tests.reference.pulsar_reference import PulsarMessage

FIRST_CLIENT = "Pulsar-Java-v5.0.0-M1"
STICKY = {"mode": 1, "ranges": [{"start": 0, "end": 65535}]}
EXCLUSIVE, KEY_SHARED = 0, 3


@pytest.fixture
def topic(topic: str) -> str:
    return topic.replace("persistent://", "topic://")


async def looked_up(raw: Raw, topic: str, session: int = 1) -> Any:
    await raw.say_command("scalable_lookup", session=session, topic=topic)
    return await raw.heard("scalable_update")


def names_of(update: Any) -> list[str]:
    """The segments, as a client names them."""
    prefix = update.resolved.replace("topic://", "segment://")
    return [f"{prefix}/{one.start:04x}-{one.end:04x}-{one.id}" for one in update.dag.segments]


async def produced(raw: Raw, segment: str, messages: list[PulsarMessage], producer: int = 1) -> None:
    await raw.say_command("producer", topic=segment, producer=producer, request=50 + producer)
    await raw.heard("producer_success")
    await raw.say(framed_send(producer, messages))
    await raw.heard("send_receipt")


async def answered(raw: Raw) -> tuple[str, Any]:
    """The next answer to a PRODUCER."""
    while (heard := await raw.hear()) is not None:
        if heard[0] in ("producer_success", "error"):
            return heard
    raise AssertionError("the connection has ended")


async def subscribed(raw: Raw, segment: str, name: str, consumer: int, **more: Any) -> None:
    said = {"subscription": "s", "name": name, "type": EXCLUSIVE, "initial_position": 1, **more}
    await raw.say_command("subscribe", topic=segment, consumer=consumer, request=100 + consumer, **said)


async def test_a_name_of_a_producer_is_used_once_on_a_segment_also_while_it_is_opened(served, topic):
    served.admin.create_topic(topic, segments=2, key_hash="murmur3", auto_scale={"enabled": False})
    async with Raw(served) as raw:
        await greeted(raw)
        first, second = names_of(await looked_up(raw, topic))
        for request, segment in enumerate((first, second, first), 1):  # without a wait for the answers
            await raw.say_command("producer", topic=segment, producer=request, request=request, name="maker")
        answers = {}
        while len(answers) < 3:
            name, found = await raw.hear()
            if name in ("producer_success", "error"):
                answers[found.request] = name
    assert answers[2] == "producer_success"  # another segment is a topic of its own to a client
    assert sorted((answers[1], answers[3])) == ["error", "producer_success"]


async def test_a_layout_is_followed_through_a_split(served, topic):
    served.admin.create_topic(topic, segments=2, key_hash="murmur3", auto_scale={"enabled": False})
    async with Raw(served) as raw:
        await greeted(raw)
        first = await looked_up(raw, topic)
        assert first.resolved == topic
        assert [(one.start, one.end, one.state) for one in first.dag.segments] == [(0, 0x7FFF, 0), (0x8000, 0xFFFF, 0)]
        assert {one.id for one in first.dag.brokers} == {0, 1}
        assert first.dag.controller.startswith("pulsar://")
        served.admin.split_segment(topic, 0)
        while (update := await raw.heard("scalable_update")).dag.epoch == first.dag.epoch:
            pass  # owners of segments are known one after the other
        assert update.dag.epoch == first.dag.epoch + 1
        assert [one.state for one in update.dag.segments] == [1, 0, 0, 0]
        assert list(update.dag.segments[0].children) == [2, 3]
        await raw.say_command("scalable_close", session=1)
        assert (await looked_up(raw, topic)).dag.epoch == update.dag.epoch  # the id is free again


@pytest.mark.parametrize(("client", "key_hash"), [(FIRST_CLIENT, "murmur3-low"), ("Pulsar-Java-v5.0.0", "murmur3")])
async def test_a_lookup_creates_the_topic_with_the_hash_of_its_client(served, topic, client, key_hash):
    async with Raw(served) as raw:
        await greeted(raw, client)
        assert (await looked_up(raw, topic)).dag.epoch == 0
    assert served.admin.get_metadata(topic)["keyHash"] == key_hash


@pytest.mark.parametrize(
    "name",
    [
        "persistent://public/default/x-partition-0",
        "non-persistent://public/default/x",
        "segment://public/default/x/0000-ffff-0",
        "a/b",
    ],
)
async def test_a_lookup_of_another_kind_is_refused(served, name):
    async with Raw(served) as raw:
        await greeted(raw)
        update = await looked_up(raw, name)
        assert update.error
        assert update.message
        assert not update.HasField("dag")


@pytest.mark.parametrize("count", [0, 1, 3, 7])
async def test_a_classic_topic_is_a_layout_of_its_partitions(served, topic, count):
    name = topic.replace("topic://", "persistent://")
    if count:
        served.admin.create_topic(name, properties={"pulsar.partitions": str(count)})
    async with Raw(served) as raw:
        await greeted(raw, FIRST_CLIENT)
        update = await looked_up(raw, name)
        assert update.resolved == f"topic://public/default/{TopicName.parse(name).local}"
        names = [one.classic for one in update.dag.segments]
        assert names == ([f"{name}-partition-{n}" for n in range(count)] or [name])
        assert [one.id for one in update.dag.segments] == list(range(max(count, 1)))
        edges = [(one.start, one.end) for one in update.dag.segments]
        assert [start for start, _ in edges] == [0, *(end + 1 for _, end in edges[:-1])]
        assert edges[-1][1] == 0xFFFF
        assert all(one.HasField("created_epoch") and one.HasField("created_ms") for one in update.dag.segments)
        assert (await looked_up(raw, update.resolved)).dag == update.dag  # what a client makes of it means the same
        await raw.say_command(
            "scalable_subscribe", request=1, topic=name, subscription="s", name="c", consumer=1, type=0
        )
        refused = await raw.heard("scalable_subscribe_response")
        assert refused.error == server_errors.NOT_ALLOWED
        assert "queue consumers" in refused.message
    assert topic not in served.admin.list_topics("public/default")
    assert (name in served.admin.list_topics("public/default")) == bool(count)  # a lookup creates none


async def test_a_name_that_only_a_scalable_topic_has_is_that_topic(served, topic):
    """As the client of Java asks for a name without a scheme."""
    name = topic.replace("topic://", "persistent://")
    served.admin.create_topic(topic, segments=2, key_hash="murmur3-low", auto_scale={"enabled": False})
    async with Raw(served) as raw:
        await greeted(raw, FIRST_CLIENT)
        update = await looked_up(raw, name)
        assert update.resolved == topic
        assert [one.classic for one in update.dag.segments] == ["", ""]
        await raw.say_command(
            "scalable_subscribe", request=1, topic=name, subscription="s", name="c", consumer=1, type=0
        )
        assert len((await raw.heard("scalable_subscribe_response")).assignment.segments) == 2
        served.admin.create_topic(name)
        assert [one.classic for one in (await looked_up(raw, name, 2)).dag.segments] == [name]


async def test_a_topic_that_is_deleted_ends_what_follows_it(served, topic):
    served.admin.create_topic(topic, key_hash="murmur3")
    async with Raw(served) as raw:
        await greeted(raw)
        await looked_up(raw, topic)
        served.admin.delete_topic(topic)
        while not (update := await raw.heard("scalable_update")).message:
            pass
        assert "was deleted" in update.message


async def test_a_stream_reads_parents_before_children(served, topic):
    served.admin.create_topic(topic, key_hash="murmur3", entry_buckets=2, auto_scale={"enabled": False})
    async with Raw(served) as raw:
        await greeted(raw)
        update = await looked_up(raw, topic)
        await raw.say_command("scalable_close", session=1)
        (segment,) = names_of(update)
        await produced(raw, segment, [PulsarMessage(b"%d" % n, b"k%d" % n) for n in range(8)])
        await raw.say_command(
            "scalable_subscribe", request=7, topic=topic, subscription="s", name="c", consumer=1, type=0
        )
        answer = await raw.heard("scalable_subscribe_response")
        assert [one.topic for one in answer.assignment.segments] == [segment]
        await subscribed(raw, segment, "c-seg-0", 2)
        await raw.heard("success")
        served.admin.split_segment(topic, 0)
        await raw.say_command("flow", consumer=2, permits=100)
        while sum(raw.counts) < 8:
            last = (await raw.heard("message")).message_id
        await raw.say_command("ack", consumer=2, type=1, ids=[{"ledger": last.ledger, "entry": last.entry}])
        # Drained: the segment has ended, and its children are assigned, in whichever order.
        ended, assigned = False, set[int]()
        while not ended or len(assigned) < 2:
            heard = await raw.hear()
            assert heard is not None
            ended = ended or heard[0] == "reached_end"
            if heard[0] == "assignment_update":
                assigned = {one.id for one in heard[1].assignment.segments}
        assert assigned == {1, 2}


@pytest.mark.parametrize("kind", [EXCLUSIVE, KEY_SHARED])
async def test_two_of_a_stream_share_a_segment_only_where_both_are_assigned_it(served, topic, kind):
    served.admin.create_topic(topic, key_hash="murmur3", entry_buckets=4, auto_scale={"enabled": False})
    more = {"type": kind, "key_shared": STICKY} if kind == KEY_SHARED else {}
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        for number, name in ((1, "a"), (2, "b")):
            await raw.say_command(
                "scalable_subscribe", request=number, topic=topic, subscription="s", name=name, consumer=number, type=0
            )
            await raw.heard("scalable_subscribe_response")
        for number, name in ((3, "a"), (4, "b")):
            await subscribed(raw, segment, f"{name}-seg-0", number, **more)
            await raw.heard("success")
            await raw.say_command("flow", consumer=number, permits=1_000)
        await subscribed(raw, segment, "stranger", 5, **more)
        assert "is read by the consumer" in (await raw.heard("error")).message
        await produced(raw, segment, [PulsarMessage(b"%d" % n, b"k%d" % n) for n in range(40)])
        while sum(raw.counts) < 40:
            await raw.heard("message")
        assert set(raw.consumers) == {3, 4}


async def test_a_producer_of_another_hash_is_refused(served, topic):
    served.admin.create_topic(topic, key_hash="xxh64")
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        await raw.say_command("producer", topic=segment, producer=1, request=1)
        assert "must be murmur3" in (await raw.heard("error")).message


async def test_a_sealed_segment_takes_no_producer(served, topic):
    terminated = 15  # for which a client asks for the layout again
    served.admin.create_topic(topic, key_hash="murmur3")
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        served.admin.split_segment(topic, 0)
        await raw.say_command("producer", topic=segment, producer=1, request=1)
        assert (await raw.heard("error")).error == terminated


async def test_what_meets_a_seal_is_stored_and_answered_or_its_producer_is_closed(served, topic):
    """Each message, of whatever number of entries: so a client that sends again what has no receipt loses nothing."""
    served.admin.create_topic(topic, key_hash="murmur3", entry_buckets=4, auto_scale={"enabled": False})
    sends = 300
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        await raw.say_command("producer", topic=segment, producer=1, request=1)
        await raw.heard("producer_success")
        splitting = asyncio.ensure_future(asyncio.to_thread(served.admin.split_segment, topic, 0))
        for number in range(sends):
            batch = [PulsarMessage(b"%d" % number, b"k%d" % key) for key in range(8)]  # an entry for each bucket
            await raw.say(framed_send(1, batch, 8 * number))
            await asyncio.sleep(0)
        answered_to, heard = [], set()
        while not {"close_producer", "new layout"} <= heard:
            name, found = await raw.hear()
            assert name not in ("error", "send_error"), found
            if name == "send_receipt":
                assert "close_producer" not in heard
                answered_to.append(found.sequence)
            heard.add("new layout" if name == "scalable_update" and found.dag.epoch else name)
        await splitting
    assert answered_to == [8 * number for number in range(len(answered_to))]
    with served.stream_consumer(topic, "s", initial_position="earliest") as consumer:
        values = [consumer.receive(timeout=60).value for _ in range(8 * len(answered_to))]
        assert sorted(values) == sorted(b"%d" % number for number in range(len(answered_to)) for _ in range(8))
        assert consumer.receive(timeout=0.2) is None


async def test_what_is_sent_behind_a_seal_is_dropped_once_its_producer_is_closed(served, topic):
    served.admin.create_topic(topic, key_hash="murmur3", auto_scale={"enabled": False})
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        await produced(raw, segment, [PulsarMessage(b"before", b"k")])
        await asyncio.to_thread(served.admin.split_segment, topic, 0)
        await raw.say(framed_send(1, [PulsarMessage(b"lost", b"k")], 1))
        heard = []
        while not heard or heard[-1] != "new layout":
            name, found = await raw.hear()
            heard.append("new layout" if name == "scalable_update" and found.dag.epoch else name)
        told = [name for name in heard if name != "scalable_update"]  # owners of segments
        assert told == ["close_producer", "new layout"]
        await raw.say_command("close_producer", producer=1, request=9)  # the client need not have heard of it
        assert (await raw.heard("success")).request == 9
        upper = names_of(found)[2]  # the child that has the key
        await produced(raw, upper, [PulsarMessage(b"behind", b"k")], 2)
    with served.stream_consumer(topic, "s", initial_position="earliest") as consumer:
        for value in (b"before", b"behind"):
            message = consumer.receive(timeout=60)
            assert message.value == value
            consumer.acknowledge_cumulative(message)


async def test_a_producer_whose_segment_is_sealed_as_it_opens_is_asked_to_open_again(served, topic, monkeypatch):
    """What it sent would be lost, and nothing would tell its client."""
    not_ready, terminated = 6, 15
    served.admin.create_topic(topic, key_hash="murmur3", auto_scale={"enabled": False})
    find_routing = Producers._routing_of

    async def sealed_meanwhile(self, name):
        await asyncio.to_thread(served.admin.split_segment, topic, 0)
        return await find_routing(self, name)

    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        with monkeypatch.context() as patched:
            patched.setattr(Producers, "_routing_of", sealed_meanwhile)
            await raw.say_command("producer", topic=segment, producer=1, request=1)
            name, found = await answered(raw)
        assert (name, found.error) == ("error", not_ready)
        await raw.say_command("producer", topic=segment, producer=1, request=2)
        name, found = await answered(raw)
        assert (name, found.error) == ("error", terminated)


async def test_a_producer_that_its_client_closes_as_it_opens_leaves_its_name(served, topic, monkeypatch):
    served.admin.create_topic(topic, key_hash="murmur3")
    find_routing, is_attached, was_closed = Producers._routing_of, threading.Event(), threading.Event()

    async def closed_meanwhile(self, name):
        is_attached.set()
        await asyncio.to_thread(was_closed.wait, 60)
        return await find_routing(self, name)

    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))
        with monkeypatch.context() as patched:
            patched.setattr(Producers, "_routing_of", closed_meanwhile)
            await raw.say_command("producer", topic=segment, producer=1, request=1, name="maker")
            assert await asyncio.to_thread(is_attached.wait, 60)
            await raw.say_command("close_producer", producer=1, request=2)
            await raw.heard("success")
            was_closed.set()
            assert (await answered(raw))[0] == "error"
        await raw.say_command("producer", topic=segment, producer=2, request=3, name="maker")
        assert (await answered(raw))[0] == "producer_success"


async def test_a_consumer_that_registers_again_keeps_its_connection(served, topic):
    """A client does not say that it has closed one that had no consumer of a segment at that moment."""
    served.admin.create_topic(topic, key_hash="murmur3")
    async with Raw(served) as raw:
        await greeted(raw)
        await looked_up(raw, topic)
        for number in (1, 2):
            said = {"topic": topic, "subscription": "s", "name": "c", "consumer": number, "request": number}
            await raw.say_command("scalable_subscribe", **said)
            found = await raw.heard("scalable_subscribe_response")
            assert (found.request, found.HasField("error")) == (number, False)
        (segment,) = names_of(await looked_up(raw, topic, session=2))
        await subscribed(raw, segment, "c-seg-0", 3)
        await raw.heard("success")


@pytest.mark.parametrize("named", [True, False])
async def test_exclusive_access_goes_on_at_the_children(served, topic, named):
    served.admin.create_topic(topic, key_hash="murmur3")
    async with Raw(served) as raw:
        await greeted(raw)
        (segment,) = names_of(await looked_up(raw, topic))

        async def opened(answer: str, number: int, segment: str, name: str = "p") -> None:
            said = {"name": f"{name}-seg-{segment.rpartition('-')[2]}"} if named else {}
            exclusive = {"topic": segment, "access_mode": 1, "request": number, **said}
            await raw.say_command("producer", producer=number, **exclusive)
            await raw.heard(answer)

        await opened("producer_success", 1, segment)
        await opened("error", 2, segment, "q")
        served.admin.split_segment(topic, 0)
        for number, child in enumerate(names_of(await raw.heard("scalable_update"))[1:], 2):
            if named:
                await opened("error", 10 * number, child, "q")
            await opened("producer_success", 10 * number + 1, child)
            await opened("error", 10 * number + 2, child, "q")


async def test_transactions_name_one_of_two_coordinators(served):
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("watch_tcs", watch=1)
        assert [one.tc for one in (await raw.heard("watch_tcs_update")).snapshot.assignments] == [0, 1]
        for number in range(6):
            await raw.say_command("new_txn", request=number, tc=number % 2, ttl_ms=60_000)
            begun = await raw.heard("new_txn_response")
            assert (begun.txn_high, begun.txn_low >> 63) == (number % 2, 0)
            await raw.say_command(
                "end_txn", request=number, txn_high=begun.txn_high, txn_low=begun.txn_low, action=number % 2
            )
            assert not (await raw.heard("end_txn_response")).HasField("error")
        await raw.say_command("new_txn", request=9, tc=2, ttl_ms=60_000)
        assert "tc_id must be" in (await raw.heard("new_txn_response")).message
        await raw.say_command("end_txn", request=9, txn_high=0, txn_low=5, action=0)
        assert (await raw.heard("end_txn_response")).error == 24  # TransactionNotFound
