"""What the log says of changes: one line each."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.errors import StorageError
from tests.kit.control_fakes import virtual
from tests.kit.reshape_bench import Bench


@virtual
async def test_a_change_that_is_made_undone_or_resumed_and_a_deletion_leave_a_line_each(caplog) -> None:
    caplog.set_level(logging.INFO, "engine.control")
    topic = "topic://public/default/orders"
    bench = Bench("split")
    service = await bench.start()
    before = await bench.layout()
    await service.split_segment("orders", 0)
    bench.host.failures["create_segment"] = StorageError("no room")
    with pytest.raises(StorageError):
        await service.split_segment("orders", before.next_segment_id)
    bench.host.failures = {"terminate_segment": StorageError("no answer")}
    with pytest.raises(StorageError):
        await service.rebucket_segment("orders", 1, 7)
    bench.host.failures = {}
    await asyncio.sleep(60)
    await service.delete_topic("orders")
    lines = [r.getMessage().partition(" in ")[0] for r in caplog.records if r.levelno == logging.INFO]
    first = before.next_segment_id
    assert lines == [
        f"{topic}: the split of 0 into {first} and {first + 1} was done",
        f"{topic}: the split of {first} into {first + 2} and {first + 3} was undone",
        f"{topic}: the rebucket of 1 into {first + 4} that was pending was done",
        f"{topic}: deleted, with {len(before.segments) + 3} segments,",
    ]
    await service.close()
