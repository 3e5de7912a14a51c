"""Topics come over by Apache Pulsar's protocol: here from a broker of ours, with messages of the real client."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.client.client import AsyncClient
from engine.errors import (
    AlreadyExistsError,
    AuthenticationError,
    ConnectError,
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from engine.migration.marker import PROPERTY
from engine.migration.pulsar.places import Mark, Place
from engine.migration.pulsar.reading import Source
from engine.migration.topics import _schemas, declare
from engine.model.positions import Checkpoint
from engine.model.schema import Pair, SchemaType, TopicSchema
from engine.pulsar.schemas import VERSION_PROPERTY
from tests.chaos.server import Server
from tests.kit.programs import environment, program
from tests.pulsar.conftest import connect, service_url
from tests.pulsar.raw import Raw, framed_send, greeted
from tests.reference.pulsar_reference import PulsarMessage

TOPIC = "persistent://public/default/orders"
WAIT_S = 60.0


@pytest.fixture
def old() -> Iterator[engine.Engine]:
    with engine.open(":memory:", listen="127.0.0.1:0") as opened:
        yield opened


@pytest.fixture
def new() -> Iterator[engine.Engine]:
    with engine.open(":memory:") as opened:
        yield opened


def fill(url: str, topic: str, numbers: range, **options: Any) -> None:
    """Messages with and without keys, in batches, by Apache Pulsar's client."""
    client = connect(url)
    producer = client.create_producer(topic, block_if_queue_full=True, batching_enabled=True, **options)
    for n in numbers:
        more = {"partition_key": f"k{n % 7}"} if n % 5 else {}
        producer.send_async(
            b"%d" % n, lambda result, ident: None, properties={"n": str(n)}, event_timestamp=n + 1, **more
        )
    producer.flush()
    client.close()


async def read(client: Any, topic: str, count: int) -> list[Any]:
    consumer = await client.checkpoint_consumer(topic, start=Checkpoint.earliest())
    found: list[Any] = []
    while batch := await consumer.receive_batch(timeout=WAIT_S if len(found) < count else 0.3):
        found += list(batch)
    await consumer.close()
    return found


def facts(message: Any) -> tuple[Any, ...]:
    return message.key, message.value, dict(message.properties), message.event_time_ms


def copied(served: engine.Engine, topic: str, count: int) -> list[tuple[Any, ...]]:
    return [facts(m) for m in served._portal.run(read(served._client, topic, count))]


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_topic_comes_over_as_it_was_and_once(old: engine.Engine, new: engine.Engine, codec: str):
    url = service_url(old)
    fill(url, TOPIC, range(700), compression_type=getattr(pulsar.CompressionType, codec))
    (done,) = engine.migrate_from_pulsar(url, new, TOPIC, verify=True)
    assert (done.topic, done.sent) == (TOPIC, 700)
    assert done.verified is not None
    assert (done.verified.messages, done.verified.keys) == (700, 7)
    assert copied(new, TOPIC, 700) == copied(old, TOPIC, 700)
    fill(url, TOPIC, range(700, 760))
    (again,) = engine.migrate_from_pulsar(url, new, "orders", verify=True)
    assert again.sent == 60
    assert again.verified is not None
    assert again.verified.messages == 760
    (last,) = engine.migrate_from_pulsar(url, new, TOPIC)
    assert last.sent == 0
    assert copied(new, TOPIC, 760) == copied(old, TOPIC, 760)


async def test_what_has_no_column_comes_over(tmp_path: Path):
    messages = [
        PulsarMessage(b"value", b"key", properties=(("n", "v"),), event_time=7, ordering_key=b"o"),
        PulsarMessage(b"", null_value=True),
        PulsarMessage(b"x" * 100, b"\xff", key_is_bytes=True, sequence=40),
        PulsarMessage(b"", b"", sequence=41),
    ]
    listen = {"listen": "127.0.0.1:0"}
    async with engine.open_async(":memory:", **listen) as old, engine.open_async(":memory:", **listen) as new:
        async with Raw(old) as raw:
            await greeted(raw)
            await raw.say_command("producer", topic=TOPIC, producer=1, request=1)
            await raw.heard("producer_success")
            await raw.say(framed_send(1, messages))
            await raw.heard("send_receipt")
        (done,) = await engine.migrate_from_pulsar_async(service_url(old), new, TOPIC, verify=True)
        assert done.sent == len(messages)
        expected, found = [[facts(m) for m in await read(c, TOPIC, len(messages))] for c in (old, new)]
        assert found == expected
        assert found[0][2] == {"n": "v", "pulsar.ordering-key": "6f"}


