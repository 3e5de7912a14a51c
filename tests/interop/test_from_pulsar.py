"""Topics come over from Apache Pulsar 5.0.0-M1 itself: its messages, read by its own client, are those of the copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import engine
from tests.interop.scenes.servers import JARS, Standalone
from tests.migration.test_from_pulsar import copied, fill
from tests.pulsar.conftest import connect

pytestmark = pytest.mark.timeout(900)
KEYED = "persistent://public/default/keyed"
PARTED = "persistent://public/default/parted"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    assert JARS.exists(), "make interop brings what these tests need"
    side = Standalone(tmp_path_factory.mktemp("standalone"))
    side.start()
    yield side
    side.close()


def read(url: str, topic: str) -> list[tuple[Any, ...]]:
    """As Apache Pulsar's client reads it."""
    client = connect(url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        m = reader.read_next()
        key = m.partition_key().encode() or None
        found.append((key, m.data(), m.properties(), m.event_timestamp()))
    client.close()
    return found


def test_a_topic_of_apache_pulsar_comes_over_once(standalone: Standalone):
    fill(standalone.url, KEYED, range(3_000), compression_type=pulsar.CompressionType.LZ4)
    with engine.open(":memory:") as new:
        (done,) = engine.migrate_from_pulsar(standalone.url, new, KEYED, verify=True)
        assert (done.sent, done.verified and done.verified.messages) == (3_000, 3_000)
        assert copied(new, KEYED, 3_000) == read(standalone.url, KEYED)
        fill(standalone.url, KEYED, range(3_000, 3_100))
        (again,) = engine.migrate_from_pulsar(standalone.url, new, KEYED, verify=True)
        assert again.sent == 100
        assert copied(new, KEYED, 3_100) == read(standalone.url, KEYED)


def test_partitions_of_apache_pulsar_come_over(standalone: Standalone):
    standalone.create_partitioned(PARTED, 3)
    fill(standalone.url, PARTED, range(600))
    with engine.open(":memory:") as new:
        done = engine.migrate_from_pulsar(standalone.url, new, PARTED, to="persistent://acme/shop/parted", verify=True)
        assert sum(m.sent for m in done) == 600
        for n in range(3):
            source = read(standalone.url, f"{PARTED}-partition-{n}")
            assert copied(new, f"persistent://acme/shop/parted-partition-{n}", len(source)) == source


def test_what_is_sent_meanwhile_comes_with_the_next_run(standalone: Standalone):
    topic = "persistent://public/default/busy"
    fill(standalone.url, topic, range(500))
    writer = threading.Thread(target=fill, args=(standalone.url, topic, range(500, 2_000)))
    with engine.open(":memory:") as new:
        writer.start()
        (first,) = engine.migrate_from_pulsar(standalone.url, new, topic)
        writer.join()
        (second,) = engine.migrate_from_pulsar(standalone.url, new, topic, verify=True)
        assert first.sent + second.sent == 2_000
        assert copied(new, topic, 2_000) == read(standalone.url, topic)
