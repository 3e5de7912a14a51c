"""docs/security.md, "Two teams in ten minutes": each command is typed as it stands there, and says what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_server import start_server, stop_server
from tests.tidy.source_tree import ROOT

PAGE = ROOT / "docs" / "security.md"
SERVE = "engine serve --data ./data "


def typed() -> Iterator[tuple[str, str]]:
    """(a command, what it says) of the section's console blocks; `> ` goes on with a command."""
    section = PAGE.read_text().partition("## Two teams in ten minutes\n")[2].partition("\n## ")[0]
    for block in re.findall(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            count = next((n for n, line in enumerate(lines) if n and not line.startswith("> ")), len(lines))
            command = "".join(line.removeprefix("> ") for line in lines[:count])
            yield command.rstrip("\n"), "".join(lines[count:])


def test_two_teams_share_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the server's configuration says "roles"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    server = None
    try:
        for command, says in typed():
            if command.startswith(SERVE):
                more = [
                    str(tmp_path / word) if word.endswith(".toml") else word for word in command[len(SERVE) :].split()
                ]
                server = start_server(tmp_path / "data", *more)
                environment["ENGINE_URL"] = server.url
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=100,
            )
            assert done.stdout == says, command
    finally:
        if server is not None:
            stop_server(server)
    assert sum('"allowed": false' in line for line in (tmp_path / "audit.jsonl").read_text().splitlines()) == 1
