"""What each of several processes has of the server's limits, and how many processes there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.current import CurrentConfig
from engine.broker.settings.machine import usable_cores
from engine.broker.settings.shares import DIVIDED, ProcessSet, share_of
from engine.errors import InvalidArgumentError
from engine.limits import FRAME_SIZE_MAX, MIB

WHOLE = BrokerConfig(
    publish_bytes_max=400 * MIB,
    read_cache_max=100 * MIB,
    reads_in_flight_max=0,
    receive_buffers_max=FRAME_SIZE_MAX,
    topic_list_heap_max=3 * MIB,
    topic_list_direct_max=40 * MIB,
    connections_max=1000,
)


OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
# Not of the server's work: sizes of one thing, rules for topics, and what only an elected broker does.
OF_ONE_THING = {"frame_size_max", "metrics_segments_max", "balance_moves_max"}
LARGE = 4096 * MIB


@pytest.mark.parametrize("name", DIVIDED)
def test_each_limit_of_memory_is_divided(name: str):
    shares = [getattr(share_of(BrokerConfig(**{name: LARGE}), count), name) for count in (1, 2, 4)]
    assert shares == [LARGE, LARGE // 2, LARGE // 4]


def test_a_limit_is_divided_or_is_said_to_hold_for_each_process():
    """A new one is a decision between the two."""
    ends = ("_max", "log_cache_size")
    limits = {f.name for f in dataclasses.fields(BrokerConfig) if f.name.endswith(ends)} - OF_ONE_THING
    section = OPERATIONS.read_text().partition("## Several processes")[2].partition("\n## ")[0]
    divided, _, each = section.partition("* **Limits** of memory")[2].partition("Limits of numbers")
    assert {name for name in limits if f"`{name}`" in divided} == set(DIVIDED)
    each = each.partition("* **Admin.**")[0]
    assert {name for name in limits if f"`{name}`" in each} == limits - set(DIVIDED)
    whole = BrokerConfig()
    assert all(getattr(share_of(whole, 4), name) == getattr(whole, name) for name in limits - set(DIVIDED))


def test_no_limit_stays_no_limit_and_a_process_can_work_with_its_share():
    share = share_of(WHOLE, 4)
    assert share.reads_in_flight_max == 0
    assert share.receive_buffers_max == FRAME_SIZE_MAX
    assert share.topic_list_heap_max == MIB


def test_one_process_has_all():
    assert share_of(WHOLE, 1) is WHOLE


def test_a_limit_that_changes_at_run_time_is_divided():
    current, seen = CurrentConfig(WHOLE, 2), []
    current.follow(lambda config: seen.append(config.publish_bytes_max))
    assert current.value.publish_bytes_max == 200 * MIB
    current.replace(BrokerConfig(publish_bytes_max=100 * MIB))
    assert (current.whole.publish_bytes_max, current.value.publish_bytes_max) == (100 * MIB, 50 * MIB)
    assert seen == [50 * MIB]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 8),
        ({"sys/fs/cgroup/cpu.max": "100000 0"}, 8),
    ],
)
def test_usable_cores(tmp_path: Path, files: dict[str, str], cores: int):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cores(8, tmp_path) == cores


def test_a_process_of_a_set():
    processes = ProcessSet(1, ("engine+unix:///a", "engine+unix:///b"), (6651, 6652))
    assert (processes.count, processes.url) == (2, "engine+unix:///b")
    assert processes.port_of("engine+unix:///a") == 6651
    assert processes.port_of("engine://elsewhere:6650") is None
    assert ProcessSet(0, ("engine+unix:///a",)).port_of("engine+unix:///a") is None
    with pytest.raises(InvalidArgumentError, match="index must be from 0 to 1, got 2"):
        ProcessSet(2, ("a", "b"))
    with pytest.raises(InvalidArgumentError, match="ports must be 2"):
        ProcessSet(0, ("a", "b"), (1,))
