"""What a copy of a topic keeps, what is refused, and that a comparison finds each kind of difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidArgumentError,
    MissingKeyError,
    NotFoundError,
    ProducerBusyError,
    UnsupportedError,
)
from engine.migration import migrate, migrate_async
from engine.migration.marker import PROPERTY, Marker
from engine.model.positions import Checkpoint
from engine.pulsar.schemas import VERSION_PROPERTY
from tests.kit.key_pairs import x25519_pair

NAME = "topic://public/default/orders"
DUE_MS = 4_000_000_000_000


@dataclass
class Both:
    """Two engines with directories of their own."""

    here: engine.Engine
    there: engine.Engine

    def migrate(self, **options: Any) -> engine.Migrated:
        return migrate(self.here, self.there, "orders", **options)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with engine.open(tmp_path / "here") as here, engine.open(tmp_path / "there") as there:
        yield Both(here, there)


def read(e: engine.Engine, topic: str = "orders") -> list[tuple[Any, ...]]:
    """Key, value, properties and event time of each message, in order."""
    view = e.topic_view(topic)
    ranges = {i: (s.first, s.end) for i, s in view.segments(exact=True).segments.items()}
    view.close()
    with e.range_reader(topic, ranges) as reader:
        return [(m.key, m.value, m.properties, m.event_time_ms) for m in reader]


def by_key(messages: list[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    """In each key's order; keyless ones have none."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for message in messages:
        found.setdefault(message[0], []).append(message)
    found[None] = sorted(found.get(None, []), key=repr)
    return found


def test_a_copy_has_the_messages_and_all_that_the_topic_says(both: Both):
    here, there = both.here, both.there
    here.admin.create_topic(
        "orders", segments=2, entry_buckets=8, key_hash="murmur3", durability="interval", properties={"team": "north"},
        auto_scale={"max_segments": 7, "split_cooldown": "5m"},
    )  # fmt: skip
    here.admin.set_topic_policies("orders", {"retention_time_s": 3_600, "message_ttl_s": 7_200})
    with here.producer("orders", schema=str, compression="lz4") as producer:
        for n in range(3_000):
            key = None if n % 11 == 0 else ("" if n % 13 == 0 else f"k{n % 40}")
            properties = {"n": str(n), "é": "\udcff" if n < 0 else "ü"} if n % 3 == 0 else None
            producer.send_nowait(f"v{n}", key=key, properties=properties, event_time=-n if n % 5 == 0 else None)
            if n == 1_000:
                producer.flush()
                here.admin.split_segment("orders", 0)
            if n == 2_000:
                producer.flush()
                here.admin.merge_segments("orders", 3, 1)
        producer.flush()
    steps = []
    done = both.migrate(verify=True, on_progress=lambda step, count, total: steps.append((step, count, total)))
    assert done.topic == NAME
    assert done.sent == 3_000
    assert done.verified is not None
    assert (done.verified.messages, done.verified.keys) == (3_000, 41)
    assert ("copy", 3_000, 3_000) in steps
    assert steps[-1] == ("verify", 6_000, 6_000)
    assert by_key(read(there)) == by_key(read(here))
    one, other = here.admin.get_metadata("orders"), there.admin.get_metadata("orders")
    assert {name: text for name, text in other["properties"].items() if name != PROPERTY} == one["properties"]
    for name in ("keyHash", "durability", "autoScalePolicy"):
        assert one[name] == other[name]  # type: ignore[literal-required]
    assert other["entryBuckets"] == sum(
        len(s["bucketBoundaries"]) for s in one["segments"].values() if s["state"] == "ACTIVE"
    )
    assert len(other["segments"]) == 2
    assert there.admin.get_topic_policies("orders", own=True) == here.admin.get_topic_policies("orders", own=True)
    with pytest.raises(engine.SchemaError, match="string"):
        there.producer("orders", schema=engine.Schema.json())