def test_partitions_come_over_and_those_never_used_are_empty(old: engine.Engine, new: engine.Engine):
    old.admin.create_topic(TOPIC, properties={"pulsar.partitions": "4"})
    fill(service_url(old), f"{TOPIC}-partition-0", range(20))
    fill(service_url(old), f"{TOPIC}-partition-2", range(30))
    done = engine.migrate_from_pulsar(service_url(old), new, TOPIC, to="persistent://acme/shop/orders", verify=True)
    assert [m.sent for m in done] == [20, 0, 30, 0]
    metadata: Any = new.admin.get_metadata("persistent://acme/shop/orders")
    assert metadata["properties"]["pulsar.partitions"] == "4"
    assert len(copied(new, "persistent://acme/shop/orders-partition-2", 30)) == 30
    again = engine.migrate_from_pulsar(service_url(old), new, TOPIC, to="persistent://acme/shop/orders", verify=True)
    assert [m.sent for m in again] == [0] * 4


def schemas_of(served: engine.Engine, topic: str) -> list[dict[str, str]]:
    return served._portal.run(_schemas(served._client, topic, None))


def test_schemas_come_over_in_order_and_each_message_with_its_own(
    old: engine.Engine, new: engine.Engine, monkeypatch: pytest.MonkeyPatch
):
    """Also where the copy has versions of its own, and when many messages are there at once."""
    whole = Source.messages

    async def at_once(self: Source, behind: Place, end: Place) -> AsyncIterator[Any]:
        if found := [message async for messages in whole(self, behind, end) for message in messages]:
            yield found

    monkeypatch.setattr(Source, "messages", at_once)
    definitions = [avro(*names) for names in (["a"], ["a", "b"], ["a", "c"])]
    new.admin.create_topic(TOPIC, properties={PROPERTY: Mark(TOPIC, service_url(old)).text()})
    declare_all(new, definitions[2:])
    declare_all(old, definitions)
    client = connect(service_url(old))
    made = [pulsar.schema.AvroSchema(None, json.loads(definition)) for definition in definitions]
    producers = [client.create_producer(TOPIC, schema=schema, batching_enabled=True) for schema in made]
    value = {"a": 1, "b": 2, "c": 3}
    for n in range(300):
        producers[n // 10 % 3].send_async(value, lambda result, ident: None, partition_key="k")
        if n % 10 == 9:
            producers[n // 10 % 3].flush()
    client.close()
    for _ in range(2):
        (done,) = engine.migrate_from_pulsar(service_url(old), new, TOPIC, verify=True)
        assert done.verified is not None
    assert [one["definition"] for one in schemas_of(new, TOPIC)] == [definitions[n] for n in (2, 0, 1)]
    found = [facts(m)[2].get(VERSION_PROPERTY) for m in new._portal.run(read(new._client, TOPIC, 300))]
    assert found == (["1"] * 10 + ["2"] * 10 + [None] * 10) * 10
    assert {len(versions) for versions in new._portal.run(versions_in(new._client, TOPIC, 300))} == {1}


def test_a_version_that_was_deleted_at_the_source_hides_no_later_one(
    old: engine.Engine, new: engine.Engine, monkeypatch: pytest.MonkeyPatch
):
    whole, definitions = Source._schema, [avro(*names) for names in (["a"], ["a", "b"], ["a", "c"])]
    declare_all(old, definitions)

    async def deleted(self: Source, connection: Any, version: bytes) -> Any:
        return None if version == bytes(7) + b"\1" else await whole(self, connection, version)

    monkeypatch.setattr(Source, "_schema", deleted)
    engine.migrate_from_pulsar(service_url(old), new, TOPIC)
    assert [one["definition"] for one in schemas_of(new, TOPIC)] == [definitions[0], definitions[2]]


def avro(*names: str) -> str:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields}, indent=1)  # as that client spells it


def declare_all(served: engine.Engine, definitions: list[str]) -> None:
    if not served.admin.list_topics("public/default"):
        served.admin.create_topic(TOPIC)
    for definition in definitions:
        served._portal.run(declare(served._client, TOPIC, {"type": "plain-avro", "definition": definition}))


