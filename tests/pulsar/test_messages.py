"""What one side sends, the other one reads: byte-true, in order, in both directions."""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pytest

import engine
from tests.pulsar.conftest import CODECS, EARLIEST, WAIT_MS, take

KEYS = [None, "a", "", "ünïcödé", None, None, "b", "a"]


def send_all(producer: Any, keys: list[str | None]) -> list[Any]:
    """One message for each key, at once; their ids."""
    ids: list[Any] = [None] * len(keys)
    complete = threading.Event()

    def sent(index: int) -> Any:
        def callback(result: Any, ident: Any) -> None:
            assert result == pulsar.Result.Ok
            ids[index] = ident
            if all(one is not None for one in ids):
                complete.set()

        return callback

    for i, key in enumerate(keys):
        producer.send_async(b"value %d" % i * 20, sent(i), partition_key=key, properties={"i": str(i)})
    producer.flush()
    assert complete.wait(WAIT_MS / 1000)
    return ids


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_batch_that_mixes_keyed_and_keyless_messages_keeps_its_order(client, topic, codec):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=100, compression_type=codec
    )
    ids = send_all(producer, KEYS)
    got = take(consumer, len(KEYS))
    assert [m.data() for m in got] == [b"value %d" % i * 20 for i in range(len(KEYS))]
    assert [m.properties() for m in got] == [{"i": str(i)} for i in range(len(KEYS))]
    assert [m.partition_key() for m in got] == [key or "" for key in KEYS]
    places = [ident.entry_id() + max(ident.batch_index(), 0) for ident in (m.message_id() for m in got)]
    assert places == list(range(len(KEYS)))
    assert [ident.entry_id() + max(ident.batch_index(), 0) for ident in ids] == places


def test_a_native_consumer_reads_what_a_pulsar_producer_sent(served, client, topic):
    producer = client.create_producer(topic, "named", batching_enabled=True, batching_max_publish_delay_ms=100)
    producer.send(b"\x00\xff", partition_key="k", properties={"p": "q", "ü": ""}, event_timestamp=1_700_000_000_123)
    send_all(producer, ["a"] * 3)
    producer.send(b"", ordering_key="o", sequence_id=77)
    with served.stream_consumer(topic, "native", initial_position="earliest") as consumer:
        first, *others = (consumer.receive(10.0) for _ in range(5))
        assert first is not None
        assert (first.key, first.value, first.properties) == (b"k", b"\x00\xff", {"p": "q", "ü": ""})
        assert first.event_time is not None
        assert first.event_time.timestamp() == 1_700_000_000.123
        assert (first.producer_name, first.sequence_id) == ("named", 0)
        assert [m.key for m in others[:3]] == [b"a"] * 3
        assert others[3].sequence_id == 77
        assert others[3].properties == {"pulsar.ordering-key": b"o".hex()}


def test_columns_of_what_a_pulsar_producer_sent(served, client, topic):
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
    send_all(producer, ["a", "b", "c"])
    with served.stream_consumer(topic, "native", initial_position="earliest") as consumer:
        batch = consumer.receive_batch(timeout=10.0)
        assert batch.to_arrow()["key"].to_pylist() == [b"a", b"b", b"c"]


def test_a_pulsar_consumer_reads_what_a_native_producer_sent(served, client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    with served.producer(topic, name="native", compression="zstd") as producer:
        producer.send(b"value", key=b"key", properties={"p": "q"}, event_time=1_700_000_000_500)
        producer.send(b"\xff" * 3, key=b"\xff\xfe")
        producer.send(b"keyless")
        producer.send_batch([b"x" * 100] * 1000, keys=[b"a"] * 1000)
    first, binary, keyless, *batch = take(consumer, 1003)
    assert (first.data(), first.partition_key(), first.properties()) == (b"value", "key", {"p": "q"})
    assert (first.event_timestamp(), first.producer_name()) == (1_700_000_000_500, "native")
    assert binary.partition_key() == "//4="
    assert keyless.data() == b"keyless"
    assert keyless.partition_key() == ""
    assert {m.data() for m in batch} == {b"x" * 100}


def test_an_ordering_key_and_sequence_ids_come_back(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, "named", batching_enabled=True, batching_max_publish_delay_ms=100)
    for i in (5, 6, 9):
        producer.send_async(b"v", lambda *_: None, sequence_id=i, ordering_key=f"o{i}", partition_key="k")
    producer.flush()
    assert [m.ordering_key() for m in take(consumer, 3)] == ["o5", "o6", "o9"]
    producer.close()
    assert client.create_producer(topic, "named").last_sequence_id() == 9


def test_a_message_as_large_as_may_be_comes_through(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    value = bytes(range(256)) * (5 * 1024 * 4 - 10)
    producer.send(value)
    assert consumer.receive(WAIT_MS).data() == value
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 1024 * 1024))
    producer.send(b"after")
    assert consumer.receive(WAIT_MS).data() == b"after"


def test_what_is_refused_alone_does_not_stop_what_follows(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"v", properties={"large": "x" * 100_000})
    producer.send(b"after")
    assert consumer.receive(WAIT_MS).data() == b"after"


def test_a_classic_topic_has_one_segment_for_ever(served, client, topic):
    client.create_producer(topic).send(b"v")
    assert topic in served.admin.list_topics("public/default")
    assert len(served.admin.get_metadata(topic)["segments"]) == 1
    with pytest.raises(engine.InvalidArgumentError, match="cannot be reshaped"):
        served.admin.split_segment(topic, 0)
    with pytest.raises(engine.InvalidArgumentError, match="must be 1"):
        served.admin.create_topic(f"{topic}-other", segments=2)
    other = topic.replace("persistent://", "topic://")
    served.admin.create_topic(other)
    assert served.admin.get_metadata(other)["keyHash"] == "xxh64"
