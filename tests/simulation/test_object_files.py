"""Brokers on an object store: rolled files become objects, logs are trimmed, machines go, old data is read, and swept.

Over real frames, on virtual time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.broker.upkeep import closed_segments
from engine.broker.upkeep import objects as upkeep
from engine.errors import StorageError, UnsupportedError
from engine.limits import WAL_FENCES
from engine.metadata import keys
from engine.metadata.store import OutcomeUnknownError
from engine.storage.objects.records import WalRecord
from engine.storage.objects.sweep import Sweep
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate

CONFIG = replace(DEFAULT_CONFIG, balance_enabled=False, segments=1)
MESSAGES = 60


def run(body: Any, seed: int = 1) -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in ("b1", "b2"):
            await cluster.start(name)
        await body(cluster)
        assert not cluster.loop.problems

    simulate(seed, scenario, config=CONFIG, objects=True, time_limit=20_000)


async def send(cluster: SimCluster, first: int, count: int) -> None:
    rng = random.Random(first)
    async with await cluster.client(f"p{first}").producer("orders") as producer:
        for number in range(first, first + count):
            await producer.send(b"%d " % number + rng.randbytes(450).hex().encode(), key="k")
        await producer.flush()


async def read_all(cluster: SimCluster, count: int, name: str) -> list[int]:
    consumer = await cluster.client(name).stream_consumer("orders", name, initial_position="earliest")
    found = [int((await consumer.receive()).value.split()[0]) for _ in range(count)]
    await consumer.close()
    return found


def named(cluster: SimCluster, folder: str) -> list[str]:
    return sorted(name for name in cluster.objects.objects if name.startswith(f"{folder}/simulated/"))


async def settled(cluster: SimCluster) -> None:
    """Until each message is in a named file."""
    while not await _all_named(cluster):  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(1)


async def _all_named(cluster: SimCluster) -> bool:
    open_ones = [h.segment for b in cluster.brokers.values() if b.broker is not None for h in b.broker.segments]
    return bool(open_ones) and all(s.consolidation.named.end_offset == s.durable_offset for s in open_ones)


def test_files_outlive_their_machines_and_old_data_is_read_from_them(log_file_size: Any) -> None:
    log_file_size(8192)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        files = named(cluster, "log")
        assert len(files) >= 6
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        wal = owner.broker.parts.members.objects.wal
        assert wal.writer.acknowledged > 5
        log_record = await owner.metadata.newest.get(keys.wal(wal.session))
        assert b'"trimmed":0' not in log_record.value
        await owner.lose_machine()
        await cluster.start("b3")
        assert await read_all(cluster, MESSAGES, "first") == list(range(MESSAGES))
        await send(cluster, MESSAGES, 10)
        assert await read_all(cluster, MESSAGES + 10, "second") == list(range(MESSAGES + 10))

    run(body)


def test_a_file_whose_naming_had_no_outcome_is_not_deleted_by_a_former_owner(log_file_size: Any) -> None:
    """R14: the answer is lost, another broker takes the segment over meanwhile, and its record names the file."""
    log_file_size(8192)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, 5)
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        other = next(b for b in cluster.brokers.values() if b is not owner)
        (hosted,) = owner.broker.segments
        owner.broker.parts.members.objects.garbage._grace_s = 20.0
        key, real, unheard = keys.segment(hosted.name), owner.metadata.put, asyncio.Event()

        async def put(written: str, value: bytes, *arguments: Any, **options: Any) -> Any:
            stat = await real(written, value, *arguments, **options)
            if written != key or b'"files"' not in value or unheard.is_set():
                return stat
            unheard.set()
            owner.isolate()
            raise OutcomeUnknownError("the answer was lost on its way")

        owner.metadata.put = put  # type: ignore[method-assign]
        await send(cluster, 5, MESSAGES - 5)
        await unheard.wait()
        file = named(cluster, "log")[0]
        await asyncio.sleep(CONFIG.session_timeout + 0.5)
        taking = await cluster.client("next", other).producer("orders")
        await taking.send(b"%d" % MESSAGES, key="k")
        owner.rejoin()  # its read of the record has waited for that
        await taking.close()
        await asyncio.sleep(1)
        assert not list(owner.broker.segments)
        await asyncio.sleep(20 + 2 * upkeep.UPKEEP_S)
        assert file.encode() in (await cluster.metadata.get(key)).value
        assert file in named(cluster, "log"), "what the record names was deleted"
        for broker in cluster.brokers.values():
            await broker.lose_machine()
        await cluster.start("b3")
        assert await read_all(cluster, MESSAGES + 1, "after") == list(range(MESSAGES + 1))

    run(body)


def test_what_an_ended_broker_left_is_swept(log_file_size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log_file_size(8192)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        session = owner.broker.parts.members.objects.wal.session
        await owner.lose_machine()
        other = next(b for b in cluster.brokers.values() if b.broker is not None)
        await send(cluster, MESSAGES, 1)
        await settled(cluster)
        admin = other.broker.admin
        assert await admin.sweep_objects(dry_run=True) == {
            "sessions": 0, "logObjects": 0, "files": 0, "sizeBytes": 0, "names": []
        }  # fmt: skip
        await asyncio.sleep(3_600)  # virtual
        cluster.objects.objects[f"log/simulated/x/{0:020d}-1-{session}-99.log"] = b"orphan"
        before = set(cluster.objects.objects)
        found = await admin.sweep_objects(dry_run=True)
        assert (found["sessions"], found["files"]) == (1, 1)
        assert found["logObjects"] > 0
        assert set(cluster.objects.objects) == before
        swept = await admin.sweep_objects()
        assert swept == found
        assert before - set(cluster.objects.objects) == set(swept["names"])
        assert [n for n in named(cluster, "wal") if session in n]  # its FENCEs stay
        assert await read_all(cluster, MESSAGES + 1, "after") == list(range(MESSAGES + 1))

    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)
    run(body)


def test_r16_sessions_of_brokers_that_are_gone_are_fenced_and_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that no segment refers to, which no takeover ever fences; those of live brokers stay."""

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, 5)
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        other = next(b for b in cluster.brokers.values() if b is not owner)
        idle = other.broker.parts.members.objects.wal.session
        await other.lose_machine()
        await asyncio.sleep(3_600)  # virtual
        admin = owner.broker.admin
        await admin.sweep_objects()
        assert await fenced(cluster, idle) is None, "its broker may have been about to register"
        await admin.sweep_objects(dry_run=True)
        assert await fenced(cluster, idle) is None
        await admin.sweep_objects()
        assert await fenced(cluster, idle) == "gone"  # it had no object but FENCEs
        assert len([name for name in named(cluster, "wal") if idle in name]) == WAL_FENCES
        await other.start()
        mine = other.broker.parts.members.objects.wal.session
        await other.kill()
        await other.start()  # the same URL, another session
        await other.broker.admin.sweep_objects()
        assert await fenced(cluster, mine) in (0, "gone")
        for broker in cluster.brokers.values():
            assert await fenced(cluster, broker.broker.parts.members.objects.wal.session) is None
        await owner.lose_machine()
        assert await read_all(cluster, 5, "after") == list(range(5))

    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)
    run(body)


