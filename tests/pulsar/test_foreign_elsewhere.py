"""What clients of Apache Pulsar have encrypted or cut into chunks, met by all that is not one of them.

Each says what it is and where, as a DecryptionError or on its page, passes nothing by that it was not told to, and
reads what is around it where that has a meaning.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest

import engine
from engine.cli.main import main
from engine.console import messages as console
from engine.console.messages import MessagePage, Wanted, browse
from tests.cli.conftest import Result, usual
from tests.pulsar.conftest import EARLIEST, service_url, take
from tests.pulsar.opaque import make_keys

__all__ = ["usual"]  # the fixture, for tests here as well

SECRET = [b"secret %d" % n for n in range(3)]
BIG = bytes(range(256)) * 24_576  # 6 MiB: two chunks
WHAT = {"encrypted": "encrypted by a client of Apache Pulsar", "chunked": "sent in chunks by a client of Apache Pulsar"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "secret.pem", folder / "public.pem")
    return pulsar.CryptoKeyReader(str(folder / "public.pem"), str(folder / "secret.pem"))


@pytest.fixture(scope="module")
def copies() -> Iterator[engine.Engine]:
    """A broker that topics are copied to."""
    with engine.open(":memory:", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened:
        yield opened


@pytest.fixture
def command(usual: None, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs one command line in this process."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(one) for one in arguments])
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture(params=list(WHAT))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, kind: str) -> str:
    """A topic with one before, some that are foreign, and one behind; as an error names the first foreign entry."""
    plain = client.create_producer(topic)
    plain.send(b"before", partition_key="a")
    if kind == "encrypted":
        producer = client.create_producer(
            topic, encryption_key="k", crypto_key_reader=keys, batching_enabled=True,
            batching_max_publish_delay_ms=10_000,
        )  # fmt: skip
        for value in SECRET:
            producer.send_async(value, None, partition_key="a")
        producer.flush()
    else:
        client.create_producer(topic, chunking_enabled=True, batching_enabled=False).send(BIG, partition_key="a")
    plain.send(b"behind", partition_key="a")
    return f"segment 0, offsets 1..{len(SECRET) if kind == 'encrypted' else 1}: {WHAT[kind]}"


def nothing_is_lost(client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader, kind: str) -> None:
    """A client of Apache Pulsar reads all of it."""
    expected = [b"before", *(SECRET if kind == "encrypted" else [BIG]), b"behind"]
    consumer = client.subscribe(topic, "afterwards", initial_position=EARLIEST, crypto_key_reader=keys)
    assert [message.data() for message in take(consumer, len(expected))] == expected
    consumer.close()


def test_consumers_name_the_topic_and_the_place_each_time(served, client, topic, place, keys, kind) -> None:
    with served.stream_consumer(topic, "s", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=60).value == b"before"
        for _ in range(2):
            with pytest.raises(engine.DecryptionError) as raised:
                consumer.receive(timeout=60)
            assert str(raised.value).startswith(f"{topic}, {place}")
            error = raised.value
            assert (type(error), error.topic, error.segment_id) == (engine.DecryptionError, topic, 0)
            assert error.offsets == (1, len(SECRET) if kind == "encrypted" else 1)
    nothing_is_lost(client, topic, keys, kind)


def test_a_consumer_of_several_topics_says_which_one(served, client, topic, place) -> None:
    other = f"{topic}-readable"
    client.create_producer(other).send(b"elsewhere")
    with served.stream_consumer([other, topic], "s", initial_position="earliest") as consumer:
        found = {consumer.receive(timeout=60).value for _ in range(2)}
        with pytest.raises(engine.DecryptionError, match=f"{topic}, {place}"):
            consumer.receive(timeout=60)
        assert found == {b"elsewhere", b"before"}


def test_skipping_bad_entries_does_not_skip_them(served, topic, place) -> None:
    with served.queue_consumer(topic, "s", initial_position="earliest", on_corrupt="skip") as consumer:
        consumer.acknowledge(consumer.receive(timeout=60))
        with pytest.raises(engine.DecryptionError, match=place):
            consumer.receive(timeout=60)
    assert served.admin.get_stats(topic)["subscriptions"]["s"]["backlog"] > 1


def test_a_table_view_is_refused_with_the_place(served, client, topic, place, keys, kind) -> None:
    with pytest.raises(engine.DecryptionError, match=f"{topic}, {place}"), served.table_view(topic) as view:
        view["a"]
    nothing_is_lost(client, topic, keys, kind)


def test_a_topic_view_and_its_arrow_say_the_place(served, topic, place) -> None:
    with served.topic_view(topic) as view:
        ranges = {i: (one.first, one.end) for i, one in view.segments(exact=True).segments.items()}
    with served.range_reader(topic, ranges) as reader:
        batches = iter(reader.batches())
        assert pa.table(next(batches))["value"].to_pylist() == [b"before"]
        with pytest.raises(engine.DecryptionError, match=place):
            next(batches)


@pytest.mark.parametrize("more", [[], ["--on-corrupt", "skip"]], ids=["stop", "skip"])
def test_an_export_ends_with_the_place_and_what_is_behind_can_be_had(
    served, client, topic, place, keys, kind, command, tmp_path: Path, more
) -> None:
    file = tmp_path / "all.jsonl"
    ended = command("export", topic, file, "--url", served.service_url, *more)
    assert ended.code == 1
    assert place in ended.err
    assert not file.exists()
    behind = 1 + (len(SECRET) if kind == "encrypted" else 2)
    asked = ["--segment", f"0:{behind}..{behind}", "--restart", "--url", served.service_url]
    around = command("export", topic, file, *asked)
    assert around.code == 0, around.err
    assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == ["behind"]
    nothing_is_lost(client, topic, keys, kind)


def page(served: engine.Engine, topic: str, start: str = "", key: str = "") -> MessagePage:
    """What the console shows."""

    async def read() -> MessagePage:
        async with engine.AsyncClient(served.service_url) as client:
            return await browse(client, topic, Wanted.of({"from": start, "key": key}))

    return asyncio.run(read())


@pytest.mark.parametrize(("start", "key"), [("", ""), ("earliest", ""), ("0:0", "a")], ids=["newest", "first", "key"])
def test_the_console_shows_what_is_around_it_and_says_what_it_is(served, topic, place, start, key) -> None:
    found = page(served, topic, start, key)
    expected = ["behind", "before"] if start == "" else ["before", "behind"]
    assert [row.value.text for row in found.rows] == expected
    assert place in found.note


def test_a_page_of_the_console_passes_so_many_by_and_the_next_goes_on(
    served, topic, place, kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PASSED_MAX", 1)
    first = page(served, topic, "earliest")
    assert [row.value.text for row in first.rows] == ["before"]
    assert place in first.note
    assert "ended after 1 such" in first.note
    rows = []
    while first.more:
        first = page(served, topic, first.more)
        rows += [row.value.text for row in first.rows]
    assert rows == ["behind"]


def test_a_migration_between_brokers_ends_with_the_place(
    served, copies, client, topic, place, keys, kind, command
) -> None:
    ended = command("migrate", topic, "--from", served.service_url, "--to", copies.service_url)
    assert ended.code == 1
    assert place in ended.err
    nothing_is_lost(client, topic, keys, kind)


def test_a_migration_by_the_protocol_of_apache_pulsar_ends_with_the_place(
    served, copies, client, topic, place, keys, kind, command
) -> None:
    ended = command("migrate", topic, "--from", service_url(served), "--to", copies.service_url)
    assert ended.code == 1
    assert "offset 1" in ended.err or "(0, 1" in ended.err or "0:1" in ended.err, ended.err
    assert ("encrypted" if kind == "encrypted" else "chunk") in ended.err
    nothing_is_lost(client, topic, keys, kind)


def test_dead_letters_behind_it_are_moved(served, client, topic, place, keys) -> None:
    """It was delivered too often, as the others: nothing can be made of it, and nothing waits for it."""
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST, crypto_key_reader=keys,
        negative_ack_redelivery_delay_ms=10,
    )  # fmt: skip
    while True:
        message = consumer.receive(60_000)
        if message.redelivery_count() == 3 and message.data() == b"behind":
            break
        consumer.negative_acknowledge(message)
    consumer.close()
    letters = f"{topic}-letters"
    with (
        served.queue_consumer(topic, "s", dead_letter=engine.DeadLetter(1, letters)),
        served.stream_consumer(letters, "read", initial_position="earliest") as read,
    ):
        assert {read.receive(timeout=60).value for _ in range(2)} == {b"before", b"behind"}
