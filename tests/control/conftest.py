"""Background work may not fail silently in control's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A background task that raises is logged as an error: fail the test."""
    yield
    assert [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR] == []
