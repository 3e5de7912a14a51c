"""What the documentation of the client of Python offers beside plain producers and consumers, option by option."""

from __future__ import annotations

import datetime
import queue
import re
import socket
import threading
import time
from typing import Any

import pulsar
import pytest

import engine
from tests.pulsar.conftest import EARLIEST, WAIT_MS, close_behind_letters, connect, is_quiet, service_url, take

SHARED = pulsar.ConsumerType.Shared


def partitioned(served: engine.Engine, topic: str, count: int = 3) -> str:
    served.admin.create_topic(topic, properties={"pulsar.partitions": str(count)})
    return topic


def send_all(client: pulsar.Client, topic: str, values: list[bytes], **options: Any) -> None:
    producer = client.create_producer(topic, **options)
    for value in values:
        producer.send(value)
    producer.close()


def partition_of(message: Any) -> int:
    return int(message.topic_name().rpartition("-")[2])


# -- listeners ---------------------------------------------------------------------------------------------------------


def test_a_listener_is_called_for_each_message_unless_it_is_paused(client, topic):
    came: queue.Queue[bytes] = queue.Queue()

    def heard(consumer: Any, message: Any) -> None:
        consumer.acknowledge(message)
        came.put(message.data())

    consumer = client.subscribe(topic, "s", SHARED, message_listener=heard, initial_position=EARLIEST)
    send_all(client, topic, [b"0", b"1", b"2"])
    assert [came.get(timeout=WAIT_MS / 1000) for _ in range(3)] == [b"0", b"1", b"2"]
    consumer.pause_message_listener()
    send_all(client, topic, [b"3"])
    with pytest.raises(queue.Empty):
        came.get(timeout=0.3)
    consumer.resume_message_listener()
    assert came.get(timeout=WAIT_MS / 1000) == b"3"


def test_a_reader_calls_its_listener(client, topic):
    came: queue.Queue[bytes] = queue.Queue()
    send_all(client, topic, [b"0", b"1"])
    client.create_reader(
        topic, pulsar.MessageId.earliest, reader_listener=lambda _, message: came.put(message.data()), reader_name="r"
    )
    assert [came.get(timeout=WAIT_MS / 1000) for _ in range(2)] == [b"0", b"1"]


# -- partitions --------------------------------------------------------------------------------------------------------


def test_a_router_chooses_the_partition(served, client, topic):
    partitioned(served, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, message_router=lambda message, count: int(message.data()) % count)
    for n in range(9):
        producer.send(b"%d" % n)
    assert {message.data(): partition_of(message) for message in take(consumer, 9)} == {
        b"%d" % n: n % 3 for n in range(9)
    }


@pytest.mark.parametrize("lazy", [False, True])
def test_messages_without_a_key_go_to_one_partition_or_to_all(served, client, topic, lazy):
    partitioned(served, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    modes = pulsar.PartitionsRoutingMode
    for mode, used in ((modes.UseSinglePartition, 1), (modes.RoundRobinDistribution, 3)):
        options = {"message_routing_mode": mode, "lazy_start_partitioned_producers": lazy}
        send_all(client, topic, [b"v"] * 9, **options)
        assert len({partition_of(message) for message in take(consumer, 9)}) == used


def test_a_reader_reads_all_partitions(served, client, topic):
    partitioned(served, topic)
    send_all(client, topic, [b"%d" % n for n in range(9)])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT_MS).data())
    assert sorted(got) == [b"%d" % n for n in range(9)]


# -- producers ---------------------------------------------------------------------------------------------------------


def test_ids_count_from_the_first_that_is_said(served, client, topic):
    producer = client.create_producer(topic, "named", initial_sequence_id=41)
    assert producer.last_sequence_id() == 41
    for _ in range(2):
        producer.send(b"v")
    assert producer.last_sequence_id() == 43
    assert served.table(topic, columns=["sequence_id"])["sequence_id"].to_pylist() == [42, 43]