def test_messages_of_several_versions_of_a_schema_share_no_entry(both: Both):
    """As they share none at the source: clients of Apache Pulsar are told one version for an entry."""
    with both.here.producer("orders") as producer:
        for n in range(8):
            producer.send(b"%d" % n, properties={VERSION_PROPERTY: "1"} if n // 2 % 2 else None)
    both.migrate(verify=True)
    entries: dict[int, list[bytes]] = {}
    with both.there.checkpoint_consumer("orders", start=Checkpoint.earliest()) as consumer:
        while sum(map(len, entries.values())) < 8:
            batch = consumer.receive_batch(timeout=60)
            assert batch is not None
            for part in batch.slices:
                values = [m.value for m in part.entry.messages()[part.start : part.stop]]
                entries.setdefault(part.entry.first_offset, []).extend(values)
    assert list(entries.values()) == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"], [b"6", b"7"]]


def test_a_second_run_sends_what_came_since_and_nothing_twice_also_after_the_copy_was_split(both: Both):
    with both.here.producer("orders") as producer:
        for n in range(500):
            producer.send_nowait(b"%d" % n, key=f"k{n % 9}")
        producer.flush()
        assert both.migrate().sent == 500
        both.there.admin.split_segment("orders", 0)
        for n in range(500, 800):
            producer.send_nowait(b"%d" % n, key=f"k{n % 9}")
    assert both.migrate(verify=True).sent == 300
    assert both.migrate(verify=True).sent == 0
    assert by_key(read(both.there)) == by_key(read(both.here))


def test_what_is_sent_again_because_the_property_was_not_written_is_stored_once(both: Both):
    with both.here.producer("orders") as producer:
        for n in range(700):
            producer.send_nowait(b"%d" % n, key=None if n % 3 else f"k{n % 9}")
    both.migrate()
    metadata = both.there.admin.get_metadata("orders")
    said = Marker.parse(metadata["properties"][PROPERTY])
    both.there.admin.set_topic_properties("orders", {PROPERTY: Marker(said.topic, said.created_ms).text()})
    assert both.migrate(verify=True).sent > 0
    assert len(read(both.there)) == 700


def test_and_back_under_another_name(both: Both):
    with both.here.producer("orders") as producer:
        producer.send(b"1", key="a")
    both.migrate()
    with pytest.raises(AlreadyExistsError, match="no copy of this"):
        migrate(both.there, both.here, "orders")
    back = migrate(both.there, both.here, "orders", to="acme/shop/returned", verify=True)
    assert back.topic == "topic://acme/shop/returned"
    assert read(both.here, "acme/shop/returned") == read(both.here)


def test_messages_of_a_transaction_come_once_it_is_committed_and_never_when_it_is_aborted(both: Both):
    here = both.here
    with here.producer("orders") as producer:
        producer.send(b"before", key="a")
        with here.transaction() as aborted:
            producer.send(b"never", key="a", transaction=aborted)
            aborted.abort()
        held = here.transaction()
        producer.send_nowait(b"in it", key="a", transaction=held)
        producer.flush()
        producer.send(b"behind", key="a")
        first = both.migrate(verify=True)
        assert first.open_transactions == (held.id,)
        assert [m[1] for m in read(both.there)] == [b"before"]
        held.commit()
    second = both.migrate(verify=True)
    assert second.open_transactions == ()
    assert [m[1] for m in read(both.there)] == [b"before", b"in it", b"behind"]


def test_delayed_messages_stay_delayed_until_the_same_instant(both: Both):
    with both.here.producer("orders") as producer:
        producer.send(b"late", key="a", deliver_at=DUE_MS)
        producer.send(b"now", key="a")
    both.migrate(verify=True)
    with both.there.queue_consumer("orders", "q", initial_position="earliest") as consumer:
        message = consumer.receive(timeout=30)
        assert message is not None
        assert message.value == b"now"
        assert both.there.admin.get_stats("orders")["subscriptions"]["q"]["delayed"] == 1


def test_subscriptions_go_on_at_the_copy_where_they_stood(both: Both):
    here, there = both.here, both.there
    here.admin.create_topic("orders", segments=2, entry_buckets=2)
    with here.producer("orders") as producer:
        for n in range(400):
            producer.send_nowait(b"%d" % n, key=f"k{n % 17}")
        producer.flush()
        here.admin.create_subscription("orders", "new", kind="queue")
        with here.stream_consumer("orders", "s", initial_position="earliest") as consumer:
            taken = 0
            while taken < 150:
                batch = consumer.receive_batch(max_messages=150 - taken, timeout=30)
                taken += len(batch)
                consumer.acknowledge_cumulative(batch)
        for n in range(400, 500):
            producer.send_nowait(b"%d" % n, key=f"k{n % 17}")
    done = both.migrate(subscriptions=True, verify=True)
    assert sorted(done.subscriptions) == ["new", "s"]

    def backlogs(e: engine.Engine) -> dict[str, tuple[int, str | None]]:
        return {n: (s["backlog"], s["kind"]) for n, s in e.admin.get_stats("orders")["subscriptions"].items()}

    assert backlogs(there) == backlogs(here) == {"s": (350, "stream"), "new": (100, "queue")}
    left = {}
    for e in (here, there):
        with e.stream_consumer("orders", "s") as consumer:
            found: list[bytes] = []
            while len(found) < 350:
                batch = consumer.receive_batch(timeout=30)
                found += batch.values
                consumer.acknowledge_cumulative(batch)
        left[e] = sorted(found)
    assert left[here] == left[there]


def test_a_subscription_with_holes_is_refused_before_anything_is_made(both: Both):
    with both.here.producer("orders") as producer:
        for n in range(10):
            producer.send(b"%d" % n)
    with both.here.queue_consumer("orders", "q", initial_position="earliest") as consumer:
        messages = [consumer.receive(timeout=30) for _ in range(10)]
        consumer.acknowledge(messages[4])
        with pytest.raises(UnsupportedError, match=r"subscription q of .* has acknowledged 1 messages of segment 0"):
            both.migrate(subscriptions=True)
    assert not both.there.topic_exists("orders")
    assert both.migrate().sent == 10


def test_a_comparison_finds_what_is_missing_changed_doubled_and_out_of_order(both: Both):
    with both.here.producer("orders") as producer:
        for n in range(20):
            producer.send(b"%d" % n, key="a")
    both.migrate(verify=True)
    source = Marker.parse(both.there.admin.get_metadata("orders")["properties"][PROPERTY])

    def forged(name: str, numbers: list[tuple[int, bytes]]) -> None:
        marker = Marker(source.topic, source.created_ms, {0: 20})
        both.there.admin.create_topic(name, properties={PROPERTY: marker.text()})
        for producer_name, pairs in ((marker.producer(0), numbers),):
            with both.there.producer(name, name=producer_name) as producer:
                for number, value in pairs:
                    producer.send(value, key="a", sequence_id=number)

    whole = [(n, b"%d" % n) for n in range(20)]
    forged("missing", whole[:7] + whole[8:])
    forged("changed", [*whole[:5], (5, b"other"), *whole[6:]])
    for name, text in (("missing", "has 20 messages, and its copy 19"), ("changed", "differ in some of 20")):
        with pytest.raises(CorruptionError, match=text):
            both.migrate(to=name, verify=True)
    assert both.migrate(verify=True).verified is not None


def test_a_topic_that_is_no_copy_is_left_alone(both: Both):
    with both.here.producer("orders") as producer:
        producer.send(b"1")
    both.there.admin.create_topic("orders")
    with pytest.raises(AlreadyExistsError, match="delete it, or copy under another name"):
        both.migrate()
    assert both.there.admin.get_metadata("orders")["properties"] == {}
    both.there.admin.delete_topic("orders")
    both.migrate()
    both.here.admin.delete_topic("orders")
    with pytest.raises(NotFoundError):
        both.migrate()
    with both.here.producer("orders") as producer:
        producer.send(b"of another topic of the name")
    with pytest.raises(AlreadyExistsError):
        both.migrate()


def test_encrypted_messages_need_a_key_and_may_be_encrypted_anew(both: Both):
    key_pair = x25519_pair(1)
    with both.here.producer("orders", encryption_keys={"k": key_pair.public}) as producer:
        producer.send(b"secret", key="a", properties={"p": "q"})
    with pytest.raises(MissingKeyError):
        both.migrate()
    keys = {"k": key_pair.private}
    both.migrate(decryption_keys=keys, encryption_keys={"k": key_pair.public}, copy_decryption_keys=keys, verify=True)
    with pytest.raises(MissingKeyError):
        read(both.there)
    with both.there.range_reader("orders", {0: (0, 1)}, decryption_keys=keys) as reader:
        assert [(m.key, m.value, m.properties) for m in reader] == [(b"a", b"secret", {"p": "q"})]


async def test_the_form_that_is_awaited_and_what_it_refuses(tmp_path: Path):
    async with engine.open_async(tmp_path / "here") as here, engine.open_async(tmp_path / "there") as there:
        async with await here.producer("orders") as producer:
            await producer.send(b"1", key="a")
        done = await migrate_async(here, there, "orders", verify=True)
        assert done.sent == 1
        async with await there.checkpoint_consumer("orders", start=Checkpoint.earliest()) as consumer:
            assert (await consumer.receive(timeout=30)).value == b"1"
        with pytest.raises(InvalidArgumentError, match="on_progress must be callable"):
            await migrate_async(here, there, "orders", on_progress=1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            await migrate_async(here, there, "orders", to="a/b")


def test_a_second_migration_at_the_same_time_is_refused(both: Both, tmp_path: Path):
    with both.here.producer("orders") as producer:
        producer.send(b"1", key="a")
    both.migrate()
    source = Marker.parse(both.there.admin.get_metadata("orders")["properties"][PROPERTY])
    with both.here.producer("orders") as producer:
        producer.send(b"2", key="a")
    with (
        engine.open(tmp_path / "there") as other,
        other.producer("orders", name=source.producer(0)) as running,
    ):
        running.send(b"2", key="a", sequence_id=1)
        with pytest.raises(ProducerBusyError):
            both.migrate()
    assert both.migrate(verify=True).verified is not None


def test_a_marker_that_something_else_wrote_is_named(both: Both):
    with both.here.producer("orders") as producer:
        producer.send(b"1")
    both.there.admin.create_topic("orders", properties={PROPERTY: "elsewhere"})
    with pytest.raises(CorruptionError, match="migrated-from must be as a migration writes it, got 'elsewhere'"):
        both.migrate()
