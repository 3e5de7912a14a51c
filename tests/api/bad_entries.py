"""Topics with bad entries in their logs, as a broker took them that did not look inside."""

from __future__ import annotations

from typing import Any

import pytest

import engine
from engine._native.serve import commits, log
from engine.model.names import TopicName
from tests.reference.hostile_entries import Form

GOOD = 3  # messages before and behind a bad entry


@pytest.fixture
def older_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers here look at headers alone."""

    def entries(data: Any, check_body: bool = True, *said: Any) -> Any:
        return log.entries(data, False, *said)

    monkeypatch.setattr(commits, "claims_of", entries)


async def hosted(opened: Any, topic: str, segment_id: int = 0) -> Any:
    """The open segment."""
    broker = opened.broker
    for name in await broker.hosting.stored(TopicName.parse(topic)):
        if name.segment_id == segment_id:
            found = broker.segments.get(name)
            assert found is not None
            return found
    raise AssertionError(f"{topic} has no segment {segment_id}")


async def send(client: engine.AsyncClient, topic: str, values: list[bytes], **options: Any) -> None:
    """Without keys, in one entry."""
    async with await client.producer(topic, **options) as producer:
        for value in values:
            producer.send_nowait(value)
        await producer.flush()


async def store_bad(opened: Any, topic: str, form: Form, sequence: int = 0) -> tuple[int, int]:
    """The offsets of what was stored, inclusive."""
    segment = (await hosted(opened, topic)).segment
    [place] = await segment.append(form.make(sequence), "producer")
    return place.first_offset, place.first_offset + place.count - 1
