"""What every run of the tests has in common: the examples that Hypothesis draws, directories, and a server of etcd.

The suite draws the same examples each time and keeps none, so that what passes once passes again. The long forms
(`-m fuzz`) begin with a new seed each time, which the head of the report names.

Directories are in memory, where a sync costs nothing, but for tests that are about files, syncs and crashes.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.kit.optional import closing_line
from tests.kit.schedule import rank_of

if TYPE_CHECKING:
    from tests.kit.etcd import Etcd

settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", derandomize=False, database=None, deadline=None, print_blob=True)


TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN = 2 << 30
ON_DISK = (
    *("aio", "chaos", "cli/test_cli_doctor.py", "crash", "native", "power", "storage"),
    *("broker/test_ack_crashes.py", "broker/test_durability.py", "broker/test_object_durability.py"),
    *("metadata/test_damage.py", "migration/test_migrate_killed.py"),
)
# Of their files only the bytes count, and they write hundreds of them.
IN_MEMORY = ("storage/test_consolidation.py", "storage/test_moved_references.py", "storage/test_segment_damage.py")


def in_memory() -> bool:
    """Whether the machine has a file system in memory with room for directories of tests."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= MEMORY_FREE_MIN


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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that has started this in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs that tests interrupt inherit which it is
    if in_memory() and config.getoption("basetemp") is None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if is_fuzz(config) and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Long forms have tens of thousands of seeds: where they are left out, no worker makes them only to drop them."""
    if "not fuzz" not in str(collector.config.getoption("markexpr")) or not inspect.isfunction(obj):
        return None
    return [] if any(mark.name == "fuzz" for mark in getattr(obj, "pytestmark", ())) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is begun first, so that no worker is alone at the end."""
    items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and what they import all stay: each worker would look for garbage among them for a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """No later collection looks at them either."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """What stays frozen, also by a command that served in this process, is said to be leaked when the process ends."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """That of `make test`."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.kit.schedule import ByUnit

    config.option.loadscopereorder = False  # files with many tests are not those that take long
    return ByUnit(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    """How to draw the same examples again."""
    if is_fuzz(config):
        return f"hypothesis: --hypothesis-seed={config.getoption('--hypothesis-seed')}"
    return "hypothesis: the same examples each time"


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test's own, on a disk where its file is one of ON_DISK. It stays if the test fails."""
    of = str(request.path.relative_to(TESTS))
    if not of.startswith(ON_DISK) or of.startswith(IN_MEMORY) or not tmp_path.is_relative_to(MEMORY):
        yield tmp_path
        return
    failed = request.session.testsfailed
    made = Path(tempfile.mkdtemp(prefix=f"{tmp_path.name}-"))
    yield made
    if request.session.testsfailed == failed:
        shutil.rmtree(made, ignore_errors=True)


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
