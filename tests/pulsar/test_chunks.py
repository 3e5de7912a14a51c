"""Messages in chunks: each chunk is stored once and as it was sent, also when it comes again; and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

import engine
from engine.limits import MESSAGE_SIZE_MAX
from tests.chaos.server import Server
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, is_quiet, take
from tests.pulsar.opaque import KEYS, chunk_of, make_keys, metadata_of, send_of
from tests.pulsar.raw import Raw, greeted

BIG = bytes(range(256)) * (2 * MESSAGE_SIZE_MAX // 256 + 1)  # 3 chunks
TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]
TOPIC = "persistent://public/default/chunks"


def chunking(client: pulsar.Client, topic: str, name: str | None = None, **options: Any) -> Any:
    return client.create_producer(topic, name, chunking_enabled=True, send_timeout_millis=0, **options)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_large_message_comes_whole_between_others(client, served, topic, kind) -> None:
    producer = chunking(client, topic, compression_type=pulsar.CompressionType.NONE)
    producer.send(b"before")
    ident = producer.send(BIG, partition_key="k", properties={"p": "q"})
    producer.send(b"behind")
    consumer = client.subscribe(
        topic,
        "s",
        kind,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=10,
        start_message_id_inclusive=True,
    )
    messages = take(consumer, 3)
    assert [message.data() for message in messages] == [b"before", BIG, b"behind"]
    assert (messages[1].properties(), messages[1].partition_key()) == ({"p": "q"}, "k")
    assert messages[1].message_id() == ident
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.negative_acknowledge(messages[1])
    assert consumer.receive(WAIT_MS).data() == BIG
    consumer.seek(ident)
    assert [message.data() for message in take(consumer, 2)] == [BIG, b"behind"]
    for message in messages[1:]:
        consumer.acknowledge(message)
    consumer.close()
    assert served.admin.get_stats(topic)["subscriptions"]["s"]["backlog"] == 0
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"before", BIG, b"behind"]


def test_chunks_that_are_encrypted_as_well(client, topic, tmp_path) -> None:
    make_keys(tmp_path / "secret.pem", tmp_path / "public.pem")
    keys = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "secret.pem"))
    chunking(client, topic, encryption_key="k", crypto_key_reader=keys).send(BIG)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, crypto_key_reader=keys)
    assert consumer.receive(WAIT_MS).data() == BIG


def test_all_chunks_of_a_message_go_to_one_of_several_shared_consumers(client, topic) -> None:
    shared = pulsar.ConsumerType.Shared
    consumers = [client.subscribe(topic, "s", shared, initial_position=EARLIEST) for _ in range(3)]
    producers = [chunking(client, topic) for _ in range(2)]
    sent = [bytes([n]) * (MESSAGE_SIZE_MAX + 1) for n in range(6)]
    for n, value in enumerate(sent):
        producers[n % 2].send_async(value, None)
    for producer in producers:
        producer.flush()
    found = []
    while len(found) < len(sent):
        for consumer in consumers:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found.append(message.data())
    assert sorted(found) == sent
    assert all(is_quiet(consumer) for consumer in consumers)


def test_clients_of_ours_are_told_what_it_is(client, served, topic) -> None:
    chunking(client, topic).send(BIG)
    with (
        served.stream_consumer(topic, "s", initial_position="earliest") as consumer,
        pytest.raises(engine.DecryptionError, match="sent in chunks by a client of Apache Pulsar"),
    ):
        consumer.receive(timeout=60)


def test_a_topic_that_demands_encryption_does_not_take_plain_chunks(client, served, topic) -> None:
    served.admin.create_topic(topic)
    served.admin.set_topic_policies(topic, {"encryption_required": True})
    with pytest.raises(pulsar.PulsarException):
        chunking(client, topic).send(BIG)
    assert served.admin.get_stats(topic)["segments"]["0"]["nextOffset"] == 0


# -- by hand -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def producing(served: Any, topic: str, name: str = "p") -> AsyncIterator[Raw]:
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("producer", topic=topic, producer=1, request=1, name=name)
        await raw.heard("producer_success")
        yield raw


async def answers(raw: Raw, *frames: bytes) -> list[tuple[str, Any]]:
    """What each SEND is answered with: the entry of its id, or the text of the error."""
    await raw.say(*frames)
    found: list[tuple[str, Any]] = []
    for _ in frames:
        heard = await raw.hear()
        assert heard is not None
        name, said = heard
        found.append((name, said.message_id.entry if name == "send_receipt" else said.message))
    return found


def message(sequence: int, chunks: int, *, only: range | None = None, mark: str = "", **fields: Any) -> list[bytes]:
    """The SENDs of its chunks."""
    return [
        send_of(
            sequence,
            chunk_of(sequence, n, chunks, **fields),
            f"{mark}{sequence}.{n}".encode(),
            is_chunk=True,
        )
        for n in only or range(chunks)
    ]


async def stored(served: Any, topic: str, count: int) -> list[str]:
    """The payloads of all entries, which must be so many."""
    found = served.admin.get_stats(topic)["segments"]["0"]["nextOffset"]
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("subscribe", topic=topic, subscription="r", type=0, consumer=7, request=1, durable=False,
                              initial_position=1)  # fmt: skip
        await raw.heard("success")
        await raw.say_command("flow", consumer=7, permits=100_000)
        for _ in range(found):
            await raw.heard("message")
        assert found == count, raw.payloads
        return [one[4 + int.from_bytes(one[:4], "big") :].decode() for one in raw.payloads]


def receipts(*entries: int) -> list[tuple[str, int]]:
    return [("send_receipt", entry) for entry in entries]


NOWHERE = 2**64 - 1
QUIET_MS = 3_000  # without a message, while some must come


async def test_each_chunk_is_stored_once_whenever_it_comes_again(served, topic) -> None:
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(5, 4, only=range(2))) == receipts(0, 1)
    async with producing(served, topic) as raw:  # all of it again, and to the end
        assert await answers(raw, *message(5, 4)) == receipts(0, 1, 2, 3)
        assert await answers(raw, *message(6, 3, only=range(2))) == receipts(4, 5)
    async with producing(served, topic) as raw:  # a message that is stored, then one from its middle on
        assert await answers(raw, *message(5, 4)) == receipts(NOWHERE, NOWHERE, NOWHERE, 3)
        assert await answers(raw, *message(6, 3, only=range(1, 3))) == receipts(5, 6)
        assert await answers(raw, send_of(7, metadata_of(7, encryption_keys=KEYS), b"7")) == receipts(7)
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(6, 3)) == receipts(4, 5, 6)
    assert await stored(served, topic, 8) == ["5.0", "5.1", "5.2", "5.3", "6.0", "6.1", "6.2", "7"]


async def test_a_message_of_another_process_is_another_one(served, topic) -> None:
    """It has the name, the sequence id and so the uuid of one that was given up in the middle."""
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(0, 3, only=range(2), mark="a")) == receipts(0, 1)
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(0, 3, mark="b", publish_time=2)) == receipts(2, 3, 4)
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(0, 3, mark="b", publish_time=2)) == receipts(2, 3, 4)
    assert await stored(served, topic, 5) == ["a0.0", "a0.1", "b0.0", "b0.1", "b0.2"]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (message(1, 3, only=range(1, 2)), "must come in order"),
        (message(1, 3, only=range(2, 3)), "must come in order"),
        ([send_of(1, chunk_of(1, 3, 3), b"x")], "be one of 3"),
        ([send_of(1, chunk_of(1, -1, 3), b"x")], "be one of 3"),
        ([send_of(1, metadata_of(1, chunks=3, chunk=0), b"x")], "must have a uuid"),
        ([send_of(1, chunk_of(1, 0, 3, count=1), b"x")], "must not be a batch"),
        ([send_of(1, chunk_of(1, 0, 3, marker=20), b"x")], "markers"),
        ([send_of(1, chunk_of(1, 0, 3, uuid="u" * 2**16), b"x")], "must have at most 65,536 bytes"),
    ],
    ids=["second", "last", "behind", "negative", "uuid", "batch", "marker", "metadata"],
)
async def test_what_is_no_chunk_in_its_turn_is_refused_alone(served, topic, frames, text) -> None:
    async with producing(served, topic) as raw:
        assert await answers(raw, *message(0, 2)) == receipts(0, 1)
        ((name, why),) = await answers(raw, *frames)
        assert name == "send_error"
        assert text in why
        assert await answers(raw, *message(2, 2)) == receipts(2, 3)
    assert await stored(served, topic, 4) == ["0.0", "0.1", "2.0", "2.1"]


async def test_chunks_of_two_messages_do_not_mix(served, topic) -> None:
    async with producing(served, topic) as raw:
        first, second = message(0, 3), message(1, 3)
        assert await answers(raw, first[0], second[0]) == receipts(0, 1)
        ((name, why),) = await answers(raw, first[1])
        assert (name, "one behind the other" in why) == ("send_error", True)
        assert await answers(raw, *second[1:]) == receipts(2, 3)
    assert await stored(served, topic, 4) == ["0.0", "1.0", "1.1", "1.2"]


async def test_a_scalable_topic_takes_no_chunks(served) -> None:
    served.admin.create_topic("topic://public/default/split", key_hash="murmur3")
    ends = "0000-ffff-0"
    async with producing(served, f"segment://public/default/split/{ends}") as raw:
        ((name, why),) = await answers(raw, message(0, 2)[0])
        assert (name, "persistent://" in why) == ("send_error", True)
        assert await answers(raw, send_of(0, metadata_of(0, encryption_keys=KEYS), b"x")) == receipts(0)


async def test_chunks_are_found_again_after_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    await server.start()
    for turn in range(4):  # each session gets one chunk further, and begins at the first one
        async with producing(At(server), TOPIC) as raw:
            assert await answers(raw, *message(3, 5, only=range(turn + 1))) == receipts(*range(turn + 1))
        await server.kill()
        await server.start()
    async with producing(At(server), TOPIC) as raw:
        assert await answers(raw, *message(3, 5), *message(4, 2)) == receipts(0, 1, 2, 3, 4, 5, 6)
    await server.close()


class At:
    """What Raw is told of a server."""

    def __init__(self, server: Server) -> None:
        self.service_url = server.url


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=[pytest.mark.fuzz, pytest.mark.timeout(600)])])
async def test_large_messages_come_whole_and_once_when_the_server_is_killed(tmp_path: Path, kills: int) -> None:
    """By the client of Python, whose producer sends again what has no receipt."""
    server = Server(tmp_path / "data")
    await server.start()
    client = connect(f"pulsar://127.0.0.1:{server.port}")
    consumer = await asyncio.to_thread(client.subscribe, TOPIC, "s", initial_position=EARLIEST)
    producer = await asyncio.to_thread(chunking, client, TOPIC, "writer")
    sent, results, found = [], [], []
    for turn in range(kills + 1):
        for _ in range(4):
            value = bytes([len(sent)]) * (MESSAGE_SIZE_MAX * 3)
            sent.append(value)
            await asyncio.to_thread(producer.send_async, value, lambda result, ident: results.append(result))
        if turn < kills:
            await server.kill()
            await server.start()
    await asyncio.to_thread(producer.flush)
    assert set(results) == {pulsar.Result.Ok}
    async with asyncio.timeout(2 * WAIT_MS / 1000):
        while len(set(found)) < len(sent):
            try:
                message = await asyncio.to_thread(consumer.receive, QUIET_MS)
            except pulsar.Timeout:
                # Of a message that it had a part of, this client drops the chunks that come again behind a kill.
                await asyncio.to_thread(consumer.redeliver_unacknowledged_messages)
                continue
            found.append(message.data())
            await asyncio.to_thread(consumer.acknowledge, message)
    await asyncio.to_thread(client.close)
    final = connect(f"pulsar://127.0.0.1:{server.port}")
    reader = await asyncio.to_thread(final.create_reader, TOPIC, pulsar.MessageId.earliest)
    assert [(await asyncio.to_thread(reader.read_next, WAIT_MS)).data() for _ in sent] == sent
    assert not await asyncio.to_thread(reader.has_message_available)
    await asyncio.to_thread(final.close)
    await server.close()
