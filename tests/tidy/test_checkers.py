"""Types and lint, as tests: mypy --strict over src, ruff over everything."""

from __future__ import annotations

import subprocess
import sys

from source_tree import ROOT


def run(*arguments: str) -> str:
    """What a checker found; empty when it is content."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr if done.returncode else ""


def test_types():
    assert not (found := run("mypy", "--no-error-summary")), "\n" + found


def test_lint():
    places = [p for p in ("src", "tests", "benchmarks", "setup.py") if (ROOT / p).exists()]
    assert not (found := run("ruff", "check", "--no-cache", "--output-format=concise", *places)), "\n" + found
