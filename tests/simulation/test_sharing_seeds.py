"""Random lives of a group whose members share segments. Replay: `pytest tests/simulation -k 'sharing and 20102'`."""

from __future__ import annotations

import dataclasses

import pytest

from engine.testing.cluster import SimCluster
from tests.simulation.sharing_scenario import KINDS, SharingPlan, config_of, run, shared_deliveries

SEEDS = [*range(20_000, 20_005), 20_102, 20_105, 20_108]  # odd and even: one broker, and three
FUZZ_SEEDS = range(21_000, 24_000)
OBJECT_SEEDS = range(25_000, 25_003)
FUZZ_OBJECT_SEEDS = range(26_000, 27_000)
OBJECTS = SharingPlan(brokers=3, kinds=("lost machine", "lost machine", "troubled store", *KINDS))
CALM = SharingPlan(strikes=0, calm_s=120.0, changes=6, messages=300, life_s=30.0)
LONG = SharingPlan(strikes=8, changes=12, messages=300)


def plan_of(seed: int, plan: SharingPlan) -> SharingPlan:
    """With one broker or three."""
    return dataclasses.replace(plan, brokers=1 if seed % 2 else 3)


def epochs(cluster: SimCluster) -> int:
    """How often the topic changed its shape."""
    return max(e["epoch"] for e in cluster.history.events if e["what"] == "layout")


@pytest.mark.parametrize("seed", SEEDS)
def test_sharing_seed(seed: int, log_file_size) -> None:
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, plan_of(seed, SharingPlan()))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_sharing_seed(seed: int, log_file_size) -> None:
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, plan_of(seed, LONG))


@pytest.mark.parametrize("seed", OBJECT_SEEDS)
def test_sharing_seed_over_an_object_store(seed: int, log_file_size) -> None:
    """Machines are lost with their disks, and the store is troubled."""
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, OBJECTS, objects=True)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_OBJECT_SEEDS)
def test_fuzz_sharing_seed_over_an_object_store(seed: int, log_file_size) -> None:
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, dataclasses.replace(OBJECTS, strikes=8, changes=12, messages=300), objects=True)


@pytest.mark.parametrize("seed", [20_201, 20_202])
def test_in_calm_nothing_is_given_to_two(seed: int) -> None:
    """C4 over a whole life: members join, leave, die and dawdle, the topic changes; nothing else breaks."""
    cluster = run(seed, plan_of(seed, CALM))
    assert len(shared_deliveries(cluster)) > 2, "several members had buckets of their own"
    assert epochs(cluster) > 4


def test_members_that_come_and_go_all_the_time_share_eight_buckets() -> None:
    """One segment that keeps its shape: buckets move with every join and leave."""
    plan = SharingPlan(strikes=0, calm_s=60.0, changes=0, members=(8, 8), messages=300, life_s=4.0, kill_rate=0.5)
    config = dataclasses.replace(config_of(1), segments=1, entry_buckets=8, scalable_topic_auto_scale_enabled=False)
    cluster = run(20_301, plan, config)
    assert sum(shared_deliveries(cluster).values()) > 200
    assert epochs(cluster) == 0


def test_the_same_seed_gives_the_same_run_of_a_group() -> None:
    one, other = (run(20_001, SharingPlan(strikes=1)) for _ in range(2))
    assert one.history.events == other.history.events
