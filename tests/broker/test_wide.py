"""Topics of very many segments: what is done once per segment does not grow with the topic."""

from __future__ import annotations

import pytest

import engine
from engine.model.layout import SegmentLayout

SEGMENTS = 96


@pytest.fixture
def parses(monkeypatch) -> list[int]:
    """As many as layouts were read from their JSON."""
    seen: list[int] = []
    real = SegmentLayout._read.__func__
    monkeypatch.setattr(SegmentLayout, "_read", classmethod(lambda cls, value: seen.append(1) or real(cls, value)))
    return seen


async def test_a_wide_topic_is_opened_and_read_without_a_look_at_all_of_it_per_segment(tmp_path, parses):
    async with engine.open_async(tmp_path / "data", shared=False) as e:
        await e.admin.create_topic("wide", segments=SEGMENTS, durability="os")
        async with await e.producer("wide") as p:
            for number in range(SEGMENTS * 8):
                p.send_nowait(b"x", key=str(number))
            await p.flush()
        assert len(e.broker.segments) > SEGMENTS / 2
        stream = await e.stream_consumer("wide", "s", initial_position="earliest")
        queue = await e.queue_consumer("wide", "q", initial_position="earliest")
        lone = await e.checkpoint_consumer("wide", start=engine.Checkpoint.earliest())
        for consumer in (stream, queue, lone):
            await consumer.receive(timeout=10)
            await consumer.close()
        assert (await e.admin.get_stats("wide"))["segmentCount"] == SEGMENTS
        await e.broker.parts.retention.sweep()
        assert len(e.broker.segments) == SEGMENTS
        assert len(parses) < 8, len(parses)


def test_a_layout_that_was_read_before_is_the_same_and_another_is_not():
    wide = SegmentLayout.create(SEGMENTS, now_ms=1)
    value = wide.to_json()
    assert SegmentLayout.from_json(value) is SegmentLayout.from_json(bytes(bytearray(value)))
    other = SegmentLayout.create(SEGMENTS, now_ms=2).to_json()
    assert SegmentLayout.from_json(other).created_at_ms == 2
