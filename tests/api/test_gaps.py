"""After a power cut in a relaxed mode: what is lost is said, and what is sent later reaches every reader (D4)."""

from __future__ import annotations

import contextlib
import logging
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.limits import LOG_FILE_MESSAGES_MAX
from tests.kit.programs import environment, program

MESSAGES = 2000
NEW = [b"new-%d" % i for i in range(100)]


@pytest.fixture(scope="module", params=["interval", "os"])
def lost(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of which a power cut has left the metadata, and of the log its first entries."""
    root = tmp_path_factory.mktemp(request.param) / "data"
    command = program("tests.api.burst_program", root, request.param)
    done = subprocess.run(command, env=environment(), timeout=120, check=False)
    assert done.returncode == -9
    (path,) = root.glob("segments/*/*/orders/*/*.log")
    image = bytearray(path.read_bytes()[:2000])
    image[256:320] = bytes(64)  # nor was the second witness written
    path.write_bytes(image)
    return root


@pytest.fixture
def directory(lost: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lost, tmp_path / "data"))


@pytest.fixture
def e(directory: Path) -> Iterator[engine.Engine]:
    with engine.open(directory) as opened:
        with opened.producer("orders") as producer:
            for value in NEW:
                producer.send_nowait(value, key=b"k")
        yield opened


def received(consumer: Any, wanted: int = len(NEW)) -> list[bytes]:
    """So many messages, in the order of their coming."""
    values: list[bytes] = []
    while len(values) < wanted:
        batch = consumer.receive_batch(max_messages=wanted - len(values), timeout=60)
        assert len(batch), f"{len(values)} came"
        values += batch.values
    return values


def gather(consumers: list[Any], wanted: int) -> list[bytes]:
    """So many messages, whichever of these gets each."""
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < wanted:
        assert time.monotonic() < deadline, f"{len(values)} of {wanted} came"
        for consumer in consumers:
            values += consumer.receive_batch(max_messages=wanted - len(values), timeout=0.05).values
            if len(values) == wanted:
                break
    return values


def backlog(e: engine.Engine, subscription: str) -> int:
    return int(e.admin.get_stats("orders")["subscriptions"][subscription]["backlog"])


def test_a_stream_consumer_that_had_acknowledged_all_gets_what_came_later(e: engine.Engine) -> None:
    with e.stream_consumer("orders", "stream") as consumer:
        assert backlog(e, "stream") == len(NEW)
        first = consumer.receive(timeout=60)
        assert first is not None
        assert first.id.offset >= LOG_FILE_MESSAGES_MAX
        assert [first.value, *received(consumer, len(NEW) - 1)] == NEW
        consumer.acknowledge_cumulative(first)
        assert backlog(e, "stream") == len(NEW) - 1


def test_a_queue_consumer_that_had_acknowledged_all_gets_what_came_later(e: engine.Engine) -> None:
    with e.queue_consumer("orders", "queue") as consumer:
        assert backlog(e, "queue") == len(NEW)
        batch = consumer.receive_batch(max_messages=len(NEW), timeout=60)
        consumer.acknowledge(batch)
        assert backlog(e, "queue") == len(NEW) - len(batch)


def test_a_checkpoint_that_was_taken_before_goes_on_behind(e: engine.Engine, directory: Path) -> None:
    start = engine.Checkpoint.from_bytes((directory / "checkpoint").read_bytes())
    with e.checkpoint_consumer("orders", start=start) as consumer:
        assert received(consumer) == NEW
        after = consumer.checkpoint()
    with e.producer("orders") as producer:
        producer.send(b"last")
    with e.checkpoint_consumer("orders", start=after) as consumer:
        assert received(consumer, 1) == [b"last"]


def test_what_is_left_comes_before_the_gap_and_the_gap_counts_nowhere(e: engine.Engine) -> None:
    left = backlog(e, "behind") - len(NEW)
    assert 0 < left < MESSAGES
    with e.stream_consumer("orders", "behind") as consumer:
        values = received(consumer, left + len(NEW))
        assert values == [b"%d" % i for i in range(left)] + NEW
    with e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as reader:
        assert received(reader, left + len(NEW)) == values


@pytest.mark.parametrize("kind", ["exclusive", "shared", "queue", "checkpoint"])
def test_who_waits_at_the_gap_gets_what_comes_later(directory: Path, kind: str) -> None:
    """Nothing stands behind the gap yet when its readers come there."""
    with engine.open(directory) as e, contextlib.ExitStack() as stack:
        make: dict[str, Callable[[], Any]] = {
            "exclusive": lambda: e.stream_consumer("orders", "behind"),
            "shared": lambda: e.stream_consumer("orders", "behind"),
            "queue": lambda: e.queue_consumer("orders", "behind"),
            "checkpoint": lambda: e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()),
        }
        left = backlog(e, "behind")
        consumers = [stack.enter_context(make[kind]()) for _ in range(2 if kind == "shared" else 1)]
        both = gather(consumers, left)
        assert sorted(both) == sorted(b"%d" % i for i in range(left))
        with e.producer("orders") as producer:
            for i, value in enumerate(NEW):
                producer.send_nowait(value, key=b"%d" % i)
        assert sorted(gather(consumers, len(NEW))) == sorted(NEW)


def test_a_reader_from_the_start_goes_on_in_the_children_of_what_ends_with_a_gap(directory: Path) -> None:
    with engine.open(directory) as e:
        left = backlog(e, "behind")
        e.admin.split_segment("orders", 0)
        with e.producer("orders") as producer:
            for i, value in enumerate(NEW):
                producer.send_nowait(value, key=b"%d" % i)
        with e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as reader:
            assert sorted(received(reader, left + len(NEW))[left:]) == sorted(NEW)


def test_a_reader_passes_what_begins_and_ends_behind_a_gap(directory: Path) -> None:
    """Retention took the file before the gap, and nothing came behind it: its end is said before any message."""
    with engine.open(directory) as e:
        e.admin.split_segment("orders", 0)
        with e.producer("orders") as producer:
            for i, value in enumerate(NEW):
                producer.send_nowait(value, key=b"%d" % i)
    (old,) = directory.glob("segments/*/*/orders/*-0/0.log")
    old.unlink()
    with (
        engine.open(directory) as e,
        e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as reader,
    ):
        assert sorted(received(reader)) == sorted(NEW)


async def test_a_subscription_that_is_moved_back_passes_the_gap_once_more(directory: Path) -> None:
    """The gap is no run of millions of offsets that are not acknowledged."""
    async with engine.open_async(directory, shared=False) as e:
        await e.admin.seek_subscription("orders", "queue", "earliest")
        async with await e.queue_consumer("orders", "queue") as queue:
            left = (await e.admin.get_stats("orders"))["subscriptions"]["queue"]["backlog"]
            messages = [await queue.receive() for _ in range(left)]
            await queue.acknowledge(messages)
        (hosted,) = e.broker.segments
        assert hosted.subscriptions["queue"].cursor.position == LOG_FILE_MESSAGES_MAX


def test_a_range_reader_passes_the_gap(e: engine.Engine) -> None:
    with e.topic_view("orders") as view:
        (segment,) = view.segments().segments.values()
    assert segment.end == LOG_FILE_MESSAGES_MAX + len(NEW)
    with e.range_reader("orders", {segment.segment_id: (0, segment.end)}) as reader:
        values = [value for batch in reader.batches() for value in batch.values]
    assert values[-len(NEW) :] == NEW
    assert reader.deleted == {}


def test_a_sealed_segment_that_ends_with_a_gap_is_drained(directory: Path) -> None:
    """Nothing came behind the gap before the split: its children are read by everybody."""
    with engine.open(directory) as e:
        e.admin.split_segment("orders", 0)
        with e.producer("orders") as producer:
            for i, value in enumerate(NEW):
                producer.send_nowait(value, key=b"%d" % i)
        start = engine.Checkpoint.from_bytes((directory / "checkpoint").read_bytes())
        with e.checkpoint_consumer("orders", start=start) as reader:
            assert sorted(received(reader)) == sorted(NEW)
        # By the name of the one that was killed: its share of the children waits for it until its grace period is over.
        with e.stream_consumer("orders", "stream", name="killed") as stream:
            assert sorted(received(stream)) == sorted(NEW)
        with e.queue_consumer("orders", "queue") as queue:
            assert sorted(received(queue)) == sorted(NEW)


def test_transactions_go_on_behind_a_gap(e: engine.Engine) -> None:
    with e.producer("orders") as producer, e.transaction() as transaction:
        producer.send(b"inside", key=b"k", transaction=transaction)
    with e.stream_consumer("orders", "stream") as consumer:
        assert received(consumer, len(NEW) + 1) == [*NEW, b"inside"]


def test_what_is_lost_is_said_by_the_broker_and_by_the_client(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), engine.open(directory) as e:
        with e.producer("orders") as producer:
            producer.send(b"x")
        with e.stream_consumer("orders", "stream") as consumer:
            assert received(consumer, 1) == [b"x"]
            told = [r.getMessage() for r in caplog.records if r.name == "engine.client"]
            assert any(f"'stream' continues at offset {LOG_FILE_MESSAGES_MAX}" in text for text in told)
            assert consumer.statistics().gaps == 1
        stored = [r.getMessage() for r in caplog.records if r.name == "engine.storage"]
        assert any(f"goes on at {LOG_FILE_MESSAGES_MAX}" in text for text in stored)


# -- stores that are missing -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in order: segment 0 sealed, its children active, messages in all, acknowledged by nobody."""
    root = tmp_path_factory.mktemp("split") / "data"
    with engine.open(root) as e, e.producer("orders") as producer:
        for i in range(200):
            producer.send_nowait(b"%d" % i, key=b"%d" % i)
            if i == 100:
                producer.flush()
                e.admin.split_segment("orders", 0)
    return root


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("harm", [shutil.rmtree, lambda p: [log.unlink() for log in p.glob("*.log")]])
def test_d6_a_missing_folder_or_all_its_logs_is_damage_and_not_an_empty_segment(
    split: Path, tmp_path: Path, segment: int, harm: Callable[[Path], object]
) -> None:
    directory = Path(shutil.copytree(split, tmp_path / "data"))
    (place,) = directory.glob(f"segments/*/*/orders/*-{segment}")
    harm(place)
    with engine.open(directory) as e, e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as reader:
        with pytest.raises(engine.CorruptionError, match="was created and not deleted") as caught:
            received(reader, 300)
        assert place.name in str(caught.value)
    assert not list(place.glob("*.log")), "nothing was made in its place"


def test_d4_a_sealed_segment_whose_end_is_gone_is_damage(split: Path, tmp_path: Path) -> None:
    """An older copy of its file, or one without its closing block and footer: its end would move."""
    directory = Path(shutil.copytree(split, tmp_path / "data"))
    (path,) = directory.glob("segments/*/*/orders/*-0/*.log")
    image = bytearray(path.read_bytes())
    (end,) = struct.unpack_from("<Q", image, 80)
    image[64:128] = bytes(64)
    path.write_bytes(image[:end])
    with engine.open(directory) as e:
        reader = e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest())
        with pytest.raises(engine.CorruptionError, match=r"the log of .*/0000-ffff-0 must be sealed"):
            received(reader, 300)


