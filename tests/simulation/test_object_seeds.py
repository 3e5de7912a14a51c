"""Random lives of three brokers on an object store: machines die with their disks, and the store is troubled.

A failing seed replays: `pytest tests/simulation -k 'object and 171'`.
"""

from __future__ import annotations

import pytest

from engine.broker.upkeep import objects as upkeep
from engine.testing.cluster import SimCluster, simulate
from tests.kit.seeds import first_of
from tests.simulation.broker_faults import OBJECT_FAULTS
from tests.simulation.broker_scenario import BrokerPlan, BrokerScenario
from tests.simulation.test_broker_seeds import brokers_config

SEEDS = first_of(range(20_000, 20_006), 4)
SHORT_SEEDS = first_of(range(20_100, 20_124), 12)
SHORT = BrokerPlan(kinds=OBJECT_FAULTS, messages=40, length_s=10, changes=2, seconds=(0.1, 7.0))
FUZZ_SEEDS = range(21_000, 24_000)


@pytest.fixture(autouse=True)
def references_move_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """R19, also in a life of a minute."""
    monkeypatch.setattr(upkeep, "BEHIND_MAX", 4)
    monkeypatch.setattr(upkeep, "CLOSED_BEHIND_MAX", 20)


def run(seed: int, plan: BrokerPlan | None = None) -> SimCluster:
    """One life."""
    scenario = BrokerScenario(plan or BrokerPlan(kinds=OBJECT_FAULTS, changes=6))
    return simulate(seed, scenario, config=brokers_config(seed), objects=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_object_seed(seed: int, log_file_size) -> None:
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed)


@pytest.mark.parametrize("seed", SHORT_SEEDS)
def test_short_object_seed(seed: int, log_file_size) -> None:
    """Two or three faults each."""
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, SHORT)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_object_seed(seed: int, log_file_size) -> None:
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, BrokerPlan(kinds=OBJECT_FAULTS, messages=160, length_s=90, changes=15, together=0.3))
