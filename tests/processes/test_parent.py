"""What ends a server of several processes besides its signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.errors import StorageError
from engine.processes.parent import Parent, Plan


class Stopped:
    """As much of a Directory as is looked at: its store has stopped."""

    failure = "the metadata store stopped: no space; open it again"

    @property
    def store(self) -> Stopped:
        return self


async def test_a_metadata_store_that_has_stopped_ends_the_server(tmp_path: Path):
    launch: Any = None  # nothing is started
    parent = Parent(Plan(tmp_path, 2, ("127.0.0.1", 0), None), BrokerConfig(), launch)
    directory: Any = Stopped()
    parent._directory = directory
    await parent._watch_store()
    with pytest.raises(StorageError, match="no space"):
        await parent.over


@pytest.mark.parametrize(
    ("listen", "first", "one_port", "ports"),
    [
        (6650, None, False, [6651, 6652, 6653]),
        (0, None, False, [0, 0, 0]),
        (6650, 7000, False, [7000, 7001, 7002]),
        (6650, 0, False, [0, 0, 0]),
        (6650, None, True, []),
    ],
)
def test_ports_of_the_processes(listen: int, first: int | None, one_port: bool, ports: list[int]):
    plan = Plan(Path("data"), 3, ("0.0.0.0", listen), None, first, one_port)
    assert plan.ports == ports
