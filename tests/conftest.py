"""What every run of the tests has in common: the examples that Hypothesis draws, and a server of etcd.

The suite draws the same ones each time and keeps none, so that what passes once passes again. The long forms
(`-m fuzz`) begin with a new seed each time, which the head of the report names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.kit.optional import closing_line

if TYPE_CHECKING:
    from tests.kit.etcd import Etcd

settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", derandomize=False, database=None, deadline=None, print_blob=True)


def is_fuzz(config: pytest.Config) -> bool:
    """Whether the long forms are asked for."""
    expression = str(config.getoption("markexpr"))
    return "fuzz" in expression and "not fuzz" not in expression


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before any test is made, which takes its settings from the profile, and before Hypothesis takes its seed."""
    settings.load_profile("fuzz" if is_fuzz(config) else "suite")
    # The plugin of this package has pytest rewrite the assertions of all its modules, which are loaded when they are
    # used, on any thread: CPython's parser may fail then (its count of the recursion is shared by all threads).
    config.pluginmanager.rewrite_hook._must_rewrite.discard("engine")
    if is_fuzz(config) and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    """How to draw the same examples again."""
    if is_fuzz(config):
        return f"hypothesis: --hypothesis-seed={config.getoption('--hypothesis-seed')}"
    return "hypothesis: the same examples each time"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what OPTIONAL=skip has left out."""
    reasons = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    if line := closing_line(str(one[-1] if isinstance(one, tuple) else one) for one in reasons):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member of etcd, for the whole session of a process; each test has a prefix of its own there."""
    from tests.kit.etcd import Etcd

    server = Etcd(tmp_path_factory.mktemp("etcd"))
    try:
        server.start()
        yield server
    finally:
        server.stop()