def test_a_full_queue_is_an_error_and_nothing_of_what_was_taken_is_lost(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, max_pending_messages=3, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    results: queue.Queue[Any] = queue.Queue()
    for n in range(5):
        producer.send_async(b"%d" % n, lambda result, _: results.put(result))
    refused = [results.get(timeout=WAIT_MS / 1000) for _ in range(2)]
    assert refused == [pulsar.Result.ProducerQueueIsFull] * 2
    producer.flush()
    assert [results.get(timeout=WAIT_MS / 1000) for _ in range(3)] == [pulsar.Result.Ok] * 3
    assert [message.data() for message in take(consumer, 3)] == [b"0", b"1", b"2"]
    assert is_quiet(consumer)


@pytest.mark.parametrize("bounds", [{"batching_max_messages": 4}, {"batching_max_allowed_size_in_bytes": 450}])
def test_a_batch_ends_where_it_may(client, topic, bounds):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, **bounds)
    for _ in range(8):
        producer.send_async(b"v" * 100, lambda *_: None)
    producer.flush()
    sizes: dict[int, int] = {}
    for message in take(consumer, 8):
        entry = message.message_id().entry_id()
        sizes[entry] = sizes.get(entry, 0) + 1
    assert len(sizes) > 1
    assert max(sizes.values()) <= 4


def test_a_value_may_be_null(served, client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for batched in (False, True):
        producer = client.create_producer(topic, batching_enabled=batched)
        for value in (None, b""):
            producer.send(value, partition_key="k")
    assert [(m.has_null_value(), m.data()) for m in take(consumer, 4)] == [(True, b""), (False, b"")] * 2
    with served.stream_consumer(topic, "n", initial_position="earliest") as native:
        properties = [native.receive(60.0).properties for _ in range(4)]
    assert ["pulsar.null-value" in one for one in properties] == [True, False] * 2


def test_a_message_waits_for_so_long(client, topic):
    consumer = client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
    before = time.time()
    client.create_producer(topic).send(b"v", deliver_after=datetime.timedelta(seconds=1))
    assert consumer.receive(WAIT_MS).data() == b"v"
    assert time.time() - before >= 1


def test_a_message_names_no_cluster_to_be_replicated_to(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"elsewhere", replication_clusters=["elsewhere"])
    producer.send(b"here", disable_replication=True)
    assert consumer.receive(WAIT_MS).data() == b"here"


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_a_consumer_reads_a_list_of_topics(client, topic):
    topics = [f"{topic}-{n}" for n in range(3)]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    for one in topics:
        send_all(client, one, [b"%d" % n for n in range(4)])
    got: dict[str, list[bytes]] = {}
    for message in take(consumer, 12):
        got.setdefault(message.topic_name(), []).append(message.data())
        consumer.acknowledge(message)
    assert got == {one: [b"0", b"1", b"2", b"3"] for one in topics}
    consumer.close()
    assert is_quiet(client.subscribe(topics, "s"))


@pytest.mark.parametrize("mode", ["PersistentOnly", "AllTopics", "NonPersistentOnly"])
def test_a_pattern_finds_the_topics_of_its_mode(client, topic, mode):
    send_all(client, f"{topic}-one", [b"v"])
    consumer = client.subscribe(
        re.compile(f"{topic}-.*"),
        "s",
        initial_position=EARLIEST,
        regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode),
    )
    if mode == "NonPersistentOnly":
        assert is_quiet(consumer)
    else:
        assert consumer.receive(WAIT_MS).topic_name() == f"{topic}-one"


def test_ids_alone_are_acknowledged_and_sought(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    send_all(client, topic, [b"%d" % n for n in range(6)])
    ids = [message.message_id() for message in take(consumer, 6)]
    assert ids == sorted(ids)
    consumer.acknowledge(ids[0])
    consumer.acknowledge_cumulative(ids[2])
    consumer.redeliver_unacknowledged_messages()
    assert [message.data() for message in take(consumer, 3)] == [b"3", b"4", b"5"]
    consumer.seek(ids[1])  # inclusive, as it was asked for
    assert [message.data() for message in take(consumer, 5)] == [b"1", b"2", b"3", b"4", b"5"]


def test_sticky_ranges_of_the_client(client, topic):
    policies = [
        pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[ranges])
        for ranges in ((0, 32_767), (32_768, 65_535))
    ]
    one, other = (
        client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, key_shared_policy=policy) for policy in policies
    )
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, key_shared_policy=policies[0])
    producer = client.create_producer(topic)
    for n in range(40):
        producer.send(b"v", partition_key=f"k{n % 20}")
    got: dict[str, set[int]] = {}
    for number, consumer in enumerate((one, other)):
        while True:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                break
            got.setdefault(message.partition_key(), set()).add(number)
    assert len(got) == 20
    assert all(len(owners) == 1 for owners in got.values())
    assert set.union(*got.values()) == {0, 1}


