"""The tests that run with sanitizers (`make debug`) reach every native module."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.source_tree import ENGINE, NATIVE, ROOT, files, module_name, relative

_IMPORT = re.compile(
    r"^\s*(?:from\s+(engine[\w.]*)\s+c?import\s+(?:\(([^)]*)\)|([^\n(]*))|c?import\s+(engine[\w.]*))", re.MULTILINE
)
TESTS = ROOT / "tests"


def ignored() -> set[str]:
    """The folders that `make debug` leaves out."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "PYTHONPATH=$(DEBUG)/lib" in line)
    return set(re.findall(r"--ignore=(\S+)", line))


def named_by(path: Path) -> set[str]:
    """Modules of the engine that a file names in its imports, and cimports."""
    found = set()
    for module, several, one, alone in _IMPORT.findall(path.read_text()):
        found.add(module or alone)
        found |= {f"{module}.{name.strip()}" for name in f"{several},{one}".split(",") if module}
    return found


def reached(tests: list[Path]) -> set[str]:
    """Native modules that a test names, or that are named by a module that a test names."""
    sources = {module_name(path): path for path in files(".py", under=ENGINE)}
    native = {module_name(path): path for path in files(".pyx", under=NATIVE)}
    direct = set[str]().union(*map(named_by, tests))
    found = direct & native.keys()
    for name in direct & (sources.keys() | native.keys()):
        path = sources.get(name) or native[name]
        for one in (path, path.with_suffix(".pxd")):
            if one.exists():
                found |= named_by(one) & native.keys()
    return found


def test_every_native_module_is_reached_with_sanitizers():
    left_out = ignored()
    assert left_out, "the folders that are left out are named in the Makefile"
    tests = [path for path in files(".py", under=TESTS) if not any(relative(path).startswith(one) for one in left_out)]
    missing = {module_name(path) for path in files(".pyx", under=NATIVE)} - reached(tests)
    assert not missing, f"no test that `make debug` runs is near {sorted(missing)}"


def test_what_no_test_names_is_missed():
    assert reached([]) == set()
    assert "engine._native.serve.undecided" not in reached([TESTS / "native" / "test_hashing.py"])
    assert "engine._native.produce.hashing" in reached([TESTS / "native" / "test_hashing.py"])
