"""What commands that take long show meanwhile: bars on a terminal, nothing in a pipe."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import engine as api
from tests.cli.terminal import terminal
from tests.kit.programs import environment, program

ROWS = 3_000
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with api.open(tmp_path / "data") as e:
        e.admin.create_topic("t", segments=1)
        with e.producer("t") as p:
            p.send_batch([b"v%d" % n for n in range(ROWS)])
            p.flush()
    return tmp_path / "data"


def on_a_terminal(*words: object) -> str:
    """What the command writes on its error stream, a terminal of 200 columns, without what moves the cursor."""
    with terminal() as (screen, seen):
        done = subprocess.run(
            program("engine", *words), stdout=subprocess.PIPE, stderr=screen, timeout=120,
            env=environment() | {"TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
    text = CONTROL.sub("", seen.decode())
    assert done.returncode == 0, text
    assert not CONTROL.search(done.stdout.decode())
    return text


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_export_and_import_show_how_far_they_are(data: Path, tmp_path: Path, form: str):
    file = tmp_path / f"t.{form}"
    shown = on_a_terminal("export", "t", file, "--data", data)
    assert re.search(r"exporting .*100% 3,000 messages, [\d.,]+ [KM]?i?B .*\d:\d\d:\d\d left \d:\d\d:\d\d", shown), (
        shown
    )
    shown = on_a_terminal("import", "copy", file, "--data", data)
    assert re.search(r"importing .*100% 3,000 rows, [\d,]+ messages/s .*\d:\d\d:\d\d left \d:\d\d:\d\d", shown), shown


def test_a_backup_shows_its_steps(data: Path, tmp_path: Path):
    shown = on_a_terminal("backup", tmp_path / "copies", "--data", data)
    assert re.search(r"100% 1 segment\b", shown), shown


def test_a_pipe_gets_one_line(data: Path, tmp_path: Path):
    for words in (("export", "t", tmp_path / "t.csv"), ("import", "copy", tmp_path / "t.csv")):
        done = subprocess.run(
            program("engine", *words, "--data", data), capture_output=True, text=True, env=environment(), timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert len((done.stdout + done.stderr).splitlines()) == 1, done.stderr
