"""A data directory that is opened with the metadata of another, or with none."""

from __future__ import annotations

import asyncio

from peer import Peer, make_entries

from engine.broker.orphans import Orphans
from engine.broker.server import METADATA_FILE
from engine.model.names import TopicName


async def look(broker, disk, caplog) -> int:
    """Look for orphans until one is found that may be something else; the broker itself may be at it right now."""
    deleted = 0
    async with asyncio.timeout(20):
        while "are they the right ones?" not in caplog.text:
            deleted += await Orphans(broker.service, broker.hosting).look(disk)
            await asyncio.sleep(0)
    return deleted


async def test_d1_without_its_metadata_a_data_directory_keeps_its_messages(start_broker, tmp_path, caplog):
    """Somebody mislaid the file; once it is found, everything is there again."""
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        producer = await peer.producer(await peer.segment("orders"))
        peer.publish(producer, make_entries([b"1", b"2"]))
        await peer.receipts(producer, 2)
        disk = await broker.hosting.on_disk()
    metadata = tmp_path / "data" / METADATA_FILE
    metadata.rename(tmp_path / "mislaid")
    async with start_broker() as broker:
        await (await Peer.connect(broker)).segment("another")  # life goes on
        assert await look(broker, disk, caplog) == 0
        assert disk.items() <= (await broker.hosting.on_disk()).items()
    (tmp_path / "mislaid").rename(metadata)
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        reader = await peer.consumer(await peer.segment("orders"), "reader", None)
        assert len(await peer.messages(reader, 2)) == 2


async def test_d1_metadata_that_are_older_than_the_data_take_nothing_away(start_broker, tmp_path, caplog):
    """They were put back from a copy that was made before the topic was split."""
    data = tmp_path / "data"
    async with start_broker() as broker:
        await (await Peer.connect(broker)).segment("orders")
    (tmp_path / "copy").write_bytes((data / METADATA_FILE).read_bytes())
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        await broker.service.split_segment("orders", 0)
        (child, _) = broker.service._controllers.get(TopicName.parse("orders")).layout.active
        producer = await peer.producer(str(TopicName.parse("orders").segment(child.hash_range, child.segment_id)))
        peer.publish(producer, make_entries([b"1"]))
        await peer.receipts(producer, 1)
        disk = await broker.hosting.on_disk()
    (data / METADATA_FILE).write_bytes((tmp_path / "copy").read_bytes())
    async with start_broker() as broker:
        await look(broker, disk, caplog)
        left = [n.segment_id for n in (await broker.hosting.on_disk())[TopicName.parse("orders")]]
        assert child.segment_id in left
