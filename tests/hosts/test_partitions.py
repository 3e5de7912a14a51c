"""Three hosts in network namespaces: brokers that are cut off from the stores, from all, from each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.network import Network, missing
from tests.hosts.partitions_program import NAMES
from tests.kit.programs import environment, program

RUN_S_MAX = 600.0
SERVER = "import socket; s = socket.create_server(('{}', 7000)); print('up', flush=True); [s.accept() for _ in 'ab']"
CALLER = "import socket; socket.create_connection(('{}', 7000), {}).close()"
LOST_S = 2  # a call to a host that cannot be reached gets no answer at all


@pytest.fixture
def network() -> Iterator[Network]:
    """Of all hosts; skipped, with the reason, where this machine makes none."""
    if reason := missing():
        pytest.skip(f"left out for want of network namespaces: {reason}")  # counted in the last line of a run
    with Network(NAMES) as made:
        assert made.refused is None
        yield made


def test_hosts_reach_each_other_before_and_after_a_partition_and_not_in_it(network: Network):
    here, there = network.host("b1"), network.host("b2")
    serve = [*there.enter, sys.executable, "-c", SERVER.format(there.address)]
    call = [*here.enter, sys.executable, "-c", CALLER.format(there.address, 60)]
    lost = [*here.enter, sys.executable, "-c", CALLER.format(there.address, LOST_S)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            subprocess.run(call, check=True, timeout=60)
            network.cut_off("b2")
            done = subprocess.run(lost, capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr.endswith("TimeoutError: timed out\n"), "it is reached, or refused"
            network.heal_all("b2")
            subprocess.run(call, check=True, timeout=60)
        finally:
            server.kill()


@pytest.mark.fuzz
@pytest.mark.parametrize("count", [700, 20_000])
def test_partitions_lose_nothing_that_was_acknowledged(network: Network, tmp_path: Path, count: int):
    words = program("tests.hosts.partitions_program", network.mark, tmp_path, count)
    command = [*network.host("clients").enter, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{count} of {count} acknowledged; no violation\n"
