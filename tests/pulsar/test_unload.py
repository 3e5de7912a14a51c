"""A topic is unloaded on the only broker, as `pulsar-admin topics unload` does: clients come again by themselves."""

from __future__ import annotations

import time
import urllib.request

import pulsar

from tests.pulsar.conftest import EARLIEST, WAIT_MS, take


def unload(served, topic) -> int:
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{served.admin_url}/admin/v2/{path}/unload", method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.status)


def test_clients_of_an_unloaded_topic_go_on_where_they_were(served, client, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    with served.stream_consumer(topic, "native", initial_position="earliest") as native, served.producer(topic) as ours:
        for number in range(3):
            producer.send(b"%d" % number)
        for message in take(consumer, 3)[:2]:
            consumer.acknowledge(message)
        native.acknowledge_cumulative(native.receive(timeout=60))
        while served.admin.get_stats(topic)["subscriptions"]["s"]["backlog"] != 1:  # the client groups them
            time.sleep(0.01)
        assert unload(served, topic) == 204
        producer.send(b"3")
        ours.send(b"4")
        found = take(consumer, 3)
        assert [(m.data(), m.redelivery_count()) for m in found] == [(b"2", 1), (b"3", 0), (b"4", 0)]
        assert [native.receive(timeout=60).value for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_a_topic_that_nobody_uses_is_unloaded_too(served, client, topic):
    producer = client.create_producer(topic)
    producer.send(b"v")
    producer.close()
    assert [unload(served, topic) for _ in range(3)] == [204, 204, 204]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == b"v"


def test_the_move_names_this_broker(served, topic):
    with served.producer(topic) as producer:
        producer.send(b"v")
        (move,) = served.admin.unload_topic(topic)
        assert move["source"] == move["target"]
        assert served.admin.unload_topic(topic) == []
        producer.send(b"w")