def test_a_schema_of_pairs_comes_over(old: engine.Engine, new: engine.Engine):
    pair = Pair(True, None, TopicSchema(SchemaType.PLAIN_AVRO, avro("a")))
    said = {"type": "pair", "definition": pair.to_text()}
    old.admin.create_topic(TOPIC)
    old._portal.run(declare(old._client, TOPIC, said))
    fill(service_url(old), TOPIC, range(20))
    engine.migrate_from_pulsar(service_url(old), new, TOPIC, verify=True)
    assert schemas_of(new, TOPIC) == [said]
    assert copied(new, TOPIC, 20) == copied(old, TOPIC, 20)


async def versions_in(client: Any, topic: str, count: int) -> list[set[str | None]]:
    """Of the messages of each entry."""
    consumer = await client.checkpoint_consumer(topic, start=Checkpoint.earliest())
    found: dict[int, set[str | None]] = {}
    seen = 0
    while seen < count:
        batch = await consumer.receive_batch(timeout=WAIT_S)
        for part in batch.slices:
            messages = part.entry.messages()[part.start : part.stop]
            said = {message.properties.get(VERSION_PROPERTY) for message in messages}
            found[part.entry.first_offset] = found.get(part.entry.first_offset, set()) | said
            seen += len(messages)
    await consumer.close()
    return list(found.values())


def test_what_was_deleted_at_the_source_is_no_difference(
    old: engine.Engine, new: engine.Engine, monkeypatch: pytest.MonkeyPatch
):
    url, whole, gone = service_url(old), Source.messages, 120
    fill(url, TOPIC, range(300))
    engine.migrate_from_pulsar(url, new, TOPIC)

    async def trimmed(self: Source, behind: Place, end: Place) -> AsyncIterator[Any]:
        count = 0
        async for messages in whole(self, behind, end):
            left = messages[max(gone - count, 0) :]
            count += len(messages)
            if left:
                yield left

    monkeypatch.setattr(Source, "messages", trimmed)
    (done,) = engine.migrate_from_pulsar(url, new, TOPIC, verify=True)
    assert done.verified is not None
    assert done.verified.messages == 300 - gone


def test_a_copy_that_differs_is_told_with_its_place(old: engine.Engine, new: engine.Engine):
    url = service_url(old)
    fill(url, TOPIC, range(50))
    engine.migrate_from_pulsar(url, new, TOPIC)
    mark = Mark(TOPIC, url)
    with new.producer(TOPIC, name=mark.producer) as intruder:  # as if a message were there twice
        intruder.send(b"again")
    with pytest.raises(CorruptionError, match="more messages than the 50"):
        engine.migrate_from_pulsar(url, new, TOPIC, verify=True)
    new.admin.delete_topic(TOPIC)
    (done,) = engine.migrate_from_pulsar(url, new, TOPIC, verify=True)
    assert done.sent == 50


def test_what_cannot_be_copied_is_refused(old: engine.Engine, new: engine.Engine):
    url = service_url(old)
    with pytest.raises(NotFoundError):
        engine.migrate_from_pulsar(url, new, TOPIC)
    with pytest.raises(NotFoundError):
        old.admin.get_metadata(TOPIC)  # nor was it created
    fill(url, TOPIC, range(5))
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidArgumentError, "must be persistent://", {"to": "topic://public/default/x"}),
        (InvalidArgumentError, "must be callable", {"on_progress": 3}),
    ]
    for kind, text, more in refused:
        with pytest.raises(kind, match=text):
            engine.migrate_from_pulsar(url, new, TOPIC, **more)
    for bad in ("engine://a", "pulsar://", "pulsar://secret@a", "pulsar://a/b", "pulsar://a:x"):
        with pytest.raises(InvalidArgumentError) as e:
            engine.migrate_from_pulsar(bad, new, TOPIC)
        assert "secret" not in str(e.value)
    with pytest.raises(ConnectError):
        engine.migrate_from_pulsar("pulsar://127.0.0.1:1", new, TOPIC)
    new.admin.create_topic(TOPIC)
    with pytest.raises(AlreadyExistsError, match="no copy"):
        engine.migrate_from_pulsar(url, new, TOPIC)
    new.admin.delete_topic(TOPIC)
    engine.migrate_from_pulsar(url, new, TOPIC)
    with pytest.raises(AlreadyExistsError, match="go on with that URL"):
        engine.migrate_from_pulsar(url.replace("127.0.0.1", "localhost"), new, TOPIC)
    fill(url, f"{TOPIC}-2", range(5))
    with pytest.raises(AlreadyExistsError, match="is a copy of"):
        engine.migrate_from_pulsar(url, new, f"{TOPIC}-2", to=TOPIC)


