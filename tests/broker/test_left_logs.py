"""Closed segments that keep logs: which of them a broker has opened, sweep by sweep."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.broker.hosting.ownership import Owner
from engine.broker.upkeep import left_logs
from engine.broker.upkeep.left_logs import LeftLogs
from engine.control.base.brokers import Brokers
from engine.control.base.ports import SegmentSpec
from engine.errors import StorageError
from engine.metadata import keys
from engine.metadata.store import Record, Stat
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.storage.objects.references import Reference, SegmentObjects

NOTED = 3
SEGMENTS = 11
TOPIC = TopicName.parse("orders")
GONE = SegmentObjects(wal=(Reference("gone", 0, None, 1),))


def record_of(segment: int) -> Record:
    """Of a closed segment that refers to the log of a session without a record."""
    key = keys.segment(SegmentName(TOPIC, HashRange(0, 0xFFFF), segment))
    return Record(key, Owner(None, None, 1, heir="engine://b1:1", objects=GONE).to_json(), Stat(1, 0, 0))


@pytest.mark.parametrize("failing", [0, NOTED, SEGMENTS - 1])
async def test_segments_that_always_fail_keep_no_others_waiting(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_logs, "NOTED_MAX", NOTED)
    opened: set[int] = set()

    async def spec(topic: TopicName, segment: int) -> SegmentSpec:
        assert topic == TOPIC
        return cast("SegmentSpec", segment)

    async def ask(segment: Any) -> None:
        if segment < failing:
            raise StorageError("it cannot be opened")
        opened.add(segment)

    logs = LeftLogs(cast("Brokers", None), spec, ask)
    records = sorted((record_of(segment) for segment in range(SEGMENTS)), key=lambda record: record.key)
    for _ in range(-(-SEGMENTS // NOTED)):
        logs.sweep_begins()
        for record in records:
            if int(record.key.rpartition("/")[2]) not in opened:
                logs.note(record, GONE, {})
        await logs.round()
    assert opened == set(range(failing, SEGMENTS))
