"""`engine export` and `engine import`: what pyarrow alone takes for the same file, in what they take.

pyarrow alone writes a table that is in memory, or reads the file into memory; the command reads a topic of an embedded
engine and writes the file, or reads the file and sends it, until all of it is durable. In one process, in turns, as
processor time of all threads (the broker's are among them) and as time on the clock, in memory that was used before. A
topic that was imported is deleted before the next turn. pyarrow writes no JSON lines: what stands beside their export
is pyarrow's CSV of the same table.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from support import touch_free_memory

import engine
from engine.cli.transfer.exporting import Export, Wanted
from engine.cli.transfer.formats import form_of
from engine.cli.transfer.importing import Import, Source, Terms

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
TURNS = 1 if TINY else int(os.environ.get("ENGINE_BENCH_TURNS", "5"))
ROWS = 2_000 if TINY else int(os.environ.get("ENGINE_BENCH_ROWS", "300000"))
COLUMNS = ("key", "value", "event_time")


class Transfer:
    """Medians of turns, one after the other."""

    params: ClassVar = [["export", "import"], ["parquet", "csv", "jsonl"], ["processor", "clock"]]
    param_names = ("work", "format", "time")
    unit = "ratio"
    timeout = 600

    def setup_cache(self) -> dict[tuple[str, str], dict[str, float]]:
        """Both times of each are of the same turns."""
        works, forms, _ = self.params
        return {(work, form): ratios(work, form) for work in works for form in forms}

    setup_cache.timeout = 600  # type: ignore[attr-defined]

    def track_ratio(self, found: dict[tuple[str, str], dict[str, float]], work: str, form: str, measure: str) -> float:
        return found[work, form][measure]


def ratios(work: str, form: str) -> dict[str, float]:
    """{processor, clock}: what pyarrow takes, in what the command takes."""
    with tempfile.TemporaryDirectory() as directory, engine.open(Path(directory, "data")) as e:
        file = Path(directory, f"t.{form}")
        _fill(e)
        table = e.table("t", columns=COLUMNS).combine_chunks()
        _export(e, file)
        spent: dict[str, tuple[list[float], list[float]]] = {"processor": ([], []), "clock": ([], [])}
        for turn in range(TURNS):
            ways: tuple[Callable[[], None], ...]
            if work == "export":
                ways = (partial(_pyarrow_writes, table, file), partial(_export, e, file))
            else:
                ways = (partial(_pyarrow_reads, file), partial(_import, e, file, f"copy-{turn}"))
            for way in (0, 1) if turn % 2 else (1, 0):
                gc.collect()
                began = time.process_time(), time.perf_counter()
                ways[way]()
                spent["processor"][way].append(time.process_time() - began[0])
                spent["clock"][way].append(time.perf_counter() - began[1])
            if work == "import":
                e.admin.delete_topic(f"copy-{turn}")
    return {name: statistics.median(alone) / statistics.median(ours) for name, (alone, ours) in spent.items()}


def _fill(e: engine.Engine) -> None:
    """Values of about 100 bytes that are text, and as hard to compress as such are."""
    values = [
        b'{"id": %d, "amount": %d, "text": "%s"}' % (n, n * 7919 % 10007, os.urandom(32).hex().encode())
        for n in range(ROWS)
    ]
    e.admin.create_topic("t", segments=4)
    with e.producer("t") as p:
        p.send_batch(
            pa.array(values), keys=pa.array([f"customer-{n % 5003}" for n in range(ROWS)]),
            event_times=pa.array(range(ROWS), pa.int64()),
        )  # fmt: skip


def _export(e: engine.Engine, file: Path) -> None:
    export = Export(e, Wanted("t", columns=COLUMNS), form_of(file.name, None), str(file), lambda *_: None)
    done = export.run(overwrite=True)
    assert done.rows == ROWS


def _import(e: engine.Engine, file: Path, topic: str) -> None:
    source = Source(str(file), form_of(file.name, None))
    done = Import(e, source, Terms(topic), lambda *_: None).run()
    source.close()
    assert done.sent == ROWS


def _pyarrow_writes(table: Any, file: Path) -> None:
    new = file.with_suffix(".new")
    if file.suffix == ".parquet":
        pq.write_table(table, new, compression="zstd")
    else:
        text = pa.schema([(f.name, pa.string() if pa.types.is_binary(f.type) else f.type) for f in table.schema])
        pyarrow.csv.write_csv(table.cast(text), new)
    with new.open("rb+") as written:
        os.fsync(written.fileno())


def _pyarrow_reads(file: Path) -> None:
    if file.suffix == ".parquet":
        pq.read_table(file)
    elif file.suffix == ".csv":
        text = {"key": pa.string(), "value": pa.string()}
        pyarrow.csv.read_csv(
            file,
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=text),
        )
    else:
        pyarrow.json.read_json(file)


if __name__ == "__main__":
    touch_free_memory()
    for work in ("export", "import"):
        for form in ("parquet", "csv", "jsonl"):
            found = ratios(work, form)
            print(f"{work} {form}: processor {found['processor']:.2f}, clock {found['clock']:.2f}", flush=True)
