"""`engine objects sweep`: what is printed, and a broker that keeps nothing in an object store."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import engine
from engine.cli import objects
from engine.cli.main import cli

FOUND = {"sessions": 1, "logObjects": 1, "files": 1, "sizeBytes": 3_000, "names": ["wal/c/s1/000000000000", "log/c/a"]}


@pytest.mark.parametrize(("options", "dry", "done"), [((), False, "were deleted"), (("--dry-run",), True, "would be")])
def test_what_a_sweep_finds_is_listed(
    options: tuple[str, ...], dry: bool, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def sweep_objects(*, dry_run: bool) -> dict[str, Any]:
        asked.append(dry_run)
        return FOUND

    client = SimpleNamespace(admin=SimpleNamespace(sweep_objects=sweep_objects))
    monkeypatch.setattr(objects, "connect", lambda *_: nullcontext(client))
    result = CliRunner().invoke(objects.command, ["sweep", *options])
    assert asked == [dry]
    assert result.exit_code == 0
    assert result.stdout.splitlines() == FOUND["names"]
    assert f"2 objects {done}" in result.stderr
    assert "1 file\nand 1 of the logs of 1 session\n" in result.stderr


def test_a_data_directory_has_no_object_store(tmp_path: Path) -> None:
    with engine.open(tmp_path / "data"):
        pass
    result = CliRunner().invoke(cli, ["objects", "sweep", "--data", str(tmp_path / "data")])
    assert result.exit_code != 0
    assert "--objects URL" in f"{result.output} {result.exception}"
