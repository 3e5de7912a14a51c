"""`engine backup` and `engine restore`: of directories and servers, what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import engine as library
from tests.cli.cli_server import PROGRAM, Server


def fill(e: library.Client, count: int = 50) -> None:
    with e.producer("orders") as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number, key=f"k{number % 3}")
        producer.flush()


def test_a_stopped_directory_is_backed_up_and_restored(engine: Any, tmp_path: Path) -> None:
    with library.open(tmp_path / "data") as e:
        fill(e)
    done = engine("backup", tmp_path / "backups", "--data", tmp_path / "data", "--verify")
    assert done.code == 0, done.err
    assert "verified" in done.out
    assert "50" in done.out
    again = engine("backup", tmp_path / "backups", "--data", tmp_path / "data", "--keep", 1, "--json")
    made = json.loads(again.out)
    assert len(made["deleted"]) == 1
    assert made["generation"]["messages"] == 50
    listed = engine("backup", "list", tmp_path / "backups", "--json")
    assert [each["name"] for each in json.loads(listed.out)] == [made["generation"]["name"]]
    assert made["generation"]["name"] in engine("backup", "list", tmp_path / "backups").out
    assert "1 backup verified" in engine("backup", "verify", tmp_path / "backups").out
    restored = engine("restore", tmp_path / "backups", "--data", tmp_path / "restored")
    assert restored.code == 0, restored.err
    assert "messages" in restored.out
    read = engine("consume", "orders", "--data", tmp_path / "restored", "-n", 50, "--timeout", 60)
    assert sorted(map(int, read.out.split())) == list(range(50))


def test_a_server_is_backed_up_by_its_address(engine: Any, server: Server, tmp_path: Path) -> None:
    with library.Client(server.url) as client:
        fill(client)
    done = engine("backup", tmp_path / "backups", "--url", server.url, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["generation"]["messages"] == 50
    refused = engine("backup", tmp_path / "backups", "--data", tmp_path / "data")
    assert (refused.code, "--url" in refused.err) == (1, True)


def test_a_directory_that_another_process_has_open(tmp_path: Path) -> None:
    """It is joined, as by any further process."""
    with library.open(tmp_path / "data") as e:
        fill(e)
        command = [*PROGRAM, "backup", str(tmp_path / "backups"), "--data", str(tmp_path / "data"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["generation"]["messages"] == 50
        fill(e)


def test_damage_is_an_exit_code(engine: Any, tmp_path: Path) -> None:
    with library.open(tmp_path / "data") as e:
        fill(e)
        library.backup(e, tmp_path / "backups")
        fill(e)
        library.backup(e, tmp_path / "backups")
    log = next((tmp_path / "data").rglob("0.log"))
    image = bytearray(log.read_bytes())
    image[600] ^= 1
    log.write_bytes(image)
    done = engine("backup", tmp_path / "others", "--data", tmp_path / "data")
    assert done.code == 1
    assert "the source is damaged: segments/public/default/orders/0000-ffff-0/0.log, position" in done.err
    pack = next((tmp_path / "backups" / "packs").iterdir())
    pack.write_bytes(pack.read_bytes()[:-1])
    done = engine("backup", "verify", tmp_path / "backups")
    assert done.code == 1
    assert f"packs/{pack.name}, byte" in done.err


def test_misuse(engine: Any, tmp_path: Path) -> None:
    with library.open(tmp_path / "data") as e:
        fill(e)
        library.backup(e, tmp_path / "backups")
    misuses = [
        (2, "Missing argument", "backup", "create"),
        (2, "0 is not in the range", "backup", tmp_path / "b", "--data", tmp_path / "data", "--keep", 0),
        (1, "is no data directory", "backup", tmp_path / "b", "--data", tmp_path / "none"),
        (1, "holds no backups", "backup", "list", tmp_path / "none"),
        (1, "holds no backups", "restore", tmp_path / "none", "--data", tmp_path / "r"),
        (2, "--data", "restore", tmp_path / "backups"),
        (1, "must be an empty directory", "restore", tmp_path / "backups", "--data", tmp_path / "data"),
        (
            1,
            "must be one of those there",
            "restore",
            tmp_path / "backups",
            "--data",
            tmp_path / "r",
            "--generation",
            "x",
        ),
        (1, "outside of the data directory", "backup", tmp_path / "data" / "b", "--data", tmp_path / "data"),
    ]
    for code, text, *arguments in misuses:
        result = engine(*arguments)
        assert result.code == code, (arguments, result.err)
        assert text in result.err, arguments


def test_old_backups_are_deleted_when_it_is_said_so(engine: Any, tmp_path: Path) -> None:
    with library.open(tmp_path / "data") as e:
        for _ in range(3):
            fill(e)
            library.backup(e, tmp_path / "backups")
    assert engine("backup", "prune", tmp_path / "backups", "--keep", 1).code != 0  # nobody confirms it
    assert len(library.list_backups(tmp_path / "backups")) == 3
    assert "deleted 2 backups" in engine("backup", "prune", tmp_path / "backups", "--keep", 1, "--yes").out
    assert engine("backup", "verify", tmp_path / "backups").code == 0
