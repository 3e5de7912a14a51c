"""What lies where it should not, is not where it should be, or does not answer, stops nothing else."""

from __future__ import annotations

import asyncio
import logging
import shutil

import pytest

import engine
import engine.broker.hosting.leader_terms
import engine.broker.hosting.open_segments
from engine.broker.hosting.leader_terms import LeaderTerms
from engine.broker.upkeep.sealed_segments import Rule
from engine.errors import CorruptionError, FencedError, InvalidArgumentError
from engine.metadata import keys
from engine.model.names import TopicName

ORDERS = TopicName.parse("orders")


async def test_the_data_directory_must_be_a_directory_that_can_be_made(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below", "/proc/x"):
        with pytest.raises(InvalidArgumentError, match="must be a writable path") as caught:
            await engine.open_async(path)
        assert not caught.value.retryable


async def test_stray_names_in_a_topics_directory_stop_no_retention(start_broker, tmp_path):
    async with start_broker() as broker:
        await broker.admin.create_topic("orders")
        await broker.admin.split_segment("orders", 0)
        place = tmp_path / "data/segments/public/default/orders"
        (place / "lost+found").mkdir()
        (place / "notes.txt").write_text("mine")
        assert [n.segment_id for n in await broker.hosting.stored(ORDERS)] == [0, 1, 2]
        assert await broker.segments.find_aging([ORDERS]) == []
        assert await broker.parts.retention.sweep() >= 0


async def test_whatever_goes_wrong_in_one_look_of_retention_the_next_one_comes(start_broker, monkeypatch, caplog):
    async with start_broker(retention_interval=0.01) as broker:
        sweeps = []
        seen = asyncio.Event()

        async def sweep() -> int:
            sweeps.append(1)
            if len(sweeps) > 2:
                seen.set()
            raise ValueError("a bug")

        monkeypatch.setattr(broker.parts.retention, "sweep", sweep)
        await asyncio.wait_for(seen.wait(), 10)
    failures = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert failures
    assert all("a bug" in str(r.exc_info[1]) for r in failures)
    caplog.clear()


async def test_a_sealed_segment_is_not_gone_when_nothing_of_its_topic_is_there(start_broker, tmp_path):
    """The disk may not be mounted: who counts it as drained throws messages away."""
    async with start_broker() as broker:
        await broker.admin.create_topic("orders")
        await broker.admin.create_subscription("orders", "s", initial_position="earliest")
        await broker.admin.split_segment("orders", 0)
    place = tmp_path / "data/segments/public/default/orders"
    shutil.move(place, tmp_path / "elsewhere")
    async with start_broker() as broker:
        spec = await broker.service.segment_spec("orders", 0)
        with pytest.raises(CorruptionError, match="mounted"):
            await broker.hosting.backlog(spec, "s")
        with pytest.raises(CorruptionError, match="mounted"):
            await broker.parts.retention._sealed.collect(
                ORDERS, Rule(0, 0, None, tuple(await broker.service.list_subscriptions("orders")))
            )
        assert 0 in (await broker.service.ensure_topic("orders")).layout.segments


async def test_a_metadata_store_that_hangs_does_not_keep_segments_from_closing(start_broker, monkeypatch):
    monkeypatch.setattr(engine.broker.hosting.open_segments, "CLOSE_S_MAX", 0.05)
    async with start_broker() as broker:
        await broker.admin.create_topic("orders")

        async def never() -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(broker.segments, "_close_cursors", never)
        await asyncio.wait_for(broker.hosting.close(), 10)
        assert not len(broker.segments)


async def test_terms_of_leaders_are_remembered_for_so_many_topics(broker, monkeypatch):
    monkeypatch.setattr(engine.broker.hosting.leader_terms, "_TOPICS_MAX", 3)
    terms = LeaderTerms(broker.metadata)
    for number in range(5):
        topic = TopicName.parse(f"t{number}")
        stat = await broker.metadata.put(keys.controller(topic), b"x")
        await terms.confirm(topic, stat.version)
    assert len(terms._seen) == 3
    with pytest.raises(FencedError):
        await terms.confirm(TopicName.parse("t0"), 0)
    with pytest.raises(FencedError):
        terms.check(TopicName.parse("t4"), 0)
