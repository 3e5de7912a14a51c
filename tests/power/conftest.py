"""A disk that can lose its power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.ext4_image import Ext4Image, missing


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ext4Image]:
    """A mounted image of so many MiB."""
    if reason := missing():
        pytest.skip(reason)
    try:
        image = Ext4Image(tmp_path, request.param)
    except RuntimeError as e:
        pytest.skip(f"no loop device here: {e}")
    yield image
    image.unmount()