def test_damage_is_said_and_counted_and_leaves_no_change_pending(
    split: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A change that cannot seal its parent is undone; the topic can still be deleted."""
    directory = Path(shutil.copytree(split, tmp_path / "data"))
    (place,) = directory.glob("segments/*/*/orders/*-1")
    shutil.rmtree(place)
    with engine.open(directory) as e:
        for _ in range(2):
            with pytest.raises(engine.CorruptionError, match="was created and not deleted"):
                e.admin.split_segment("orders", 1)
        assert e.admin.get_stats("orders")["pendingChange"] is None
        assert "/0000-7fff-1 cannot be served" in caplog.text
        assert "engine_storage_damaged_segments 1" in e.admin.get_metrics()
        e.admin.create_subscription("orders", "s", initial_position="earliest")
        e.admin.delete_topic("orders")
        assert "engine_storage_damaged_segments 0" in e.admin.get_metrics()


def test_messages_are_counted_without_gaps(e: engine.Engine) -> None:
    segment = e.admin.get_stats("orders")["segments"]["0"]
    left = backlog(e, "behind")
    assert segment["nextOffset"] - segment["firstOffset"] - segment["gapOffsets"] == left


def test_a_deleted_topic_leaves_nothing_that_is_missed(split: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(split, tmp_path / "data"))
    with engine.open(directory) as e:
        e.admin.delete_topic("orders")
        with e.producer("orders") as producer:
            producer.send(b"anew", key=b"k")
        with e.stream_consumer("orders", "s", initial_position="earliest") as consumer:
            assert received(consumer, 1) == [b"anew"]
