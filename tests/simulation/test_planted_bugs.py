"""The suite can fail: each of these bugs, planted, is flagged within a few seeds, by the rule that is named for it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from pyroaring import BitMap64

from engine.broker.delivery.consumer import LoneReader
from engine.broker.hosting.segment_host import SegmentHosting
from engine.client.topic.session import TopicSession
from engine.control.policy import assignment
from engine.control.shape.reshaping import TopicReshaping
from engine.errors import CorruptionError
from engine.storage.cursor import store as cursors
from engine.storage.dedup.dedup import Dedup
from engine.storage.file import recovery, writer
from engine.storage.file.logfile import SyncFailed
from engine.testing.checker import check
from engine.testing.cluster import simulate
from engine.testing.disk import MountedDisk
from engine.testing.workload import QueueReader, Sender, read_all
from tests.simulation.scenario import TOPIC, Plan, Scenario

SEEDS = range(100, 130)


def flagged(rule, plan, first=SEEDS[0]):
    """Whether some seed shows a violation of the rule. They are tried from `first` on, and then those before it.

    Where each seed shows it, `first` is one that ends soon: others have clients that wait long for what is damaged.
    """
    for seed in (*range(first, SEEDS.stop), *range(SEEDS.start, first)):
        try:
            simulate(seed, Scenario(plan))
        except AssertionError as e:
            if f"{rule} at event" in str(e):
                return True
    return False


def test_ack_before_sync(monkeypatch):
    monkeypatch.setattr(writer, "sync", lambda file: None)
    assert flagged("D1", Plan(kinds=("power cut",), messages=40, faults=2), first=107)


def test_skip_the_directory_sync(monkeypatch, log_file_size):
    log_file_size(4096)
    monkeypatch.setattr(MountedDisk, "sync_directory", lambda disk, path: None)
    assert flagged("D1", Plan(kinds=("power cut",), messages=40, faults=2), first=102)


def test_retry_a_failed_sync(monkeypatch):
    def sync(file):
        try:
            file.sync()
        except OSError:
            try:
                file.sync()
            except OSError as e:
                raise SyncFailed(e) from e

    monkeypatch.setattr(writer, "sync", sync)
    assert flagged("D1", Plan(kinds=("sync fails", "sync fails", "power cut"), messages=80, faults=6), first=102)


def test_save_the_cursor_before_processing(monkeypatch):
    pump = LoneReader.pump

    def send_and_save(consumer):
        pump(consumer)
        if consumer.subscription is not None:
            consumer.subscription.cursor.ack_cumulative(consumer.next_offset)

    monkeypatch.setattr(LoneReader, "pump", send_and_save)
    assert flagged("O2", Plan(kinds=("kill",), messages=40, faults=3))


def test_redeliver_acknowledged_after_reconnect_of_a_stream(monkeypatch):
    monkeypatch.setattr(cursors, "unpack", lambda image, key: (0, BitMap64()))
    assert flagged("C1", Plan(kinds=("kill",), messages=40, faults=3))


def test_redeliver_acknowledged_after_reconnect_of_a_queue(monkeypatch):
    unpack = cursors.unpack
    monkeypatch.setattr(cursors, "unpack", lambda image, key: (unpack(image, key)[0] // 2, BitMap64()))
    assert flagged("C2", Plan(kinds=("kill",), messages=40, faults=3))


def test_forget_what_producers_have_sent(monkeypatch):
    monkeypatch.setattr(Dedup, "find", lambda dedup, claim: None)
    assert flagged("D3", Plan(kinds=("reset", "kill"), messages=80, faults=8, quiet_s=1.0, delays_s=(0.05,)))


# Bugs of changes of shape.

CHANGING = Plan(kinds=("nothing", "reset"), messages=160, faults=4, changes=8, delays_s=(0.05,))


def test_read_a_child_before_its_parent_is_acknowledged(monkeypatch):
    def everything(layout, drained):
        return [s for s in layout.segments.values() if s.active or s.segment_id not in drained]

    monkeypatch.setattr(assignment, "open_segments", everything)
    assert flagged("O1", CHANGING, first=113)


def test_open_a_child_before_the_parent_is_sealed(monkeypatch):
    async def forget_to_seal(reshaping):
        """Everything but the parents' end."""

    monkeypatch.setattr(TopicReshaping, "_terminate", forget_to_seal)
    assert flagged("D1", CHANGING)  # a reader waits for the parent's end for ever


