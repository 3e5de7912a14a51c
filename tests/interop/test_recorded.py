"""Scenarios against a broker of ours, beside what Apache Pulsar 5.0.0-M1 did, which is recorded in scenes/traces.json.

Apache Pulsar's client of Python drives them; test_scenarios.py has those of its clients of Java. Where both differ,
scenes/differences.json has what comes here, and docs/pulsar.md has a row that says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.scenes.running import DIFFERENCES, SCENARIOS, expected, recorded, run, run_killed
from tests.interop.scenes.servers import Ours
from tests.interop.scenes.world import ABOUT, Scenario

PAGE = Path(__file__).parents[2] / "docs" / "pulsar.md"
PLAIN = [one for one in SCENARIOS.values() if not one.java and not one.killed]
KILLED = [one for one in SCENARIOS.values() if not one.java and one.killed]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    side = Ours(tmp_path_factory.mktemp("ours"))
    side.start()
    yield side
    side.close()


@pytest.mark.parametrize("one", PLAIN, ids=lambda one: one.name)
def test_a_scenario_leaves_the_trace_of_apache_pulsar(ours: Ours, one: Scenario):
    hoped = expected()[one.name]
    assert run(ours, one, hoped) == hoped


def test_scenarios_that_kill_the_server_leave_the_traces_of_apache_pulsar(ours: Ours):
    hoped = expected()
    found = run_killed(ours, KILLED, hoped)
    assert found == {name: hoped[name] for name in found}


def test_each_scenario_is_recorded_and_each_difference_explained():
    assert recorded().keys() == SCENARIOS.keys()
    differ = json.loads(DIFFERENCES.read_text()).keys()
    _, _, section = PAGE.read_text().partition("## Beside Apache Pulsar")
    named = set(re.findall(r"`(\w+)`", section.partition("\n## ")[0]))
    assert named & SCENARIOS.keys() == differ


def test_there_are_enough_scenarios_and_enough_of_them_are_hard():
    assert len(SCENARIOS) >= 60
    assert sum(bool(one.about) for one in SCENARIOS.values()) >= 30
    for word in ABOUT:
        assert sum(word in one.about for one in SCENARIOS.values()) >= 20, word