async def fenced(cluster: SimCluster, session: str) -> int | str | None:
    """The end of a session; "gone" where its record is."""
    found = await cluster.metadata.newest.get(keys.wal(session))
    return "gone" if found is None else msgspec.json.decode(found.value, type=WalRecord).fenced


def test_files_of_a_session_whose_record_is_gone_are_swept(log_file_size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """R16: what is named stays."""
    log_file_size(8192)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        session = owner.broker.parts.members.objects.wal.session
        await owner.lose_machine()
        other = next(b for b in cluster.brokers.values() if b.broker is not None)
        await send(cluster, MESSAGES, 1)
        await settled(cluster)
        for _ in range(2):
            await asyncio.sleep(3_600)  # virtual
            await other.broker.admin.sweep_objects()
        assert await fenced(cluster, session) == "gone"
        orphan = f"log/simulated/x/{0:020d}-1-{session}-99.log"
        cluster.objects.objects[orphan] = b"a PUT that arrived late"
        assert (await other.broker.admin.sweep_objects())["names"] == [orphan]
        assert await read_all(cluster, MESSAGES + 1, "after") == list(range(MESSAGES + 1))

    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)
    run(body)


def test_one_sweep_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    real = Sweep.run

    async def slow(self: Sweep, *, dry_run: bool = False) -> Any:
        begun.set()
        await goes_on.wait()
        return await real(self, dry_run=dry_run)

    monkeypatch.setattr(Sweep, "run", slow)

    async def body(cluster: SimCluster) -> None:
        first, second = (cluster.brokers[name].broker.admin for name in ("b1", "b2"))
        sweeping = asyncio.create_task(first.sweep_objects())
        await begun.wait()
        with pytest.raises(StorageError, match="another sweep of the object store is under way"):
            await second.sweep_objects()
        goes_on.set()
        await sweeping
        await second.sweep_objects()

    run(body)


def test_a_broker_without_an_object_store_sweeps_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        broker = await cluster.start("b1")
        with pytest.raises(UnsupportedError, match="--objects URL"):
            await broker.broker.admin.sweep_objects()

    simulate(1, scenario, config=CONFIG)


def test_what_no_broker_has_open_is_measured_and_deleted_in_time(
    log_file_size: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker that placement names, when the machine of the owner is gone, and no client asks for the topic."""
    log_file_size(8192)
    monkeypatch.setattr(closed_segments, "RETENTION_RETRY_S", 600)

    async def body(cluster: SimCluster) -> None:
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        owner = next(b for b in cluster.brokers.values() if list(b.broker.segments))
        await owner.broker.admin.create_subscription("orders", "late", initial_position="earliest")
        await owner.broker.admin.set_topic_policies("orders", {"retention_time_s": 3_600})
        (hosted,) = owner.broker.segments
        name, size = hosted.name, hosted.segment.size_bytes
        other = next(b for b in cluster.brokers.values() if b is not owner)
        await owner.lose_machine()
        while (record := other.broker.segments.inventory.get(name)) is None:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)
        assert other.broker.segments.peek(name) is None, "nothing was opened for it"
        assert (record.messages, dict(record.backlogs)) == (MESSAGES, {"late": MESSAGES})
        assert 0.9 * size < record.size_bytes <= size
        assert record.files >= 6
        await other.broker.admin.delete_subscription("orders", "late")
        while named(cluster, "log"):
            await asyncio.sleep(60)
            assert cluster.loop.time() < 15_000
        assert other.broker.segments.inventory.get(name).messages == 0

    run(body)
