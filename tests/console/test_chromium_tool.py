"""tools/chromium.py: a script that starts the machine's Chromium, or one sentence about what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tidy.source_tree import ROOT


def made(folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "chromium.py"), str(folder)]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60)


def test_the_machines_own_is_taken_where_it_starts(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, code in (("chromium", 1), ("google-chrome", 0)):  # the first does not start
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit {code}\n')
        (programs / name).chmod(0o755)
    assert made(tmp_path / "chromium", programs).returncode == 0
    script = tmp_path / "chromium" / "bin" / "chromium"
    assert subprocess.check_output([script, "--headless"], text=True) == "google-chrome --headless\n"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = made(tmp_path / "chromium", tmp_path)
    assert (done.returncode, done.stderr) == (1, "The console's tests need a Chromium: install the package chromium.\n")
    assert not (tmp_path / "chromium" / "bin").exists()
