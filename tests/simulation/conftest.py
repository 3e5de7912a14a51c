"""Log files of a few kilobytes, so that a simulated broker rolls them all the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from engine.broker import server


@pytest.fixture
def log_file_size(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Call it with the size at which files roll."""
    configured = server.storage_config

    def small(size: int) -> None:
        monkeypatch.setattr(
            server,
            "storage_config",
            lambda config, **how: dataclasses.replace(configured(config, **how), file_size_max=size),
        )

    return small
