"""The tree itself: nothing of one machine in it, golden files as they were, a change log, limits that agree."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from tests.tidy.source_tree import ROOT, SKIPPED, files, imports, relative

TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
SUMS = Path(__file__).with_name("golden.sha256")

TEXT = {".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".toml", ".json", ".cfg", ".ini", ".yml", ".sh", ".txt", ""}

# Spelled in pieces, so that this file does not find itself.
FOREIGN = [
    re.compile(p)
    for p in (
        r"/(?:home|Users)/[a-z]\w*/",
        "/ro" r"ot/(?!\{)",
        "/wo" r"rk/(?:main|plan|shared|\.lib)",
        "pypi" r"\.org",
        "python" r"hosted\.org",
        "registry\\.npmjs",
        "crates" r"\.io",
        "proxy\\.golang",
        "repo[0-9]*\\.maven",
        "deb\\.debian",
    )
]


def tracked() -> list[Path]:
    """The files of the tree as a clone has them (and those not committed yet)."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:  # an unpacked archive: no git, so everything there counts
        return sorted(p for p in ROOT.rglob("*") if p.is_file() and not SKIPPED.intersection(p.parts))
    return sorted(p for line in listed.stdout.splitlines() if (p := ROOT / line).is_file())


def test_nothing_of_one_machine():
    """Neither paths of somebody's machine nor the hosts of package registries."""
    faults = [
        f"{relative(path)}:{number} says {match.group()!r}"
        for path in tracked()
        if path.suffix in TEXT
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for pattern in FOREIGN
        if (match := pattern.search(line))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_nothing_built_is_in_the_tree():
    built = [relative(p) for p in tracked() if p.suffix in (".so", ".o", ".pyc", ".whl")]
    built += [relative(p) for p in tracked() if p.suffix == ".c" and p.with_suffix(".pyx").exists()]
    assert not built, f"built files are in the tree: {built}"


def test_tests_are_packages():
    """So that two of them may have files of one name, and each names what it takes from another."""
    folders = {path.parent for path in files(".py", under=TESTS)}
    faults = sorted(relative(folder) for folder in folders if not (folder / "__init__.py").is_file())
    assert not faults, f"folders of tests without an __init__.py: {faults}"


def test_the_kit_stands_on_its_own():
    """What tests share takes nothing from those that share it."""
    faults = [
        f"{relative(path)}:{found.line} takes {found.module}"
        for path in files(".py", under=TESTS / "kit")
        for found in imports(path)
        if re.match(r"tests\b(?!\.(?:kit|reference)\b)", found.module)
    ]
    assert not faults, "\n" + "\n".join(faults)


def golden_sums() -> dict[str, str]:
    """Path below tests/golden -> SHA-256, as recorded."""
    pairs = (line.split("  ", 1) for line in SUMS.read_text().splitlines() if line) if SUMS.exists() else ()
    return {name: digest for digest, name in pairs}


def golden_files() -> dict[str, str]:
    """Path below tests/golden -> SHA-256, as found."""
    found = sorted(p for p in GOLDEN.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".md"))
    return {p.relative_to(GOLDEN).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def test_golden_files_are_as_they_were():
    recorded, found = golden_sums(), golden_files()
    changed = [name for name in recorded if found.get(name) != recorded[name]]
    assert not changed, f"golden files pin formats that people have on disk; changed or gone: {changed}"
    new = sorted(found.keys() - recorded.keys())
    assert not new, f"record new golden files with `python -m tests.tidy.test_tree`: {new}"


def test_there_is_a_change_log():
    """Its newest section is that of the version that this tree is, or becomes."""
    release = Version(importlib.metadata.version("engine")).release  # of a clone without tags 0.1 alone
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None, "CHANGELOG.md has no section"
    assert Version(newest[1]).release[: len(release)] == release, f"CHANGELOG.md has no section for {release}"


def test_limits_agree(monkeypatch: pytest.MonkeyPatch):
    """They are checked when the module loads, and the check can fail."""
    limits = importlib.import_module("engine.limits")
    limits.check()
    monkeypatch.setattr(limits, "FRAME_SIZE_MAX", limits.ENTRY_SIZE_MAX)
    with pytest.raises(AssertionError, match="a frame holds the largest entry"):
        limits.check()


def record_new_golden_files() -> int:
    """Add the sums of new golden files. What is recorded is never changed."""
    recorded = golden_sums()
    added = {n: s for n, s in golden_files().items() if n not in recorded}
    lines = [f"{digest}  {name}\n" for name, digest in sorted((recorded | added).items())]
    SUMS.write_text("".join(lines))
    print(f"{len(added)} golden files recorded, {len(recorded)} left as they were")
    return 0


if __name__ == "__main__":
    sys.exit(record_new_golden_files())