def test_dead_letters_go_to_the_topic_that_is_called_so_if_none_is_said(served, client, topic):
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, initial_subscription_name="audit"),
    )
    client.create_producer(topic).send(b"v", properties={"p": "q"}, partition_key="k")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    letters = client.subscribe(f"{topic}-s-DLQ", "audit", SHARED, initial_position=EARLIEST)
    letter = letters.receive(WAIT_MS)
    assert (letter.data(), letter.properties()["p"], letter.partition_key()) == (b"v", "q", "k")
    close_behind_letters(served, consumer)


def test_what_producers_consumers_and_readers_say_of_themselves(served, client, topic):
    producer = client.create_producer(topic, "maker", properties={"p": "q"})
    consumer = client.subscribe(topic, "s", consumer_name="taker", properties={"c": "d"})
    reader = client.create_reader(topic, pulsar.MessageId.latest, subscription_role_prefix="mine")
    assert (producer.topic(), producer.producer_name()) == (topic, "maker")
    assert (consumer.topic(), consumer.subscription_name(), consumer.consumer_name()) == (topic, "s", "taker")
    assert reader.topic() == topic
    assert all(one.is_connected() for one in (producer, consumer, reader))
    producer.close()
    consumer.close()
    assert not producer.is_connected()
    assert not consumer.is_connected()


# -- clients -----------------------------------------------------------------------------------------------------------


def test_a_client_that_is_shut_down_leaves_its_consumer_and_its_name(served, topic):
    first = connect(service_url(served))
    first.subscribe(topic, "s")
    first.create_producer(topic, "named")
    first.shutdown()
    second = connect(service_url(served))
    second.subscribe(topic, "s")
    second.create_producer(topic, "named").send(b"v")
    second.close()


def test_a_client_takes_several_addresses_and_the_name_of_a_listener(served, topic):
    here = service_url(served).partition("://")[2]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        client = connect(f"pulsar://127.0.0.1:{nobody.getsockname()[1]},{here}", listener_name="internal")
        for _ in range(3):
            client.create_producer(topic).send(b"v")
        client.close()


def test_a_client_fails_over_to_another_broker(served, topic):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = pulsar.ServiceInfo(f"pulsar://127.0.0.1:{nobody.getsockname()[1]}")
        alive = pulsar.ServiceInfo(service_url(served))
        client = connect(pulsar.AutoClusterFailover(dead, [alive], check_interval_ms=100))
        while client.get_service_info().service_url != alive.service_url:
            pass  # a producer that it creates at the moment of the change is none
        client.create_producer(topic).send(b"v")
        client.close()
    assert served.table(topic)["value"].to_pylist() == [b"v"]


@pytest.mark.parametrize(
    "authentication",
    [pulsar.AuthenticationBasic("user", "password"), pulsar.AuthenticationBasic("user", "password", "other")],
)
def test_other_proofs_of_identity_are_refused(served, topic, authentication):
    client = connect(service_url(served), 2, authentication=authentication)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


def test_callbacks_run_while_another_thread_waits(client, topic):
    """A listener may publish, and wait for it."""
    answers = client.subscribe(f"{topic}-answers", "s", initial_position=EARLIEST)
    producer, done = client.create_producer(f"{topic}-answers"), threading.Event()

    def answer(consumer: Any, message: Any) -> None:
        producer.send_async(message.data() * 2, lambda *_: done.set())
        consumer.acknowledge(message)

    client.subscribe(topic, "s", message_listener=answer, initial_position=EARLIEST)
    send_all(client, topic, [b"v"])
    assert answers.receive(WAIT_MS).data() == b"vv"
    assert done.wait(WAIT_MS / 1000)
