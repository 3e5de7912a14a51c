"""A data directory that is opened with the metadata of another, with older ones, or with none."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from engine.broker.opening import METADATA_FILE
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.orphans import Orphans
from engine.broker.upkeep.unexplained import explains, find_unexplained
from engine.clock import SystemClock
from engine.errors import CorruptionError
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.reshape import commit, plan_split, reserve
from tests.kit.peer import Peer, make_entries

ORDERS = TopicName.parse("orders")
METADATA = [METADATA_FILE, "metadata.mark"]


def files_of(data: Path) -> dict[str, bytes]:
    """Every file below the directory; locks mean nothing."""
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


async def send(broker: Broker, name: str, values: list[bytes]) -> None:
    """Messages to one segment, acknowledged."""
    peer = await Peer.connect(broker)
    producer = await peer.producer(name)
    peer.publish(producer, make_entries(values))
    await peer.receipts(producer, len(values))


async def use(broker: Broker) -> None:
    """A topic with messages."""
    await send(broker, await (await Peer.connect(broker)).segment("orders"), [b"1", b"2"])


def move(names: list[str], source: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for name in names:
        shutil.move(source / name, to / name)


@pytest.mark.parametrize("lost", [METADATA, [METADATA_FILE], ["metadata.mark"]], ids=" ".join)
async def test_d4_without_its_metadata_a_data_directory_is_refused(start_broker, tmp_path, lost) -> None:
    """Somebody mislaid the files; once they are found, everything is there again."""
    data = tmp_path / "data"
    async with start_broker() as broker:
        await use(broker)
    move(lost, data, tmp_path / "mislaid")
    found = files_of(data)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="`engine inspect --repair"):
            async with start_broker():
                pass
        assert files_of(data) == found
    move(lost, tmp_path / "mislaid", data)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        reader = await peer.consumer(await peer.segment("orders"), "reader", None)
        assert len(await peer.messages(reader, 2)) == 2


async def test_d4_an_empty_directory_is_no_data_directory(start_broker) -> None:
    """It has none that could be lost, and neither has one whose segments hold nothing."""
    async with start_broker() as broker:
        await (await Peer.connect(broker)).segment("orders")
    async with start_broker() as broker:
        assert (
            await find_unexplained(broker.store, MemoryMetadataStore(SystemClock()), await broker.store.everything())
            == []
        )


async def test_d4_metadata_that_are_older_than_the_data_are_refused(start_broker, tmp_path) -> None:
    """All of them were put back from a copy that was made before the topic was split."""
    data = tmp_path / "data"
    async with start_broker() as broker:
        await use(broker)
    copy = {name: (data / name).read_bytes() for name in METADATA}
    async with start_broker() as broker:
        await broker.service.split_segment("orders", 0)
        (child, _) = broker.service.controllers.get(ORDERS).layout.active
        await send(
            broker, str(ORDERS.segment(child.hash_range, child.segment_id)), [b"%d" % n for n in range(4)]
        )  # the parent knows two
    for name, content in copy.items():
        (data / name).write_bytes(content)
    found = files_of(data)
    with pytest.raises(CorruptionError, match=rf"segment://public/default/orders/0000-7fff-{child.segment_id}"):
        async with start_broker():
            pass
    assert {k: v for k, v in files_of(data).items() if k.startswith("segments")} == {
        k: v for k, v in found.items() if k.startswith("segments")
    }


async def test_d4_what_was_deleted_and_what_is_pending_is_explained(start_broker) -> None:
    async with start_broker() as broker:
        await use(broker)
        await send(broker, await (await Peer.connect(broker)).segment("gone"), [b"1"])
        await broker.service.delete_topic("gone")
    async with start_broker() as broker:
        assert await find_unexplained(broker.store, broker.metadata, await broker.store.everything()) == []
        assert [
            str(n)
            for n in await find_unexplained(
                broker.store, MemoryMetadataStore(SystemClock()), await broker.store.everything()
            )
        ] == ["segment://public/default/orders/0000-ffff-0"]


async def test_d1_brokers_that_share_their_metadata_log_and_delete_nothing(tmp_path, caplog) -> None:
    """One that was stopped in the middle may have left it; another set of metadata too."""
    clock = SystemClock()

    async def started(metadata: MemoryMetadataStore) -> Broker:
        config = BrokerConfig(service_url="engine://127.0.0.1:1")
        broker = Broker(tmp_path / "data", config=config, metadata=metadata)
        await broker.start()
        return broker

    broker = await started(MemoryMetadataStore(clock))
    await use(broker)
    disk = await broker.segments.on_disk()
    await broker.close()
    with caplog.at_level(logging.ERROR):
        broker = await started(MemoryMetadataStore(clock))
    assert "orders/0000-ffff-0" in caplog.text
    async with asyncio.timeout(60):
        while "is it the correct metadata store?" not in caplog.text:
            assert await Orphans(broker.service, broker.segments).sweep(disk) == 0
            await asyncio.sleep(0)
    assert disk.items() <= (await broker.segments.on_disk()).items()
    await broker.close()


def test_what_a_record_explains() -> None:
    layout = SegmentLayout.create(1, now_ms=1)
    whole, lower = HashRange(0, 0xFFFF), HashRange(0, 0x7FFF)
    assert not explains(None, ORDERS.segment(whole, 0))
    assert explains(layout, ORDERS.segment(whole, 0))
    assert not explains(layout, ORDERS.segment(lower, 0))
    assert not explains(layout, ORDERS.segment(lower, 1))
    split = plan_split(layout, 0)
    reserved = reserve(layout, split, "children")
    assert explains(reserved, ORDERS.segment(lower, 1))  # pending, or undone
    done = commit(reserved, split, 2)
    assert explains(done, ORDERS.segment(lower, 1))
    assert explains(done, ORDERS.segment(whole, 0))
    assert not explains(done, ORDERS.segment(lower, 3))
