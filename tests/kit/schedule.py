"""How the workers of one run share its tests: a file at a time, and first those that take long.

The tests of a file stay together, so that what they share is made once. So do those of a unit of SHARED: a Java machine
with Spark, and wheels and environments for each Python, are made once, and whoever begins them late ends last. What
mypy has found of the package is kept for the programs of pages.

A test that takes its worker with it, as foreign native code can, is failed; the rest of its unit goes on elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import LoadFileScheduling

# Which tests, by their names, are one unit although they are in several files.
SHARED = {
    "firstuse": re.compile(r"^tests/firstuse/"),
    "types": re.compile(r"^tests/tidy/test_(checkers|typed_pages)\."),
    "spark": re.compile(r"^tests/spark/(?!test_spark_(kills|places))|\[bench_spark\.|\[docs/spark\.md"),
}
FIRST = (
    *("firstuse", "spark", "tests/spark/", "tests/simulation/", "tests/crash/", "tests/cli/", "types", "tests/tidy/"),
    *("tests/chaos/", "tests/migration/", "tests/console/", "tests/storage/", "tests/api/"),
)


def unit_of(name: str) -> str:
    """The unit of a test: one worker runs it as a whole."""
    return next((unit for unit, names in SHARED.items() if names.search(name)), name.split("::", 1)[0])


def rank_of(name: str) -> int:
    """The place of a test's unit among all; those of one rank stay in their order."""
    unit = unit_of(name)
    return next((rank for rank, start in enumerate(FIRST) if unit.startswith(start)), len(FIRST))


class ByUnit(LoadFileScheduling):
    """A scheduler of pytest-xdist: each worker is given the next unit when it comes to the end of one."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """The test that a worker which is lost was in. That of the base class would be begun again, by each worker."""
        units = self.assigned_work.pop(node)
        lost = next((name for unit in units.values() for name, done in unit.items() if not done), None)
        if lost is None:
            return None
        for name, unit in units.items():
            left = {test: done for test, done in unit.items() if not done and test != lost}
            if left:
                self.workqueue[name] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return lost

    def schedule(self) -> None:
        """Again for the worker in place of a lost one: it begins its last test when it is told that no other comes."""
        again = self.collection is not None
        super().schedule()
        if again:
            super().schedule()
