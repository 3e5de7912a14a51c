"""A source distribution has what a wheel, the tests and the pages are made of, and nothing that was built."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from tests.firstuse.wheels import variables
from tests.kit.programs import ROOT

FOLDERS = ("src/engine", "bindings", "docs", "tests", "tools", "benchmarks")
ALONE = ("pyproject.toml", "setup.py", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml")
BUILT = (".so", ".pyc")
NOT_OURS = ("__pycache__", ".egg-info", ".hypothesis")


def made(folder: Path) -> set[str]:
    """The names in an archive that is made now, without its own folder."""
    command = ("-q", "egg_info", "--egg-base", str(folder), "sdist", "-d", str(folder))
    subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", *command], cwd=ROOT, check=True, env=variables(ENGINE_EXT="none")
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def wanted() -> set[str]:
    """Every file of ours below FOLDERS, but what compilers wrote."""
    found = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    kept = (
        path
        for path in found
        if path.suffix not in BUILT
        and not any(part in str(path) for part in NOT_OURS)
        and not (path.suffix in (".c", ".html") and "_native" in path.parts)
    )
    return {path.relative_to(ROOT).as_posix() for path in kept} | set(ALONE)


def test_it_is_whole_and_has_nothing_that_was_built(tmp_path: Path):
    names = made(tmp_path)
    assert not wanted() - names
    assert "PKG-INFO" in names
    assert {"docs/grafana/engine.json", "docs/deploy/Dockerfile", "docs/tutorial.md"} <= names  # the dashboard, pages
    assert any(name.startswith("src/engine/console/assets/") for name in names)
    assert any(name.startswith("src/engine/console/templates/") for name in names)
    assert not [name for name in names if name.endswith(BUILT) or ("_native" in name and name.endswith(".c"))]
