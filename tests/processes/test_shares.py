"""What each of several processes has of the server's limits, and how many processes there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.current import CurrentConfig
from engine.broker.settings.machine import usable_cores
from engine.broker.settings.shares import ProcessSet, share_of
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


def test_memory_is_divided_and_counts_are_not():
    share = share_of(WHOLE, 4)
    assert share.publish_bytes_max == 100 * MIB
    assert share.read_cache_max == 25 * MIB
    assert share.topic_list_direct_max == 10 * MIB
    assert share.connections_max == 1000


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
