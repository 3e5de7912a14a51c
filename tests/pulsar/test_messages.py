"""What one side sends, the other one reads: byte-true, in order, in both directions."""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pyarrow as pa
import pytest

import engine
from engine.pulsar.producers import Producers
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


ROWS = [(None if n % 5 == 4 else b"k%d" % (n % 3), b"\x00\xff%d" % n * 9, {"n": str(n), "ü": ""}) for n in range(40)]
BY_DEFAULT = ["key", "value", "segment", "offset", "publish_time", "event_time", "properties"]
TIMES = [1_700_000_000_000 + n if n % 2 else None for n in range(len(ROWS))]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_arrow_reads_each_column_of_what_a_pulsar_producer_sent(served, client, topic, codec):
    """Names and sequence ids are columns where they are wanted: they are those of its messages."""
    producer = client.create_producer(
        topic, "named", batching_enabled=True, batching_max_publish_delay_ms=100, compression_type=codec
    )
    for n, ((key, value, properties), when) in enumerate(zip(ROWS, TIMES, strict=True)):
        said = {} if key is None else {"partition_key": key.decode()}
        said |= {} if when is None else {"event_timestamp": when}
        producer.send_async(value, lambda *_: None, properties=properties, sequence_id=10 + 2 * n, **said)
    producer.flush()
    with served.topic_view(topic) as view:
        ranges = {i: (one.first, one.end) for i, one in view.segments(exact=True).segments.items()}
    with served.range_reader(topic, ranges) as reader:
        table = pa.concat_tables([batch.to_arrow(include_sequence_ids=True) for batch in reader.batches()])
    with served.range_reader(topic, ranges) as reader:
        assert pa.concat_tables([pa.table(batch) for batch in reader.batches()]) == table.select(BY_DEFAULT)
    assert table["key"].to_pylist() == [key for key, _, _ in ROWS]
    assert table["value"].to_pylist() == [value for _, value, _ in ROWS]
    assert [dict(one) for one in table["properties"].to_pylist()] == [properties for *_, properties in ROWS]
    assert table["event_time"].cast(pa.int64()).to_pylist() == TIMES
    assert table["offset"].to_pylist() == list(range(len(ROWS)))
    with served.stream_consumer(topic, "native", initial_position="earliest") as consumer:
        messages = [consumer.receive(timeout=60) for _ in ROWS]
    assert [message.sequence_id for message in messages] == [10 + 2 * n for n in range(len(ROWS))]
    assert {message.producer_name for message in messages} == {"named"}
    ids = {"producer_name": ["named"] * len(ROWS), "sequence_id": [10 + 2 * n for n in range(len(ROWS))]}
    assert table.select(list(ids)).to_pydict() == ids
    assert served.table(topic, columns=list(ids)).to_pydict() == ids
    assert served.table(topic).column_names == BY_DEFAULT


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_arrow_tells_the_messages_of_several_producers_apart(served, client, topic, codec):
    """Two producers, and ids that the client counts itself."""
    producers = [client.create_producer(topic, name, compression_type=codec) for name in ("one", "two")]
    for n in range(6):
        producers[n % 2].send(b"%d" % n)
    table = served.table(topic, columns=["value", "producer_name", "sequence_id"])
    assert table.to_pylist() == [
        {"value": b"%d" % n, "producer_name": ("one", "two")[n % 2], "sequence_id": n // 2} for n in range(6)
    ]


@pytest.mark.parametrize("codec", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4], ids=str)
def test_the_frame_of_a_plain_batch_is_read_in_one_go(served, client, topic, codec, monkeypatch):
    read = []

    def send_plain(self: Producers, send: Any) -> None:
        read.append(send)
        taken(self, send)

    taken = Producers.send_plain
    monkeypatch.setattr(Producers, "send_plain", send_plain)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=100, compression_type=codec
    )
    ids = send_all(producer, KEYS)
    assert sum(count for *_, count, _, _ in read) == (len(KEYS) if codec == pulsar.CompressionType.NONE else 0)
    assert ids == sorted(ids, key=lambda one: (one.entry_id(), one.batch_index()))
    assert served.table(topic)["value"].to_pylist() == [b"value %d" % i * 20 for i in range(len(KEYS))]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_pulsar_consumer_reads_a_table_that_arrow_made(served, client, topic, compression):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    table = pa.table(
        {
            "key": pa.array([key for key, _, _ in ROWS], pa.binary()),
            "value": pa.array([value for _, value, _ in ROWS], pa.binary()),
            "event_time": pa.array(TIMES, pa.timestamp("ms", tz="UTC")),
            "properties": pa.array([list(one.items()) for *_, one in ROWS], pa.map_(pa.string(), pa.string())),
        }
    )
    with served.producer(topic, name="table", compression=compression) as producer:
        producer.send_table(table, key="key", event_time="event_time", properties="properties")
    messages = take(consumer, len(ROWS))
    keyed = [n for n, (key, _, _) in enumerate(ROWS) if key is not None]
    order = sorted(messages, key=lambda message: int(message.properties()["n"]))
    assert [message.data() for message in order] == [value for _, value, _ in ROWS]
    assert [message.partition_key() for message in order] == [(key or b"").decode() for key, _, _ in ROWS]
    assert [message.properties() for message in order] == [properties for *_, properties in ROWS]
    assert [message.event_timestamp() for message in order] == [when or 0 for when in TIMES]
    assert {message.producer_name() for message in messages} == {"table"}
    for key in {ROWS[n][0] for n in keyed}:
        of_key = [int(m.properties()["n"]) for m in messages if m.partition_key().encode() == key]
        assert of_key == sorted(of_key)


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
