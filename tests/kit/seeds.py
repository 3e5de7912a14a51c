"""Seeds of random lives: `make test` lives the first few, and `make fuzz` the others, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def first_of(seeds: Sequence[int], count: int) -> list[Any]:
    """As parameters: those behind the first so many are marked as a long form."""
    return [*seeds[:count], *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in seeds[count:])]
