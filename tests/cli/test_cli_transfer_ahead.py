"""What an import does beside its rows: it reads ahead, and keeps memory that is freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import engine as api
from engine.cli.transfer import readers
from engine.cli.transfer.formats import form_of
from engine.cli.transfer.importing import Import, Source, Terms
from engine.cli.transfer.readers import AHEAD_BYTES, BLOCKS_AHEAD, Reader, Rows
from engine.client.produce.content import content_digest
from tests.cli.test_cli_transfer import read
from tests.kit.programs import environment

FAULTS = """
import resource
from engine.cli.transfer.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

print(keep_freed_memory() if KEPT else True)
for turn in range(21):
    if turn == 1:
        before = faults()
    buffers = [bytes(bytearray(1 << 20)) for _ in range(8)]
    del buffers
print(faults() - before)
"""


class Counting(Reader):
    """Blocks of one column of so many bytes each; `fault` is what comes behind them."""

    ahead = True

    def __init__(self, count: int, size: int, fault: Exception | None = None) -> None:
        self.count, self.size, self.fault = count, size, fault
        self.read, self.closed = 0, False

    def __iter__(self) -> Generator[Rows, None, None]:
        try:
            for row in range(self.count):
                self.read += 1
                yield Rows({"value": pa.array([b"v" * self.size])}, 1, row)
            if self.fault is not None:
                raise self.fault
        finally:
            self.closed = True


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_small_blocks_are_all_read_before_they_are_wanted():
    reader = Counting(20, 100)
    with reader.blocks() as blocks:
        wait_until(lambda: reader.read == 20)
        assert [rows.first for rows in blocks] == list(range(20))


def test_large_blocks_are_read_as_there_is_room_for_them():
    reader = Counting(20, AHEAD_BYTES)
    with reader.blocks() as blocks:
        for first in range(20 - BLOCKS_AHEAD):
            wait_until(lambda first=first: reader.read == first + BLOCKS_AHEAD)
            time.sleep(0.005)
            assert reader.read == first + BLOCKS_AHEAD
            assert next(blocks).first == first
        assert len(list(blocks)) == BLOCKS_AHEAD


def test_an_error_comes_behind_the_blocks_before_it():
    reader = Counting(3, 100, ValueError("damaged"))
    with reader.blocks() as blocks:
        wait_until(lambda: reader.closed)
        assert [next(blocks).first for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="damaged"):
            next(blocks)


@pytest.mark.parametrize("size", [100, AHEAD_BYTES])
def test_left_early_nothing_is_read_any_more(size: int):
    reader = Counting(1000, size)
    with reader.blocks() as blocks:
        next(blocks)
    assert reader.closed
    assert all(thread.name != "engine-import" for thread in threading.enumerate())


def imported(e: Any, file: Path, progressed: Callable[..., object] = lambda *_: None) -> Import:
    source = Source(str(file), form_of(file.name, None))
    try:
        one = Import(e, source, Terms("t"), progressed)
        one.run()
    finally:
        source.close()
    return one


def test_the_topic_is_made_while_the_content_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "t.csv").write_text("value\n1\n2\n")
    with api.open(tmp_path / "data") as e:
        hashed = Source._digest

        def digest(self: Source, wanted: Callable[[], bool]) -> bytes:
            wait_until(lambda: e.topic_exists("t"))
            return hashed(self, wanted)

        monkeypatch.setattr(Source, "_digest", digest)
        one = imported(e, tmp_path / "t.csv")
        assert (one.result.sent, one.result.name[:7]) == (2, "import-")
        again = imported(e, tmp_path / "t.csv")
        assert (again.result.sent, again.result.before, again.result.name) == (0, 2, one.result.name)


def test_what_is_interrupted_hashes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "t.csv").write_text("value\n1\n")
    hashing = threading.Event()

    def digest(self: Source, wanted: Callable[[], bool]) -> bytes:
        hashing.set()
        wait_until(lambda: not wanted())
        return b""

    def interrupted(*_: Any) -> None:
        assert hashing.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(Source, "_digest", digest)
    with api.open(tmp_path / "data") as e:
        monkeypatch.setattr(Import, "_make_topic", interrupted)
        with pytest.raises(KeyboardInterrupt):
            imported(e, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open("rb") as file:
        answers = iter([True, False])
        content_digest(file, lambda: next(answers))
        assert next(answers, None) is None


def test_how_much_of_a_table_of_text_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "CSV_BLOCK_BYTES", 1000)
    rows = "value\n" + "".join(f"{n:09}\n" for n in range(1000))
    (tmp_path / "t.csv").write_text(rows)
    told: list[int] = []
    with api.open(tmp_path / "data") as e:
        assert imported(e, tmp_path / "t.csv", lambda read, _: told.append(read)).result.sent == 1000
    assert told == sorted(told)
    assert told[-1] == len(rows)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_keys_that_a_file_has_as_a_dictionary_are_sent_as_one(tmp_path: Path, kind: pa.DataType):
    file = tmp_path / "t.parquet"
    keys = [None if n % 7 == 0 else f"{'customer' * 4}-{n % 5 + n // 3000}" for n in range(6000)]
    table = pa.table({"key": pa.array(keys, kind), "other": [f"{n:09}" for n in range(6000)],
                      "value": [b"%d" % n for n in range(6000)]})  # fmt: skip
    pq.write_table(table, file, row_group_size=3000)
    with api.open(tmp_path / "data") as e:
        assert imported(e, file).result.sent == 6000
        sent = {int(value): key for key, value, _, _ in read(e, "t")}
    assert sent == {n: None if key is None else key.encode() for n, key in enumerate(keys)}
    for name, coded in (("key", True), ("other", False)):
        reader = readers.ParquetReader(str(file))
        reader.columns, reader.coded = [name], name
        kinds = {rows.columns[name].type for rows in reader}
        assert kinds == {pa.dictionary(pa.int32(), kind) if coded else pa.string()}


def test_a_row_whose_key_is_too_large_is_told_of_a_dictionary_too(tmp_path: Path):
    keys = [*[b"k"] * 50_000, b"k" * 70_000, *[b"k"] * 50_000]
    pq.write_table(pa.table({"key": keys, "value": [b"v"] * len(keys)}), tmp_path / "t.parquet")
    reader = readers.ParquetReader(str(tmp_path / "t.parquet"))
    reader.coded = "key"
    assert {str(rows.columns["key"].type)[:10] for rows in reader} == {"dictionary"}
    with (
        api.open(tmp_path / "data") as e,
        pytest.raises(api.InvalidArgumentError, match="row 50001: the key is 70,000"),
    ):
        imported(e, tmp_path / "t.parquet")


def faults(kept: bool) -> int:
    run = subprocess.run(
        [sys.executable, "-c", f"KEPT = {kept}{FAULTS}"], env=environment(), capture_output=True, text=True, check=True
    )
    done, count = run.stdout.split()
    if done != "True":
        pytest.skip("the allocator has no mallopt()")
    return int(count)


def test_buffers_that_are_freed_are_not_made_of_new_pages_again():
    assert faults(kept=True) < faults(kept=False) / 10


@pytest.mark.parametrize("frozen_before", [False, True])
def test_an_import_lets_the_collector_look_at_new_objects_only(tmp_path: Path, frozen_before: bool):
    (gc.freeze if frozen_before else gc.unfreeze)()
    pq.write_table(pa.table({"value": [b"a", b"b"]}), tmp_path / "t.parquet")
    frozen: list[int] = []

    def progressed(*_: Any) -> None:
        frozen.append(gc.get_freeze_count())

    with api.open(tmp_path / "data") as e:
        source = Source(str(tmp_path / "t.parquet"), form_of("t.parquet", None))
        assert Import(e, source, Terms("t"), progressed).run().sent == 2
        source.close()
    assert frozen[0] > 1000
    assert (gc.get_freeze_count() > 0) == frozen_before
    gc.freeze()  # as the suite has it
