"""Types, lint and formatting, as tests: mypy --strict over src, ruff over everything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.timeout(600)  # mypy, when it has no cache yet, on a loaded machine


def run(*arguments: str) -> str:
    """What a checker found; empty when it is content."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr if done.returncode else ""


def test_types():
    assert not (found := run("mypy", "--no-error-summary")), "\n" + found


def test_types_of_the_faststream_broker():
    options = ("--strict", "--no-error-summary", "-p", "faststream_engine")
    assert not (found := run("mypy", *options)), "\n" + found


PLACES = [p for p in ("src", "tests", "bindings/faststream", "benchmarks", "tools", "setup.py") if (ROOT / p).exists()]


def test_lint():
    assert not (found := run("ruff", "check", "--no-cache", "--output-format=concise", *PLACES)), "\n" + found


def test_formatting():
    """As if one careful person had written it: `ruff format` finds nothing to do."""
    assert not (found := run("ruff", "format", "--check", "--quiet", "--no-cache", *PLACES)), "\n" + found
