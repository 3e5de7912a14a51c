"""Which version a tree has: that of its tag, of the commits behind it, without tags, and without a history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kit.programs import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with our rules for versions, and one commit."""
    folder = tmp_path / "tree"
    folder.mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "First")
    return folder


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SETUPTOOLS_SCM"))}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **more}


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, env=environment(), capture_output=True, text=True
    )
    return done.stdout.strip()


def version(folder: Path, **more: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "setuptools_scm"]
    done = subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_a_tag_is_the_version_and_a_commit_behind_it_is_on_its_way_to_the_next(tree: Path):
    git(tree, "tag", "v1.2.3")
    assert version(tree) == "1.2.3"
    git(tree, "commit", "-q", "--allow-empty", "-m", "Second")
    assert version(tree) == f"1.2.4.dev1+g{git(tree, 'rev-parse', 'HEAD')[:9]}"


def test_a_shallow_clone_without_tags_says_its_commit(tree: Path, tmp_path: Path):
    git(tree, "tag", "v1.2.3")
    git(tree, "commit", "-q", "--allow-empty", "-m", "Second")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-tags", f"file://{tree}", str(clone))
    assert re.fullmatch(rf"0\.1(\.0)?\.dev1\+g{git(tree, 'rev-parse', 'HEAD')[:7]}\w*", version(clone))


def test_without_a_history_it_is_the_fallback_or_what_it_is_told(tree: Path):
    shutil.rmtree(tree / ".git")
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
    assert version(tree) == rules["fallback_version"]
    assert version(tree, SETUPTOOLS_SCM_PRETEND_VERSION_FOR_ENGINE="3.0.0") == "3.0.0"
    bindings = sorted((ROOT / "bindings").glob("*/pyproject.toml"))
    assert len(bindings) == 2
    for path in bindings:
        binding = tomllib.loads(path.read_text())
        assert binding["project"]["dynamic"] == ["version"]
        assert binding["tool"]["setuptools_scm"] == {"root": "../..", "fallback_version": rules["fallback_version"]}
