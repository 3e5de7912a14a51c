"""Small files of several segments become one object (R18): fewer requests, the same messages, and no object is deleted
that a record names. Over real frames, on virtual time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from engine.broker.upkeep import objects as upkeep
from engine.errors import UnknownOutcomeError
from engine.storage import sharing
from engine.storage.objects import sweep
from engine.storage.objects.names import shared_of
from engine.storage.objects.references import RolledFile
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate
from tests.simulation.test_object_files import named, settled

SEGMENTS = 4
CONFIG = replace(DEFAULT_CONFIG, balance_enabled=False, segments=SEGMENTS)
MESSAGES = 40


def run(body: Any, brokers: tuple[str, ...] = ("b1",)) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in brokers:
            await cluster.start(name)
        await body(cluster)
        assert not cluster.loop.problems

    simulate(1, scenario, config=CONFIG, objects=True, time_limit=50_000)


async def send(cluster: SimCluster, first: int, count: int, topic: str = "orders") -> None:
    async with await cluster.client(f"p{topic}{first}").producer(topic) as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number, key=f"k{number}")


async def read_all(cluster: SimCluster, count: int, name: str, topic: str = "orders") -> list[int]:
    consumer = await cluster.client(name).stream_consumer(topic, name, initial_position="earliest")
    found = [int((await consumer.receive()).value) for _ in range(count)]
    await consumer.close()
    return sorted(found)


def files(cluster: SimCluster, broker: str = "b1") -> list[RolledFile]:
    open_ones = [hosted.segment for hosted in cluster.brokers[broker].broker.segments]
    return [file for segment in open_ones for file in segment.consolidation.named.objects.files]


def forget_tails(cluster: SimCluster) -> None:
    """What the broker has of rolled files on its disk goes, as when the cache needs the room."""
    for hosted in cluster.brokers["b1"].broker.segments:
        for file in hosted.segment.files[:-1]:
            hosted.segment.drop_local(file)


def shared(cluster: SimCluster) -> list[str]:
    return [name for name in named(cluster, "log") if shared_of(name) is not None]


def test_r18_one_request_has_the_files_of_all_and_another_machine_reads_them() -> None:
    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        found = files(cluster)
        assert len(found) == SEGMENTS
        assert named(cluster, "log") == shared(cluster) == [found[0].key]
        spans = sorted((file.at, file.at + file.size) for file in found)
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == len(cluster.objects.objects[found[0].key])
        await cluster.brokers["b1"].lose_machine()
        await cluster.start("b2")
        gets = cluster.objects.statistics().requests["get"]
        assert await read_all(cluster, MESSAGES, "first") == list(range(MESSAGES))
        assert cluster.objects.statistics().requests["get"] > gets
        await send(cluster, MESSAGES, MESSAGES)
        await settled(cluster)
        assert len(shared(cluster)) == 2
        await cluster.brokers["b2"].lose_machine()
        await cluster.start("b3")
        assert await read_all(cluster, 2 * MESSAGES, "second") == list(range(2 * MESSAGES))

    run(body)


def test_r18_it_is_deleted_when_no_record_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a session that lives: by the second sweep that finds it so. One segment's retention harms no other."""
    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)

    async def body(cluster: SimCluster) -> None:
        for topic in ("orders", "bills"):
            await cluster.brokers["b1"].broker.admin.create_topic(topic, segments=2)
        await asyncio.gather(send(cluster, 0, MESSAGES), send(cluster, 0, MESSAGES, "bills"))
        await settled(cluster)
        (key,) = shared(cluster)
        admin, broker = cluster.brokers["b1"].broker.admin, cluster.brokers["b1"].broker
        naming = len([file for file in files(cluster) if file.key == key])
        await admin.set_topic_policies("bills", {"retention_time_s": 0})
        while len([file for file in files(cluster) if file.key == key]) == naming:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(60)
        await asyncio.sleep(sweep.AGE_S + upkeep.SETTLE_S)  # virtual
        for _ in range(3):
            assert key not in (await admin.sweep_objects())["names"]
        forget_tails(cluster)
        assert await read_all(cluster, MESSAGES, "kept") == list(range(MESSAGES))
        await admin.delete_subscription("orders", "kept")
        await admin.set_topic_policies("orders", {"retention_time_s": 0})
        while any(file.key == key for file in files(cluster)):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(60)
        assert key in shared(cluster)
        assert broker.parts.members.objects.wal.writer.over is None
        assert key not in (await admin.sweep_objects())["names"], "a reader may have been told of it just now"
        assert key in (await admin.sweep_objects(dry_run=True))["names"]
        assert key in (await admin.sweep_objects())["names"]
        assert key not in shared(cluster)

    run(body)


def test_r18_what_may_still_be_named_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A naming whose outcome is not known leaves its object alone until the session has ended."""
    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)
    real, failed = sharing._name, []

    async def name(part: Any, file: Any) -> int:
        if len(failed) < SEGMENTS:
            failed.append(file.key)
            raise UnknownOutcomeError("the metadata store did not say")
        return await real(part, file)

    monkeypatch.setattr(sharing, "_name", name)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        (key,) = set(failed)
        await send(cluster, MESSAGES, MESSAGES)
        await settled(cluster)
        assert key in shared(cluster)
        assert key not in {file.key for file in files(cluster)}, "each was uploaded alone, or with others again"
        await asyncio.sleep(sweep.AGE_S + 2 * upkeep.SETTLE_S)  # virtual
        admin = cluster.brokers["b1"].broker.admin
        for _ in range(3):
            assert key not in (await admin.sweep_objects())["names"]
        await cluster.brokers["b1"].lose_machine()
        await cluster.start("b2")
        assert await read_all(cluster, 2 * MESSAGES, "after") == list(range(2 * MESSAGES))
        admin = cluster.brokers["b2"].broker.admin
        swept: list[str] = []
        for _ in range(4):
            swept += (await admin.sweep_objects())["names"]
        assert key in swept
        assert await read_all(cluster, 2 * MESSAGES, "again") == list(range(2 * MESSAGES))

    run(body)


def test_r18_a_damaged_file_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.errors import CorruptionError
    from engine.storage.file import upload

    real = upload._prepare

    def prepare(disk: Any, file: Any, following: Any) -> Any:
        if "-0/" in file.path or file.path.split("/")[-2].endswith("-0"):
            raise CorruptionError(f"{file.path} is damaged")
        return real(disk, file, following)

    monkeypatch.setattr(upload, "_prepare", prepare)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        while len(files(cluster)) < SEGMENTS - 1:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        assert len(files(cluster)) == SEGMENTS - 1
        assert await read_all(cluster, MESSAGES, "after") == list(range(MESSAGES))

    run(body)
