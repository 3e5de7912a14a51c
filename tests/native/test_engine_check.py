"""`engine_check`: a build with ENGINE_DEBUG ends the process at a broken invariant, another one does not look at it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from engine import _native

(INVARIANTS,) = Path(_native.__path__[0]).rglob("invariants.pxd")

PROGRAM = """
%s
static int looked;
static int look(int holds) { looked++; return holds; }
int main(int count, char** arguments) {
    engine_check(look(1), "never said");
    engine_check(look(count > 1), "an argument is given");
    return looked;
}
"""


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


def build(compiler: str, at: Path, *options: str) -> Path:
    """A program that checks whether it was given an argument; its exit code is how often it looked."""
    (text,) = re.findall(r'cdef extern from \*:\n    """\n(.*?)"""', INVARIANTS.read_text(), re.DOTALL)
    macro = text.replace("\\\\", "\\")  # as Cython reads it
    (at / "program.c").write_text(PROGRAM % macro)
    subprocess.run([compiler, *options, "-Wall", "-Werror", "-o", at / "program", at / "program.c"], check=True)
    return at / "program"


def test_a_debug_build_ends_at_a_broken_invariant(compiler: str, tmp_path: Path):
    program = build(compiler, tmp_path, "-DENGINE_DEBUG")
    assert subprocess.run([program, "x"], timeout=60, check=False).returncode == 2
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT
    assert re.fullmatch(r".*program\.c:\d+: broken invariant: an argument is given\n", done.stderr)


def test_another_build_does_not_look(compiler: str, tmp_path: Path):
    program = build(compiler, tmp_path)
    assert subprocess.run([program], timeout=60, check=False).returncode == 0
