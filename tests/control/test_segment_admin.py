"""Single segments, asked for by an operator of a leader that does not know the newest layout yet."""

from __future__ import annotations

import pytest

from engine.errors import InvalidArgumentError
from tests.kit.control_fakes import TOPIC, deafen, virtual
from tests.kit.reshape_bench import Bench


@virtual
async def test_what_a_newer_layout_has_is_not_taken_for_a_left_over() -> None:
    bench = Bench("split")
    service = await bench.start()
    deafen(service)
    controller = service.controllers.get(TOPIC)
    assert controller is not None
    old = controller._shape.record
    await bench.change(service)
    child = (await bench.layout()).segments[2]
    controller._shape.record = old
    with pytest.raises(InvalidArgumentError, match="has just been added to the layout"):
        await service.segments.delete(TOPIC.segment(child.hash_range, 2))
    assert not bench.host.deleted
    await service.close()
