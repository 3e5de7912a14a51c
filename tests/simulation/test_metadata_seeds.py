"""Random lives of a metadata server and its clients. Replay: `pytest tests/simulation -k 'metadata and 30003'`."""

from __future__ import annotations

import pytest

from tests.simulation.metadata_scenario import run

SEEDS = range(30_000, 30_004)
FUZZ_SEEDS = range(31_000, 32_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_metadata_seed(seed: int) -> None:
    run(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_metadata_seed(seed: int) -> None:
    run(seed, 200.0)
