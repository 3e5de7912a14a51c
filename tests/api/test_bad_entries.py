"""Bad entries in a log: everything good around them is received, each is named by its place, and may be skipped."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.api.bad_entries import hosted, older_broker, send, store_bad
from tests.reference.hostile_entries import COUNT, DAMAGING, FORMS, READABLE

__all__ = ["older_broker"]  # a fixture

FALLING = next(form for form in DAMAGING if form.name == "value offsets that fall")
INSIDE = next(form for form in DAMAGING if form.name == "falling offsets in zstd")
TOPIC = "topic://public/default/t"


def reading(client: engine.AsyncClient, kind: str, topic: str = "t", **options: Any) -> Any:
    """A consumer of that kind, from the beginning; make it with `await`."""
    if kind == "checkpoint":
        return client.checkpoint_consumer(topic, start=engine.Checkpoint.earliest(), **options)
    make = client.stream_consumer if kind == "stream" else client.queue_consumer
    return make(topic, "s", initial_position="earliest", **options)


async def values(consumer: Any, count: int) -> list[bytes]:
    return [(await consumer.receive(timeout=20)).value for _ in range(count)]


async def until_error(consumer: Any, last: bytes = b"") -> tuple[list[bytes], engine.CorruptionError]:
    """What is received before an error, and that; or up to a value."""
    found: list[bytes] = []
    try:
        while last not in found:
            found += await values(consumer, 1)
    except engine.CorruptionError as error:
        await asyncio.sleep(0)  # others' turn: where nothing more can come, it is raised at once
        return found, error
    return found, engine.CorruptionError("none")


async def write(opened: engine.AsyncEngine, forms: list[Any], topic: str = "t") -> list[tuple[int, int]]:
    """Good, bad, good, bad, … good; the places of the bad ones."""
    await send(opened, topic, [b"good-0"])
    places = []
    for number, form in enumerate(forms):
        places.append(await store_bad(opened, topic, form, number * 100))
        await send(opened, topic, [b"good-%d" % (number + 1)])
    return places


@pytest.fixture
async def opened(older_broker: None, tmp_path: Path) -> Any:
    async with engine.open_async(tmp_path / "data", shared=False) as made:
        await made.admin.create_topic("t", segments=1, entry_buckets=1)
        yield made


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
@pytest.mark.parametrize("batches", [False, True])
async def test_every_form_is_skipped_and_counted(
    opened: Any, kind: str, batches: bool, caplog: pytest.LogCaptureFixture
):
    places = await write(opened, DAMAGING)
    good = [b"good-%d" % n for n in range(len(DAMAGING) + 1)]
    with caplog.at_level(logging.WARNING, "engine.client"):
        async with await reading(opened, kind, on_corrupt="skip") as consumer:
            found: list[bytes] = []
            while len(found) < len(good):
                got = await consumer.receive_batch() if batches else [await consumer.receive()]
                found += [message.value for message in got]
            assert found == good
            statistics = consumer.statistics()
            assert statistics.corrupt_entries == len(DAMAGING)
            assert statistics.corrupt_messages == sum(last + 1 - first for first, last in places)
    for form, (first, last) in zip(DAMAGING, places, strict=True):
        assert f"skipped: {TOPIC}, segment 0, offsets {first}..{last}: " in caplog.text, form.name


async def test_a_range_reader_ends_or_skips(opened: Any):
    await write(opened, DAMAGING)
    end = (await hosted(opened, "t")).segment.durable_offset
    async with await opened.range_reader("t", {0: (0, end)}, on_corrupt="skip") as reader:
        found = [value async for batch in reader.batches() for value in batch.values]
        assert found == [b"good-%d" % n for n in range(len(DAMAGING) + 1)]
        assert reader.statistics().corrupt_entries == len(DAMAGING)
    async with await opened.range_reader("t", {0: (0, end)}) as reader:
        assert (await reader.next_batch()).values == [b"good-0"]
        for _ in range(2):
            with pytest.raises(engine.CorruptionError, match="segment 0, offsets 1"):
                await reader.next_batch()


@pytest.mark.parametrize("form", [FALLING, INSIDE], ids=["plain", "compressed"])
@pytest.mark.parametrize("kind", ["stream", "checkpoint"])
async def test_what_is_good_before_it_is_received_and_then_its_place_is_told(opened: Any, kind: str, form: Any):
    """In the same block."""
    await write(opened, [form])
    async with await reading(opened, kind) as consumer:
        assert await values(consumer, 1) == [b"good-0"]
        for _ in range(2):  # nothing else could come
            with pytest.raises(engine.CorruptionError, match=r"segment 0, offsets 1\.\.5:") as raised:
                await consumer.receive(timeout=20)
            error = raised.value
            assert (error.topic, error.segment_id, error.offsets) == (TOPIC, 0, (1, 5))
        assert consumer.statistics().corrupt_entries == 0


async def test_other_segments_go_on(older_broker: None, tmp_path: Path):
    async with engine.open_async(tmp_path / "data", shared=False) as opened:
        await opened.admin.create_topic("t", segments=2, entry_buckets=1)
        async with await opened.producer("t") as producer:
            for n in range(20):
                await producer.send(b"before", key=b"k%d" % n)
            await store_bad(opened, "t", FALLING)
            async with await reading(opened, "stream") as consumer:
                found, error = await until_error(consumer)
                assert error.segment_id == 0
                assert len(found + await values(consumer, 20 - len(found))) == 20
                sent = [await producer.send(b"behind", key=b"k%d" % n) for n in range(20)]
                theirs = sum(ident.segment_id == 1 for ident in sent)
                assert 0 < theirs < 20
                got = [await consumer.receive(timeout=20) for _ in range(theirs)]
                assert {message.segment_id for message in got} == {1}
                await consumer.acknowledge_cumulative(got[-1])


async def test_a_queue_consumer_goes_on_and_the_bad_entry_stays_due(opened: Any):
    await write(opened, [FALLING])
    for _ in range(2):
        async with await reading(opened, "queue") as consumer:
            found, error = await until_error(consumer)
            assert error.offsets == (1, COUNT)
            if b"good-1" not in found:
                found += await values(consumer, 1)
            assert sorted(found) == [b"good-0", b"good-1"]
    assert await backlog(opened) == 2 + COUNT


async def backlog(opened: Any, topic: str = "t") -> int:
    return int((await opened.admin.get_stats(topic))["subscriptions"]["s"]["backlog"])


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_skipped_entry_is_acknowledged_also_as_the_last(opened: Any, kind: str):
    """Nothing of the segment is due then, or its children would wait for ever."""
    await send(opened, "t", [b"good-0"])
    await store_bad(opened, "t", INSIDE)
    async with await reading(opened, kind, on_corrupt="skip") as consumer:
        message = await consumer.receive(timeout=20)
        waiting = asyncio.ensure_future(consumer.receive())
        await (consumer.acknowledge(message) if kind == "queue" else consumer.acknowledge_cumulative(message))
        await opened.admin.split_segment("t", 0)
        await send(opened, "t", [b"good-1"])
        assert (await asyncio.wait_for(waiting, 20)).value == b"good-1"
        assert consumer.statistics().corrupt_messages == COUNT


async def test_readable_ones_are_received(opened: Any):
    forms = [form for form in FORMS if form.read == READABLE and len(form.make(0)) < 200_000]
    await write(opened, forms)
    async with await reading(opened, "checkpoint") as consumer:
        assert len(await values(consumer, len(forms) * (COUNT + 1) + 1)) == len(forms) * (COUNT + 1) + 1


async def test_of_several_topics_one_receive_tells_it(opened: Any):
    await write(opened, [FALLING])
    await send(opened, "u", [b"good"] * 3)
    subscribed = {"subscription": "s", "initial_position": "earliest"}
    async with await opened.stream_consumer(["t", "u"], **subscribed, on_corrupt="stop") as consumer:
        found, error = await until_error(consumer)
        assert (error.topic, error.segment_id, error.offsets) == (TOPIC, 0, (1, COUNT))
        while len(found) < 4:
            found += await values(consumer, 1)
        assert sorted(found) == [b"good"] * 3 + [b"good-0"]
        await send(opened, "u", [b"more"])
        assert await values(consumer, 1) == [b"more"]
    async with await opened.stream_consumer(["t", "u"], **subscribed, on_corrupt="skip") as consumer:
        assert sorted(await values(consumer, 6)) == [b"good"] * 3 + [b"good-0", b"good-1", b"more"]
        assert consumer.statistics().corrupt_entries == 1


def test_blocking_consumers_do_the_same(tmp_path: Path, older_broker: None):
    async def prepare() -> None:
        async with engine.open_async(tmp_path / "data", shared=False) as opened:
            await opened.admin.create_topic("t", segments=1, entry_buckets=1)
            await write(opened, [FALLING, INSIDE])

    asyncio.run(prepare())
    with engine.open(tmp_path / "data") as opened:
        with opened.stream_consumer("t", "s", initial_position="earliest", on_corrupt="skip") as consumer:
            assert [consumer.receive(20).value for _ in range(3)] == [b"good-0", b"good-1", b"good-2"]
            assert consumer.statistics().corrupt_entries == 2
        with opened.range_reader("t", {0: (0, 13)}, on_corrupt="skip") as reader:
            assert [v for batch in reader.batches() for v in batch.values] == [b"good-0", b"good-1", b"good-2"]
        with opened.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as consumer:
            assert consumer.receive(20).value == b"good-0"
            with pytest.raises(engine.CorruptionError, match=r"segment 0, offsets 1\.\.5:"):
                consumer.receive(20)


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
async def test_what_may_be_done_with_them_is_checked(client: engine.AsyncClient, kind: str):
    with pytest.raises(engine.InvalidArgumentError, match="on_corrupt"):
        await reading(client, kind, on_corrupt="ignore")


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_an_operator_moves_a_subscription_past_it(opened: Any, kind: str):
    """The consumer that stopped goes on by itself."""
    await write(opened, [FALLING, INSIDE])
    async with await reading(opened, kind) as consumer:
        found, error = await until_error(consumer)
        for _ in range(2):
            assert error.segment_id == 0
            assert error.offsets is not None
            await opened.admin.skip_messages("t", "s", 0, *error.offsets)
            before, more = error.offsets, []
            while error.offsets == before and b"good-2" not in more:
                more, error = await until_error(consumer, b"good-2")  # perhaps once more, before it has heard of it
                found += more
        assert set(found) == {b"good-0", b"good-1", b"good-2"}
    assert await backlog(opened) == 3


async def test_only_what_is_there_can_be_given_up(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    await send(client, "t", [b"x"])
    await client.admin.create_subscription("t", "s", initial_position="earliest")
    for segment, first, last in [(0, 0, 1), (0, 1, 0), (0, -1, 0)]:
        with pytest.raises(engine.InvalidArgumentError, match="offset"):
            await client.admin.skip_messages("t", "s", segment, first, last)
    for subscription, segment in [("s", 7), ("u", 0)]:
        with pytest.raises(engine.NotFoundError):
            await client.admin.skip_messages("t", subscription, segment, 0)
    await client.admin.skip_messages("t", "s", 0, 0)
    assert await backlog(client) == 0


def flip(folder: Path, value: bytes) -> None:
    """A bit of a message of this value, in the file of the log."""
    [path] = [path for path in folder.rglob("*.log") if value in path.read_bytes()]
    at = path.read_bytes().index(value)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([value[0] ^ 1]))


@pytest.mark.parametrize("on_corrupt", ["stop", "skip"])
@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
async def test_what_the_disk_damaged_is_told_behind_what_is_good(tmp_path: Path, kind: str, on_corrupt: str):
    """How far that goes nobody knows, so it is never skipped by itself."""
    async with engine.open_async(tmp_path / "data", config={"read_cache_max": 0}, shared=False) as opened:
        await opened.admin.create_topic("t", segments=1, entry_buckets=1)
        for value in (b"good-before", b"bad-in-between", b"good-behind"):
            await send(opened, "t", [value] * 2)
        flip(tmp_path / "data", b"bad-in-between")
        consumer = await reading(opened, kind, on_corrupt=on_corrupt)
        got = [await consumer.receive(timeout=20) for _ in range(2)]
        assert [message.value for message in got] == [b"good-before"] * 2
        for _ in range(2):
            with pytest.raises(engine.CorruptionError, match=r"segment 0, offsets 2 and on: .*body fails") as raised:
                await consumer.receive(timeout=20)
            assert raised.value.offsets == (2, None)
        if kind != "checkpoint":
            await (consumer.acknowledge(got) if kind == "queue" else consumer.acknowledge_cumulative(got[-1]))
            assert await backlog(opened) == 4
            await opened.admin.skip_messages("t", "s", 0, 2, 3)
            found: list[bytes] = []
            while len(found) < 2:
                found += (await until_error(consumer, b"good-behind"))[0]
            assert found == [b"good-behind"] * 2
        await consumer.close()


async def test_who_shares_a_segment_passes_it_by(older_broker: None, tmp_path: Path):
    """In the bucket that has it; nothing is due in the end."""
    async with engine.open_async(tmp_path / "data", shared=False) as opened:
        await opened.admin.create_topic("t", segments=1, entry_buckets=4)
        options: dict[str, Any] = {"initial_position": "earliest", "on_corrupt": "skip"}
        consumers = [await opened.stream_consumer("t", "s", name=f"c{n}", **options) for n in range(2)]
        async with await opened.producer("t") as producer:
            for n in range(30):
                await producer.send(b"before", key=b"k%d" % n)
            await store_bad(opened, "t", FALLING)
            await store_bad(opened, "t", INSIDE, 100)
            for n in range(30):
                await producer.send(b"behind", key=b"k%d" % n)
        got = 0

        async def read(consumer: Any) -> None:
            nonlocal got
            while got < 60:
                message = await consumer.receive(timeout=0.1)
                if message is not None:
                    got += 1
                    await consumer.acknowledge_cumulative(message)

        async with asyncio.timeout(60):
            await asyncio.gather(*map(read, consumers))
            while await backlog(opened):  # noqa: ASYNC110 - it is acknowledged in the background
                await asyncio.sleep(0.01)
        assert sum(consumer.statistics().corrupt_entries for consumer in consumers) == 2
        for consumer in consumers:
            await consumer.close()


async def test_a_segment_that_cannot_even_be_opened_holds_up_no_other(tmp_path: Path):
    async with engine.open_async(tmp_path / "data", shared=False) as opened:
        await opened.admin.create_topic("t", segments=2, entry_buckets=1)
        async with await opened.producer("t") as producer:
            sent = [await producer.send(b"value-%d." % n, key=b"k%d" % n) for n in range(20)]
    bad = sent[0].segment_id
    flip(tmp_path / "data", b"value-0.")
    others = sum(ident.segment_id != bad for ident in sent)
    assert 0 < others < 20
    async with (
        engine.open_async(tmp_path / "data", shared=False) as opened,
        await reading(opened, "stream") as consumer,
    ):
        found, error = await until_error(consumer)
        assert error.segment_id == bad
        got = [await consumer.receive(timeout=20) for _ in range(others - len(found))]
        assert {message.segment_id for message in got} <= {ident.segment_id for ident in sent} - {bad}
        assert len(found) + len(got) == others
