"""Checks of invariants; costly ones are made where ENGINE_DEBUG=1 is in the environment when the engine is imported."""

from __future__ import annotations

import os

COSTLY = os.environ.get("ENGINE_DEBUG") == "1"


def check(holds: bool, invariant: str) -> None:
    """Raise AssertionError, naming the invariant, where it does not hold. Unlike `assert`, also under `python -O`."""
    if not holds:
        raise AssertionError(f"broken invariant: {invariant}")