def test_forget_what_producers_have_sent_at_a_split(monkeypatch):
    async def forget(host, spec, producers, *, term):
        """The children begin with nothing."""

    monkeypatch.setattr(SegmentHosting, "inherit", forget)
    plan = Plan(kinds=("reset", "kill"), messages=160, faults=20, changes=20, quiet_s=0.5, delays_s=(0.05,))
    assert flagged("D3", plan)


# A consumer that stays, and whose connection breaks while the topic splits. The good product gives it the children too.


async def missed_split(cluster):
    """The broken rules. What is sent after the split goes to segments that the consumer has to hear of."""
    broker, rng = await cluster.start(), cluster.rng("scenario")
    await broker.process.do(lambda: broker.broker.admin.create_topic(TOPIC, segments=1))
    connect = lambda: cluster.client("c-queue", broker)  # noqa: E731
    reader = QueueReader(cluster.history, connect, "queue", TOPIC, "sub", cluster.rng("queue"))
    reader.life_s_max = reader.ack_rate = float("inf")
    reading = asyncio.create_task(reader.run())
    sender = Sender(cluster.history, cluster.client("c-p", broker), "p", TOPIC, cluster.rng("sender"))
    await sender.run(20)
    await asyncio.sleep(5)
    cluster.network.partition("c-queue", broker.name)
    await asyncio.sleep(rng.uniform(0, 1))
    await broker.process.do(lambda: broker.broker.admin.split_segment(TOPIC, 0))
    cluster.network.reset("c-queue", broker.name)
    await asyncio.sleep(rng.uniform(0, 1))
    cluster.network.heal()
    again = Sender(cluster.history, cluster.client("c-p2", broker), "p2", TOPIC, cluster.rng("sender 2"))
    await again.run(20)
    await asyncio.sleep(60)
    reader.stop()
    await reading
    cluster.history.record("queue", "drained", subscription="sub")
    await read_all(cluster.history, cluster.client("c-r", broker), TOPIC, 1)
    return {violation.rule for violation in check(cluster.history.events)}


@pytest.mark.parametrize("seed", range(5))
def test_a_consumer_hears_of_a_split_that_it_missed(seed):
    assert simulate(seed, missed_split) == set()


def test_drop_a_watch_event_on_reconnect(monkeypatch):
    receive = TopicSession.frame_received

    def drop(session, header, payload):
        if not session._reopening:
            receive(session, header, payload)

    monkeypatch.setattr(TopicSession, "frame_received", drop)
    assert simulate(0, missed_split) == {"C2"}


# Damage of bytes that were durable. The good product says so; the bad one takes it for the end of the log.


async def rot(cluster):
    """Fill a segment, flip a bit in its middle while nobody looks, start again, read."""
    broker = await cluster.start()
    sender = Sender(cluster.history, cluster.client("c-p", broker), "p", TOPIC, cluster.rng("sender"))
    await sender.run(60)
    await read_all(cluster.history, cluster.client("c-r", broker), TOPIC, 1)
    await broker.kill()
    path = max(broker.disk.paths(), key=lambda path: len(broker.disk.read(path)))
    used = len(broker.disk.read(path).rstrip(b"\0"))
    broker.disk.corrupt(path, used // 2)
    await broker.start()
    client = cluster.client("c-r2", broker)
    try:
        count = await read_all(cluster.history, client, TOPIC, 2)
    except CorruptionError:
        return None
    return count


@pytest.mark.parametrize("seed", range(5))
def test_d6_bit_rot_is_an_error_never_an_end(seed):
    assert simulate(seed, rot) is None


def test_treat_a_bad_checksum_as_the_end_of_the_log(monkeypatch):
    monkeypatch.setattr(recovery._Opener, "_check_torn", lambda *arguments: None)
    counts = []
    for seed in range(5):
        with contextlib.suppress(CorruptionError):
            counts.append(simulate(seed, rot))
    assert any(count is not None and count < 60 for count in counts)
