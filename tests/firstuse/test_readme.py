"""The README, as a new user follows it: all of its programs and commands in one folder, with the installed package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli_server import stop_server
from tests.firstuse.wheels import Installed
from tests.kit.pages import commands, programs
from tests.kit.programs import ROOT

pytestmark = pytest.mark.timeout(1800)  # the first test of each Python builds its wheel

README = ROOT / "README.md"


def console(first: str) -> list[str]:
    """The commands of the console that begins with this one."""
    (found,) = [lines for lines in commands(README) if lines and lines[0].startswith(first)]
    return found


def test_programs(everywhere: Installed, tmp_path: Path):
    """One after the other on one data directory; warnings are errors."""
    printed = []
    for number, code in enumerate(programs(README), 1):
        (tmp_path / f"program_{number}.py").write_text(code)
        printed.append(everywhere.run("python", "-W", "error", f"program_{number}.py", at=tmp_path))
    assert printed[0].splitlines() == ["b'table-7' b'two espressi'", "b'table-7' b'one more'"]
    assert len(printed) >= 6
    clicks = [
        everywhere.run("sh", "-c", f"{line} --data ./data", at=tmp_path) for line in console("engine topics split")
    ]
    assert "SEALED" in clicks[-1]
    files = [everywhere.run("sh", "-c", line, at=tmp_path) for line in console("engine export bulk")]
    assert [text.splitlines()[0].partition(" (")[0].strip() for text in files[:-1]] == [
        "100,000 messages in bulk.parquet",
        "100,000 messages sent to copy",
        "Backed up to ./backups",
        "Restored to ./restored",
    ]
    assert json.loads((tmp_path / "engine.schema.json").read_text())["properties"]
    again = everywhere.run("sh", "-c", console("engine export bulk")[1], at=tmp_path)
    assert again == "all of it is in copy: 100,000 rows of an earlier run\n", "it adds nothing, as the comment says"


def test_server(everywhere: Installed, tmp_path: Path):
    """On free ports: the README's own may be in use here."""
    serve, *others, top = console("engine serve --data")
    assert serve == "engine serve --data ./data"
    server = everywhere.serve(tmp_path / "data")
    try:
        shown = [everywhere.run("sh", "-c", line, at=tmp_path, ENGINE_URL=server.url) for line in others]
        assert [len(text.splitlines()) for text in shown[:2]] == [1, 3]
        assert "1,000 messages" in shown[2]
        assert top == "engine top"
        assert "numbers" in watched(
            [everywhere.folder / "bin" / "engine", "top"], everywhere.variables(ENGINE_URL=server.url)
        )
    finally:
        code, rest = stop_server(server)
    assert (code, "Traceback" in rest) == (0, False)


def watched(command: list[str | Path], environment: dict[str, str]) -> str:
    """What a command prints up to the name of the topic; then it is interrupted."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if "numbers" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert "Traceback" not in rest
    assert process.returncode == 130
    return seen
