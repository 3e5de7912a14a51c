"""What clients of Apache Pulsar have encrypted is stored as they sent it, and comes back to them as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest

import engine
from engine.limits import PROPERTIES_SIZE_MAX
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, is_quiet, service_url, take
from tests.pulsar.opaque import KEYS, make_keys, metadata_of, send_of
from tests.pulsar.raw import Raw, greeted

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]
VALUES = [b"value %d" % n for n in range(12)]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "secret.pem", folder / "public.pem")
    return pulsar.CryptoKeyReader(str(folder / "public.pem"), str(folder / "secret.pem"))


def produce(
    client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, values: list[bytes], **options: Any
) -> None:
    """Encrypted, in one batch unless `options` say that it is none."""
    said = {"batching_enabled": True, "batching_max_publish_delay_ms": 10_000, **options}
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys, **said)
    for n, value in enumerate(values):
        producer.send_async(value, None, partition_key=f"k{n % 3}", properties={"n": str(n)}, event_timestamp=5)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("batched", [True, False], ids=["batch", "alone"])
def test_who_has_the_key_reads_each_message_as_it_was_sent(client, topic, keys, kind, batched) -> None:
    produce(client, topic, keys, VALUES, batching_enabled=batched, compression_type=pulsar.CompressionType.ZLib)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST, crypto_key_reader=keys)
    messages = take(consumer, len(VALUES))
    assert [message.data() for message in messages] == VALUES
    assert [message.properties() for message in messages] == [{"n": str(n)} for n in range(len(VALUES))]
    assert [message.partition_key() for message in messages] == [f"k{n % 3}" for n in range(len(VALUES))]
    assert {message.event_timestamp() for message in messages} == {5}
    for message in messages:
        consumer.acknowledge(message)
    assert is_quiet(consumer)
    consumer.close()
    again = client.subscribe(topic, "s", kind, crypto_key_reader=keys)
    assert is_quiet(again)


def test_single_acknowledgements_in_an_encrypted_batch_count(client, served, topic, keys) -> None:
    produce(client, topic, keys, VALUES)
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST, crypto_key_reader=keys,
        batch_index_ack_enabled=True,
    )  # fmt: skip
    messages = take(consumer, len(VALUES))
    for message in messages[1::2]:
        consumer.acknowledge(message)
    consumer.close()
    assert served.admin.get_stats(topic)["subscriptions"]["s"]["backlog"] == len(VALUES) // 2
    again = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, crypto_key_reader=keys)
    assert [message.data() for message in take(again, len(VALUES) // 2)] == VALUES[::2]
    assert is_quiet(again)


def test_redelivery_seek_and_readers(client, topic, keys) -> None:
    produce(client, topic, keys, VALUES[:4])
    produce(client, topic, keys, VALUES[4:], batching_enabled=False)
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST, crypto_key_reader=keys,
        negative_ack_redelivery_delay_ms=10,
    )  # fmt: skip
    messages = take(consumer, len(VALUES))
    consumer.negative_acknowledge(messages[7])
    assert [(m.data(), m.redelivery_count()) for m in take(consumer, 1)] == [(VALUES[7], 1)]
    consumer.seek(messages[5].message_id())  # this client leaves out the message that it names
    assert [message.data() for message in take(consumer, 6)] == VALUES[6:]
    reader = client.create_reader(topic, messages[3].message_id(), crypto_key_reader=keys)
    assert [reader.read_next(WAIT_MS).data() for _ in range(8)] == VALUES[4:]
    assert not reader.has_message_available()


def test_without_the_key_the_action_of_the_consumer_is_taken_and_the_others_lose_nothing(client, served, topic, keys):
    actions = pulsar.ConsumerCryptoFailureAction
    produce(client, topic, keys, VALUES)

    def subscribe(name: str, **options: Any) -> Any:
        return client.subscribe(topic, name, initial_position=EARLIEST, **options)

    consuming = subscribe("consume", crypto_failure_action=actions.CONSUME)
    (sealed,) = take(consuming, 1)  # the batch, as it is
    assert sealed.data() not in VALUES
    consuming.acknowledge(sealed)
    assert is_quiet(consuming)
    discarding = subscribe("discard", crypto_failure_action=actions.DISCARD)
    failing = subscribe("fail", crypto_failure_action=actions.FAIL)
    client.create_producer(topic).send(b"readable")
    assert [message.data() for message in take(discarding, 1)] == [b"readable"]
    assert [message.data() for message in take(failing, 1)] == [b"readable"]
    for consumer in (consuming, discarding, failing):
        consumer.close()
    assert [message.data() for message in take(subscribe("fail", crypto_key_reader=keys), len(VALUES))] == VALUES
    backlogs = {name: one["backlog"] for name, one in served.admin.get_stats(topic)["subscriptions"].items()}
    assert (backlogs["consume"], backlogs["discard"]) == (1, 1)


def test_one_key_comes_to_one_consumer_in_its_order(client, topic, keys) -> None:
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST, crypto_key_reader=keys)
        for _ in range(3)
    ]
    produce(client, topic, keys, VALUES, batching_enabled=False)
    found: dict[str, list[bytes]] = {}
    for consumer in consumers:
        while True:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                break
            found.setdefault(message.partition_key(), []).append(message.data())
            consumer.acknowledge(message)
    assert found == {f"k{n}": VALUES[n::3] for n in range(3)}


# -- others ------------------------------------------------------------------------------------------------------------


def test_clients_of_ours_are_told_who_can_read_it_and_nothing_is_passed_by(client, served, topic, keys) -> None:
    client.create_producer(topic).send(b"before")
    produce(client, topic, keys, VALUES)
    client.create_producer(topic).send(b"behind")
    with served.stream_consumer(topic, "stream", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=60).value == b"before"
        for _ in range(2):
            with pytest.raises(engine.DecryptionError, match="encrypted by a client of Apache Pulsar"):
                consumer.receive(timeout=60)
    with served.queue_consumer(topic, "queue", initial_position="earliest") as consumer:
        consumer.acknowledge(consumer.receive(timeout=60))
        for _ in range(2):
            with pytest.raises(engine.DecryptionError, match="only such a client that has its key"):
                consumer.receive(timeout=60)
    assert served.admin.get_stats(topic)["subscriptions"]["queue"]["backlog"] == len(VALUES) + 1
    with served.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as consumer:
        assert pa.table(consumer.receive_batch(timeout=60))["value"].to_pylist() == [b"before"]
        with pytest.raises(engine.DecryptionError):
            consumer.receive_batch(timeout=60)
    served.admin.skip_messages(topic, "queue", 0, 1, len(VALUES))
    with served.queue_consumer(topic, "queue", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=60).value == b"behind"


def test_keys_of_ours_do_not_help(client, served, topic, keys) -> None:
    from tests.kit.key_pairs import x25519_pair

    produce(client, topic, keys, VALUES)
    reads = {"k": x25519_pair(1).private}
    with (
        served.stream_consumer(topic, "s", initial_position="earliest", decryption_keys=reads) as consumer,
        pytest.raises(engine.DecryptionError, match="client of Apache Pulsar"),
    ):
        consumer.receive(timeout=60)


def test_a_topic_that_demands_encryption_takes_it(client, served, topic, keys) -> None:
    served.admin.create_topic(topic)
    served.admin.set_topic_policies(topic, {"encryption_required": True})
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic).send(b"plain")
    produce(client, topic, keys, VALUES)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, crypto_key_reader=keys)
    assert [message.data() for message in take(consumer, len(VALUES))] == VALUES


def test_it_is_there_after_a_restart(tmp_path: Path, keys) -> None:
    topic = "persistent://public/default/kept"
    for turn in range(2):
        with engine.open(tmp_path / "data", listen="127.0.0.1:0") as served:
            client = connect(service_url(served))
            if turn == 0:
                produce(client, topic, keys, VALUES)
            consumer = client.subscribe(topic, "s", initial_position=EARLIEST, crypto_key_reader=keys)
            assert [message.data() for message in take(consumer, len(VALUES))] == VALUES
            client.close()


# -- by hand -----------------------------------------------------------------------------------------------------------


async def opened(raw: Raw, topic: str, **fields: Any) -> None:
    await greeted(raw)
    await raw.say_command("producer", topic=topic, producer=1, request=1, **fields)
    await raw.heard("producer_success")


async def answered(raw: Raw, *frames: bytes) -> list[tuple[str, Any]]:
    """What each SEND is answered with."""
    await raw.say(*frames)
    found = []
    for _ in frames:
        heard = await raw.hear()
        assert heard is not None
        found.append(heard)
    return found


async def read_all(raw: Raw, topic: str, count: int) -> list[bytes]:
    """The payloads of so many MESSAGEs, behind their checksum."""
    await raw.say_command(
        "subscribe", topic=topic, subscription="r", type=0, consumer=7, request=70, initial_position=1
    )
    await raw.heard("success")
    await raw.say_command("flow", consumer=7, permits=100_000)
    for _ in range(count):
        await raw.heard("message")
    return raw.payloads


async def test_metadata_and_payload_come_back_byte_by_byte(served, topic) -> None:
    strange = {
        "key": b"/w==",
        "key_base64": True,
        "ordering_key": b"\xff",
        "schema_version": bytes(8),
        "null_value": True,
    }
    sent = [
        metadata_of(0, encryption_keys=KEYS, encryption_algorithm="a", encryption_param=bytes(12), **strange),
        metadata_of(1, encryption_keys=KEYS, count=3, highest_sequence=3, compression=1, uncompressed_size=2**31),
        metadata_of(4, encryption_keys=KEYS, count=2, highest_sequence=9, event_time=7),
        metadata_of(10, encryption_keys=KEYS) + b"\xd2\x3e\x02hi",  # an unknown field
    ]
    async with Raw(served) as raw:
        await opened(raw, topic, encrypted=True)
        await raw.say_command("get_or_create_schema", topic=topic, request=9, schema={"name": "s", "type": 1})
        await raw.heard("get_or_create_schema_response")
        answers = await answered(raw, *(send_of(n, one, b"opaque%d" % n) for n, one in enumerate(sent)))
        assert [(name, found.message_id.entry) for name, found in answers] == [
            ("send_receipt", 0), ("send_receipt", 1), ("send_receipt", 4), ("send_receipt", 6),
        ]  # fmt: skip
        payloads = await read_all(raw, topic, len(sent))
        assert payloads == [len(one).to_bytes(4, "big") + one + b"opaque%d" % n for n, one in enumerate(sent)]
        assert raw.counts == [1, 3, 2, 1]


async def test_what_came_before_is_a_duplicate_and_a_part_of_it_is_refused(served, topic) -> None:
    batch = {"encryption_keys": KEYS, "count": 3, "highest_sequence": 2}
    async with Raw(served) as raw:
        await opened(raw, topic, name="p")
        frames = [send_of(0, metadata_of(0, **batch), b"x")] * 2
        answers = await answered(raw, *frames)
        assert [(name, found.message_id.entry) for name, found in answers] == [("send_receipt", 0)] * 2
    cut = metadata_of(2, encryption_keys=KEYS, count=3, highest_sequence=4)
    async with Raw(served) as raw:
        await opened(raw, topic, name="p")
        ((name, found),) = await answered(raw, send_of(2, cut, b"x"))
        assert (name, "are stored already" in found.message) == ("send_error", True)
    assert served.admin.get_stats(topic)["segments"]["0"]["nextOffset"] == 3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 0}, "1 to 65,535 messages"),
        ({"count": 65_536}, "1 to 65,535 messages"),
        ({"count": -1}, "1 to 65,535 messages"),
        ({"encryption_param": bytes(PROPERTIES_SIZE_MAX)}, "must have at most 65,536 bytes"),
        ({"key": b"%", "key_base64": True}, "base64"),
        ({"sequence": 2**63}, "below 2^63"),
        ({"highest_sequence": 2**64 - 1}, "below 2^63"),
        ({"marker": 21}, "markers"),
        ({"replicate_to": [b"__local__", b"west"]}, "for this cluster alone"),
    ],
    ids=["none", "many", "negative", "metadata", "key", "sequence", "highest", "marker", "clusters"],
)
async def test_lies_are_refused_and_nothing_of_them_is_stored(served, topic, fields, text) -> None:
    async with Raw(served) as raw:
        await opened(raw, topic)
        metadata = metadata_of(**{"sequence": 0, "encryption_keys": KEYS} | fields)
        answers = await answered(
            raw, send_of(0, metadata, b"x"), send_of(1, metadata_of(1, encryption_keys=KEYS), b"y")
        )
        assert [name for name, _ in answers] == ["send_error", "send_receipt"]
        assert text in answers[0][1].message
        assert len(await read_all(raw, topic, 1)) == 1


async def test_a_message_that_is_not_to_be_replicated_is_taken(served, topic) -> None:
    async with Raw(served) as raw:
        await opened(raw, topic)
        ((name, _),) = await answered(raw, send_of(0, metadata_of(0, replicate_to=[b"__local__"]), b"x"))
        assert name == "send_receipt"


async def test_a_count_that_is_a_lie_takes_offsets_alone(served, topic) -> None:
    async with Raw(served) as raw:
        await opened(raw, topic)
        metadata = metadata_of(0, encryption_keys=KEYS, count=65_535)
        ((name, _),) = await answered(raw, send_of(0, metadata, b"x"))
        assert name == "send_receipt"
        assert len(await read_all(raw, topic, 1)) == 1
        await raw.say_command("ack", consumer=7, type=0, request=9, ids=[{"ledger": 0, "entry": 0}])
        assert not (await raw.heard("ack_response")).HasField("error")
    stats = served.admin.get_stats(topic)
    assert stats["segments"]["0"]["nextOffset"] == 65_535
    assert stats["subscriptions"]["r"]["backlog"] == 0


async def test_it_is_delivered_when_its_time_has_come(served, client, topic) -> None:
    shared = await asyncio.to_thread(client.subscribe, topic, "s", pulsar.ConsumerType.Shared)
    far = 2**41
    async with Raw(served) as raw:
        await opened(raw, topic)
        late = metadata_of(0, encryption_keys=KEYS, count=2, deliver_at=far)
        assert [name for name, _ in await answered(raw, send_of(0, late, b"x"))] == ["send_receipt"]
    await asyncio.to_thread(client.create_producer(topic).send, b"now")
    assert (await asyncio.to_thread(shared.receive, WAIT_MS)).data() == b"now"
    assert served.admin.get_stats(topic)["subscriptions"]["s"]["delayed"] == 2


async def test_a_part_of_a_transaction_comes_when_it_is_committed(served, topic) -> None:
    async with Raw(served) as raw:
        await opened(raw, topic)
        await raw.say_command("new_txn", request=2)
        begun = await raw.heard("new_txn_response")
        txn = {"txn_low": begun.txn_low, "txn_high": begun.txn_high}
        metadata = metadata_of(0, encryption_keys=KEYS, count=2)
        ((name, _),) = await answered(raw, send_of(0, metadata, b"inside", **txn))
        assert name == "send_receipt"
        await raw.say_command("end_txn", request=4, action=0, **txn)
        await raw.heard("end_txn_response")
        (payload,) = await read_all(raw, topic, 1)
        assert payload == len(metadata).to_bytes(4, "big") + metadata + b"inside"
