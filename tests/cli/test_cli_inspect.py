"""`engine inspect`: what stands in the files, what is damage and what is a torn tail, and that nothing is changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.embedded import open as open_engine

Run = Callable[..., Any]
MESSAGES = 30


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory, closed in order, with one topic of two segments."""
    folder = tmp_path / "data"
    with open_engine(folder) as made:
        made.admin.create_topic("t", segments=2)
        with made.producer("t", compression="zstd") as producer:
            for n in range(MESSAGES):
                producer.send(b"value %d" % n * 10, key=b"k%d" % n, properties={"n": str(n)})
    return folder


def logs(data: Path) -> list[Path]:
    return sorted(data.rglob("*.log"))


def sums(data: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in data.rglob("*") if p.is_file()}


def test_a_whole_directory(data: Path, engine: Run):
    before = sums(data)
    found = json.loads(engine("inspect", data, "--json").out)
    assert sum(row["end"] for row in found["logs"]) == MESSAGES
    assert {row["state"] for row in found["logs"]} == {"clean"}
    assert found["metadata_records"] >= 1
    table = engine("inspect", data)
    assert table.code == 0
    assert "public/default/t/0000-7fff-0" in table.out
    assert sums(data) == before


def test_entries_and_messages(data: Path, engine: Run):
    values = set()
    for path in logs(data):
        report = json.loads(engine("inspect", path, "--json").out)
        assert sum(entry["messages"] for entry in report["entries"]) == report["message_count"]
        messages = json.loads(engine("inspect", path, "--json", "--messages").out)["messages"]
        assert [m["offset"] for m in messages] == list(range(report["end_offset"]))
        values |= {(m["key"], m["value"], m["properties"]) for m in messages}
    assert values == {(f"k{n}", f"value {n}" * 10, json.dumps({"n": str(n)})) for n in range(MESSAGES)}


def test_long_tables_are_cut_and_say_so(data: Path, engine: Run):
    result = engine("inspect", logs(data)[0], "-n", 1)
    assert "more: -n 0 shows all" in result.out
    assert "more" not in engine("inspect", logs(data)[0], "-n", 0).out


def test_metadata(data: Path, engine: Run):
    records = json.loads(engine("inspect", data / "metadata.db", "--json", "--prefix", "/topics/").out)
    topic = next(r for r in records if r["key"] == "/topics/public/default/t")
    assert len(topic["value"]["segments"]) == 2
    assert "/topics/public/default/t" in engine("inspect", data / "metadata.db").out


def test_a_flipped_bit_is_damage(data: Path, engine: Run):
    path = logs(data)[0]
    image = bytearray(path.read_bytes())
    image[len(image) // 3] ^= 1
    path.write_bytes(image)
    for target in (path, data):
        result = engine("inspect", target)
        assert result.code == 1
        assert "damaged" in result.err


def test_a_damaged_header_is_damage(data: Path, engine: Run):
    path = logs(data)[0]
    image = bytearray(path.read_bytes())
    image[20] ^= 1
    path.write_bytes(image)
    assert engine("inspect", path).code == 1
    assert "header" in engine("inspect", data).err


def torn(path: Path, cut: int) -> None:
    """The file as if the process had died in its last write: no closing block, no footer, the last entry cut."""
    image = path.read_bytes()
    end = int.from_bytes(image[64 + 16 : 64 + 24], "little")  # the closing block says where the entries end
    path.write_bytes(image[:64] + bytes(64) + image[128 : end - cut])


def test_a_torn_tail_is_no_damage(data: Path, engine: Run):
    path = logs(data)[0]
    torn(path, 0)
    whole = json.loads(engine("inspect", path, "--json").out)
    assert (whole["state"], whole["tail_bytes"], whole["damage"]) == ("open", 0, None)
    torn_again = path.read_bytes()
    path.write_bytes(torn_again[:-9])
    result = engine("inspect", path, "--json")
    report = json.loads(result.out)
    assert result.code == 0
    assert report["tail_bytes"] > 0
    assert report["end_offset"] < whole["end_offset"]


@pytest.mark.parametrize("name", ["missing", "stranger"])
def test_what_is_no_file_of_ours_is_named(tmp_path: Path, engine: Run, name: str):
    (tmp_path / "stranger").write_text("hello")
    result = engine("inspect", tmp_path / name)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert name in result.err


def test_a_directory_in_use_is_not_read(data: Path, engine: Run):
    with open_engine(data):
        result = engine("inspect", data)
    assert result.code == 1
    assert "another engine" in result.err
