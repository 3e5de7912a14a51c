"""Random lives of a topic that changes its shape under faults. Replay: `pytest tests/simulation -k reshape_seed`."""

from __future__ import annotations

import dataclasses

import pytest

from engine.testing.cluster import simulate
from tests.kit.seeds import first_of
from tests.simulation.scenario import Plan, Scenario
from tests.simulation.test_seeds import config_for

SEEDS = first_of(range(5_000, 5_024), 12)
FUZZ_SEEDS = range(6_000, 9_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_reshape_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    simulate(seed, Scenario(Plan(changes=12)), config=config_for(seed))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_reshape_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    simulate(seed, Scenario(Plan(messages=200, faults=10, changes=30)), config=config_for(seed))


def test_without_faults_every_change_is_made():
    config = dataclasses.replace(config_for(0), scalable_topic_auto_scale_enabled=False)  # it would make some more
    cluster = simulate(3, Scenario(Plan(kinds=("nothing",), changes=20, final_power_cut=False)), config=config)
    failed = [e for e in cluster.history.events if e["client"] == "shaper" and e.get("text", "").startswith("no ")]
    assert failed == []
    assert max(e["epoch"] for e in cluster.history.events if e["what"] == "layout") == 20