def test_a_token_is_shown_to_the_source(new: engine.Engine, tmp_path: Path):
    (tmp_path / "roles").write_text(line_of("root", "secret") + "\n")
    config = {"roles_file": str(tmp_path / "roles"), "superusers": ["root"]}
    with engine.open(":memory:", listen="127.0.0.1:0", config=config) as old:
        with old.producer(TOPIC) as producer:
            producer.send(b"x")
        for token in (None, "wrong"):
            with pytest.raises(AuthenticationError):
                engine.migrate_from_pulsar(service_url(old), new, TOPIC, token=token)
        (done,) = engine.migrate_from_pulsar(service_url(old), new, TOPIC, token="secret")
        assert done.sent == 1


def test_without_the_packages_it_is_said(new: engine.Engine, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("engine.migration.pulsar")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("engine.pulsar.messages", "engine.pulsar.payloads"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(UnsupportedError, match=r"engine\[pulsar\] must be installed"):
        engine.migrate_from_pulsar("pulsar://127.0.0.1:1", new, TOPIC)


def test_a_place_follows_from_what_is_stored():
    mark = Mark(TOPIC, "pulsar://a", Place(3, 5, 0), ledger=9, base=1_000, done=Place(3, 70, 2))
    assert Mark.parse(mark.text()) == mark
    assert mark.place(999) == Place(9, -1, -1)  # all of the ledgers before
    for place in (Place(9, 0, 0), Place(9, 0, 1), Place(9, 1, 0), Place(9, 2**40, 999)):
        assert mark.place(mark.sequence(place)) == place
    with pytest.raises(UnsupportedError):
        mark.sequence(Place(9, 0, 1 << 20))
    with pytest.raises(CorruptionError):
        Mark.parse('{"pulsar": "x"}')
    assert Mark.parse('{"topic": "x"}') is None


async def started(url: str, server: Server) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *program("tests.migration.migrate_pulsar_program", url, server.url, TOPIC),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def lines_of(process: asyncio.subprocess.Process, count: int) -> list[bytes]:
    assert process.stdout is not None
    found: list[bytes] = []
    while len(found) < count and (line := await process.stdout.readline()):
        found.append(line.strip())
    return found


async def kill_and_finish(directory: Path, seed: int, lives: int) -> None:
    """The migration is killed at any moment, and each second time the destination's server as well."""
    rng, count = random.Random(seed), 900
    server = Server(directory / "data")
    await server.start()
    with engine.open(directory / "source", listen="127.0.0.1:0") as old:
        url = service_url(old)
        await asyncio.to_thread(fill, url, TOPIC, range(count), batching_max_messages=rng.randrange(2, 30))
        for life in range(lives):
            process = await started(url, server)
            await lines_of(process, rng.randrange(1, 8))
            if life % 2:
                await server.kill()
            if process.returncode is None:
                process.kill()
            await process.wait()
            if life % 2:
                await server.start()
        process = await started(url, server)
        assert (await lines_of(process, count))[-1] == b"done"
        assert await process.wait() == 0
        async with AsyncClient(server.url) as client:
            found = [facts(m) for m in await read(client, TOPIC, count)]
            (again,) = await engine.migrate_from_pulsar_async(url, client, TOPIC, verify=True)
        assert found == await asyncio.to_thread(copied, old, TOPIC, count)
        assert again.sent == 0
        assert again.verified is not None
        assert again.verified.messages == count
    await server.close()


async def test_a_migration_that_is_killed_goes_on_and_nothing_is_lost_or_doubled(tmp_path: Path):
    await kill_and_finish(tmp_path, seed=1, lives=2)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(12))
async def test_any_number_of_kills_at_any_moment(tmp_path: Path, seed: int):
    await kill_and_finish(tmp_path, seed, lives=10)
