"""Names as Apache Pulsar's clients have them: of producers, and of topics that are not there."""

from __future__ import annotations

import pytest

from engine.pulsar import server_errors
from tests.pulsar.conftest import EARLIEST, WAIT_MS
from tests.pulsar.raw import Raw

# As Java's client calls its producers of dead letters.
OF_DEAD_LETTERS = "persistent://public/default/orders-s-c-x1Yz9-DLQ"


@pytest.mark.parametrize("name", [OF_DEAD_LETTERS, "50%", "a%2Fb"])
def test_a_producer_keeps_its_name(client, topic, name):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, name)
    assert producer.producer_name() == name
    producer.send(b"v", sequence_id=7)
    producer.close()
    again = client.create_producer(topic, name)
    assert (again.producer_name(), again.last_sequence_id()) == (name, 7)
    again.send(b"v", sequence_id=7)  # stored already
    again.send(b"w", sequence_id=8)
    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"v", b"w"]


def test_names_that_are_escaped_are_not_taken_for_each_other(client, topic):
    for name in ("a/b", "a%2Fb", "a%252Fb"):
        producer = client.create_producer(topic, name)
        assert producer.last_sequence_id() == -1
        producer.send(b"v", sequence_id=3)


async def test_a_client_learns_whether_a_topic_is_there_without_creating_it(served, topic):
    async with Raw(served) as raw:
        await raw.say_command("connect", client_version="test", protocol=19)
        assert (await raw.heard("connected")).features.partitions_without_creation
        await raw.say_command("partitioned", topic=topic, request=1, create=False)
        found = await raw.heard("partitioned_response")
        assert (found.request, found.response, found.error) == (1, 1, server_errors.TOPIC_NOT_FOUND)
        await raw.say_command("partitioned", topic=topic, request=2)  # it may be created
        found = await raw.heard("partitioned_response")
        assert (found.request, found.response, found.partitions, found.HasField("error")) == (2, 0, 0, False)
        served.admin.create_topic(topic)
        served.admin.create_topic(f"{topic}-p", properties={"pulsar.partitions": "3"})
        for request, (name, partitions) in enumerate([(topic, 0), (f"{topic}-p", 3)], 3):
            await raw.say_command("partitioned", topic=name, request=request, create=False)
            found = await raw.heard("partitioned_response")
            assert (found.request, found.response, found.partitions) == (request, 0, partitions)
