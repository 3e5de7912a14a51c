"""Scenarios against a broker of ours, beside what Apache Pulsar 5.0.0-M1 did, which is recorded in scenes/traces.json.

Apache Pulsar's client of Python drives them. Where both differ, scenes/differences.json has what comes here, and
docs/pulsar.md has a row that says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.scenes.running import SCENARIOS, TRACES, recorded, run
from tests.interop.scenes.servers import Ours
from tests.interop.scenes.world import Scenario, Trace

PAGE = Path(__file__).parents[2] / "docs" / "pulsar.md"
DIFFERENCES = TRACES.with_name("differences.json")
PLAIN = [one for one in SCENARIOS.values() if one.name in recorded() and not one.killed]


def expected() -> dict[str, Trace]:
    """The recorded traces, with the facts that are otherwise here."""
    traces = recorded()
    for name, facts in json.loads(DIFFERENCES.read_text()).items():
        for number, fact in facts.items():
            assert traces[name][int(number)][1] != fact, f"{name}: fact {number} is no difference"
            traces[name][int(number)][1] = fact
    return traces


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


def test_each_difference_is_explained_and_what_is_not_recorded_is_said():
    differ = json.loads(DIFFERENCES.read_text()).keys()
    _, _, section = PAGE.read_text().partition("## Beside Apache Pulsar")
    table, _, rest = section.partition("\n## ")[0].partition("Not recorded yet")
    assert set(re.findall(r"`(\w+)`", table)) & SCENARIOS.keys() == differ
    assert set(re.findall(r"`(\w+)`", rest)) & SCENARIOS.keys() == SCENARIOS.keys() - recorded().keys()


def test_there_are_enough_scenarios_and_enough_of_them_are_hard():
    assert len(PLAIN) >= 60
    assert sum(bool(one.about) for one in PLAIN) >= 30
