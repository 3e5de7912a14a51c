"""`engine export` and `engine import`: what is in a file is what is in the topic, and the other way round."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine as api
from engine.cli.transfer import exporting, readers
from engine.cli.transfer.readers import CsvReader
from engine.errors import InvalidArgumentError
from tests.kit.key_pairs import x25519_pair
from tests.kit.programs import environment, program

FORMATS = ["parquet", "csv", "jsonl", "csv.gz", "jsonl.zst"]
Row = tuple[bytes | None, bytes, int | None, dict[str, str]]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.none() | st.binary(max_size=6) | st.sampled_from([b"a", b"b", b""])
rows = st.lists(
    st.tuples(
        keys, st.binary(max_size=20), st.none() | st.integers(0, 4 * 10**12), st.dictionaries(texts, texts, max_size=2)
    ),
    max_size=25,
)


def fill(e: Any, topic: str, what: list[Row]) -> None:
    with e.producer(topic) as p:
        for key, value, event_time, properties in what:
            p.send_nowait(value, key=key, event_time=event_time, properties=properties)


def read(e: Any, topic: str) -> list[Row]:
    """All that the topic holds, sorted, but each key in its order."""
    with e.topic_view(topic) as view:
        ranges = {i: (s.first, s.end) for i, s in view.segments(exact=True).segments.items() if s.first < s.end}
    if not ranges:
        return []
    with e.range_reader(topic, ranges) as reader:
        return [(m.key, bytes(m.value), m.event_time_ms, dict(m.properties)) for m in reader]


def by_key(found: list[Row]) -> dict[bytes | None, Any]:
    """Keyless messages have no order."""
    kept: dict[bytes | None, list[Any]] = {}
    for key, *rest in found:
        kept.setdefault(key, []).append(rest)
    if None in kept:
        kept[None].sort(key=repr)
    return kept


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(what=rows, form=st.sampled_from(FORMATS), encoding=st.sampled_from(["base64", "hex"]))
def test_a_topic_comes_back_as_it_was(engine: Any, tmp_path_factory: Any, what: list[Row], form: str, encoding: str):
    directory = tmp_path_factory.mktemp("round")
    data, file = directory / "data", directory / f"t.{form}"
    with api.open(data) as e:
        fill(e, "t", what)
    options = ("--encoding", encoding, "--data", data)
    out = engine("export", "t", file, *options)
    assert out.code == 0, out.err
    back = engine("import", "copy", file, *options, "--value", "column")
    assert back.code == 0, back.err
    with api.open(data) as e:
        found, copied = read(e, "t"), read(e, "copy")
        assert by_key(found) == by_key(what)
        assert by_key(copied) == by_key(found)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four segments of 400 messages, whose values are text."""
    found = tmp_path / "data"
    with api.open(found) as e:
        e.admin.create_topic("t", segments=4)
        fill(e, "t", [(b"k%d" % (n % 20), b'v "%d"\n' % n, 1000 + n, {"n": str(n)}) for n in range(400)])
    return found


def table(file: Path) -> Any:
    return pq.read_table(file)


def test_parts_of_a_topic(engine: Any, data: Path, tmp_path: Path):
    whole = tmp_path / "t.parquet"
    assert engine("export", "t", whole, "--data", data).code == 0
    everything = table(whole).to_pylist()
    assert len(everything) == 400

    def of(*options: object) -> list[dict[str, Any]]:
        file = tmp_path / "part.parquet"
        out = engine("export", "t", file, "--data", data, "--overwrite", *options)
        assert out.code == 0, out.err
        found: list[dict[str, Any]] = table(file).to_pylist()
        return found

    assert of("--key", "k3", "--key", "k7") == [row for row in everything if row["key"] in (b"k3", b"k7")]
    assert of("--segment", "2") == [row for row in everything if row["segment"] == 2]
    chosen = [row for row in everything if (row["segment"] == 1 and 3 <= row["offset"] <= 9) or row["segment"] == 3]
    assert of("--segment", "1:3..9", "--segment", "3") == chosen
    assert of("--limit", "7") == everything[:7]
    assert of("--limit", "0") == []
    assert of("--from", "2300-01-01") == []
    assert of("--to", "2300-01-01") == everything
    assert of("--to", "1999-01-01") == []
    assert of("--from", "latest") == []
    columns = of("--columns", "value,sequence_id,producer", "--limit", "3")
    assert [list(row) for row in columns] == [["value", "sequence_id", "producer"]] * 3
    assert sorted(row["sequence_id"] for row in of("--columns", "sequence_id")) == list(range(400))
    for wrong, what in [
        (("--segment", "9"), "no segment 9"),
        (("--columns", "nonsense"), "must be of key, value"),
        (("--columns", "key,key"), "different names"),
    ]:
        refused = engine("export", "t", tmp_path / "no.parquet", "--data", data, *wrong)
        assert (refused.code, what in refused.err) == (1, True), refused.err
    assert engine("export", "t", tmp_path / "x.csv", "--data", data, "--segment", "a").code == 2
    assert not list(tmp_path.glob(".*"))


def test_several_files_and_row_groups(engine: Any, data: Path, tmp_path: Path):
    out = engine(
        "export", "t", tmp_path / "m.parquet", "--data", data, "--rows-per-file", 150, "--row-group", 60, "--json"
    )
    said = json.loads(out.out)
    names = [f"m-{n:05d}.parquet" for n in range(3)]
    assert ([Path(file).name for file in said["files"]], said["rows"]) == (names, 400)
    assert said["bytes"] == sum((tmp_path / name).stat().st_size for name in names)
    files = [pq.ParquetFile(tmp_path / name) for name in names]
    assert [file.metadata.num_rows for file in files] == [150, 150, 100]
    assert [file.metadata.num_row_groups for file in files] == [3, 3, 2]
    assert engine("export", "t", tmp_path / "whole.parquet", "--data", data).code == 0
    assert pa.concat_tables([file.read() for file in files]).equals(table(tmp_path / "whole.parquet"))


def test_pipes_and_what_they_show(engine: Any, data: Path, monkeypatch: Any):
    out = engine(
        "export", "t", "-", "--format", "jsonl", "--data", data, "--key", "k3", "--columns", "key,value,properties"
    )
    lines = [json.loads(line) for line in out.out.splitlines()]
    assert lines[0] == {"key": "k3", "value": 'v "3"\n', "properties": {"n": "3"}}
    assert len(lines) == 20
    out = engine("export", "t", "-", "--format", "csv", "--data", data, "--key", "k3")
    read_rows = list(csv.DictReader(out.out.splitlines(keepends=True)))
    assert (read_rows[0]["value"], read_rows[0]["properties"]) == ('v "3"\n', '{"n":"3"}')
    assert engine("export", "t", "-", "--data", data).code == 2
    assert engine("export", "t", "-", "--data", data, "--format", "parquet").code == 2
    assert engine("export", "t", "t.txt", "--data", data).code == 2
    with pytest.MonkeyPatch.context() as patch, open(os.devnull, "rb") as empty:
        patch.setattr("sys.stdin", type("In", (), {"buffer": empty}))
        assert engine("import", "none", "-", "--format", "jsonl", "--data", data).code == 0


def test_bytes_that_are_not_utf_8_have_a_place(engine: Any, tmp_path: Path):
    data = tmp_path / "data"
    with api.open(data) as e:
        fill(e, "t", [(b"k", b"good", None, {}), (b"k", b"bad \xff", None, {})])
    for form in ("csv", "jsonl"):
        refused = engine("export", "t", tmp_path / f"t.{form}", "--data", data)
        assert refused.code == 1
        assert "segment 0, offset 1" in refused.err
        assert "--encoding base64 or hex" in refused.err


@dataclasses.dataclass
class Sale:
    shop: str
    cents: int
    at: datetime.datetime
    tags: list[str] = dataclasses.field(default_factory=list)
    note: str | None = None


@pytest.mark.parametrize("kind", ["json", "msgpack", "avro"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_values_of_a_schema_are_columns(engine: Any, tmp_path: Path, kind: str, form: str):
    data, at = tmp_path / "data", datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, datetime.UTC)
    schema = getattr(api.Schema, kind)(Sale)
    sales = [Sale("north", n, at, [] if form == "csv" else ["a"], None if n % 2 else "x") for n in range(6)]
    with api.open(data) as e:
        with e.producer("sales", schema=schema) as p:
            p.send_batch(sales, keys=[b"k"] * 6)
        with e.producer("again", schema=schema) as p:
            p.flush()
    file = tmp_path / f"sales.{form}"
    out = engine("export", "sales", file, "--data", data)
    assert out.code == 0, out.err
    if form == "parquet":
        assert table(file).column("cents").to_pylist() == list(range(6))
        assert table(file).column("at").to_pylist() == [at] * 6
    if form == "csv":  # has no word for a list
        assert "[]" in file.read_text()
        return
    back = engine("import", "again", file, "--data", data)
    assert back.code == 0, back.err
    with api.open(data) as e, e.checkpoint_consumer("again", schema=schema, start=api.Checkpoint.earliest()) as c:
        assert [c.receive(timeout=30).value for _ in range(6)] == sales
    raw = engine("export", "sales", tmp_path / f"raw.{form}", "--raw", "--encoding", "hex", "--data", data)
    assert raw.code == 0
    assert engine("import", "raw", tmp_path / f"raw.{form}", "--encoding", "hex", "--data", data).code == 0
    with api.open(data) as e:
        assert by_key(read(e, "raw")) == by_key(read(e, "sales"))


def test_rows_as_json_and_chosen_columns(engine: Any, tmp_path: Path):
    data = tmp_path / "data"
    (tmp_path / "c.csv").write_text('id,name,at\n1,"a, b",2026-01-01T00:00:00Z\n2,,1000\n')
    options = ("--data", data, "--value", "json", "--key-column", "id", "--event-time-column", "at")
    assert engine("import", "csv", tmp_path / "c.csv", *options).code == 0
    pq.write_table(pa.table({"id": [1, 2], "x": [1.5, None]}), tmp_path / "p.parquet")
    back = engine("import", "parquet", tmp_path / "p.parquet", "--data", data, "--value", "json", "--key-column", "id")
    assert back.code == 0, back.err
    (tmp_path / "l.jsonl").write_text('{"id": "a", "n": {"x": 1}}\n\n{"id": "b"}\n')
    assert engine("import", "lines", tmp_path / "l.jsonl", "--data", data, "--value", "json").code == 0
    assert engine("import", "ids", tmp_path / "l.jsonl", "--data", data, "--value-column", "id").code == 0
    with api.open(data) as e:
        assert by_key(read(e, "csv")) == {
            b"1": [[b'{"id":"1","name":"a, b","at":"2026-01-01T00:00:00Z"}', 1767225600000, {}]],
            b"2": [[b'{"id":"2","name":null,"at":"1000"}', 1000, {}]],
        }
        assert by_key(read(e, "parquet")) == {
            b"1": [[b'{"id":1,"x":1.5}', None, {}]],
            b"2": [[b'{"id":2,"x":null}', None, {}]],
        }
        assert sorted(row[1] for row in read(e, "lines")) == [b'{"id": "a", "n": {"x": 1}}', b'{"id": "b"}']
        assert sorted(row[1] for row in read(e, "ids")) == [b"a", b"b"]


def test_bad_rows_have_a_place_and_may_be_skipped(engine: Any, tmp_path: Path):
    data = tmp_path / "data"
    file = tmp_path / "b.csv"
    file.write_bytes(
        b"key,value,event_time\na,1,\na,2\n"  # row 2 lacks a column
        b"b,3,soon\n"  # row 3: no time
        b"c,,\n" + b"k" * 70_000 + b',5,\nd,6,5\n"x\ny",7,6\n'  # row 4: no value
    )
    dry = engine("import", "t", file, "--data", data, "--dry-run", "--json")
    assert dry.code == 1  # no data directory yet
    stop = engine("import", "t", file, "--data", data)
    assert stop.code == 1
    assert "b.csv, row 2: it has 2 columns, and must have 3" in stop.err
    skipped = engine("import", "t", file, "--data", data, "--on-error", "skip", "--json")
    said = json.loads(skipped.out)
    assert (said["rows"], said["bad"], said["sent"] + said["before"]) == (7, 4, 3)
    assert [fault.split(": ")[0] for fault in said["faults"]] == [f"{file}, row {n}" for n in (2, 3, 4, 5)]
    with api.open(data) as e:
        assert [row[:3] for row in sorted(read(e, "t"), key=repr)] == [
            (b"a", b"1", None), (b"d", b"6", 5), (b"x\ny", b"7", 6)
        ]  # fmt: skip
    dry = engine("import", "t", file, "--data", data, "--dry-run", "--json")
    assert (json.loads(dry.out)["sent"], json.loads(dry.out)["bad"]) == (3, 4)
    # The mended file goes on under the name that the error says.
    name = said["name"]
    file.write_text("key,value,event_time\na,1,\na,2,2\nb,3,3\nc,4,4\nk,5,5\nd,6,5\n")
    mended = engine("import", "t", file, "--data", data, "--name", name)
    assert mended.code == 0, mended.err
    with api.open(data) as e:
        assert sorted(row[1] for row in read(e, "t")).count(b"1") == 1

    lines = tmp_path / "b.jsonl"
    lines.write_bytes(
        b'{"value": "1"}\n{"value": \n[1]\n{"value": "\xff"}\n{"value": {"a": 1}, "key": 2.5}\n{"value": [1]}'
    )
    said = json.loads(engine("import", "l", lines, "--data", data, "--on-error", "skip", "--json").out)
    assert (said["sent"], said["bad"]) == (2, 4)
    assert [fault.split(": ")[0] for fault in said["faults"]] == [f"{lines}, line {n}" for n in (2, 3, 4, 5)]


def test_files_that_are_none(engine: Any, tmp_path: Path):
    data = tmp_path / "data"
    with api.open(data) as e:
        e.admin.create_topic("t")
    whole = tmp_path / "w.parquet"
    values = pa.table({"value": [b"%050d" % n for n in range(1000)]})
    pq.write_table(values, whole, compression="none", use_dictionary=False)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-100])
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(whole.read_bytes()[:4] + b"\xff" * 500 + whole.read_bytes()[504:])
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    (tmp_path / "head.csv").write_text("key,value\n")
    (tmp_path / "twice.csv").write_text("value,value\n1,2\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "e.jsonl").write_text("")
    (tmp_path / "bad.csv.gz").write_text("no gzip")
    pq.write_table(pa.table({"value": pa.array([[1]])}), tmp_path / "list.parquet")
    pq.write_table(pa.table({"value": pa.array([], pa.binary())}), tmp_path / "none.parquet")
    for name, what in [
        ("cut.parquet", "must be a Parquet file"),
        ("damaged.parquet", "is damaged"),
        ("empty.csv", "names of its columns"),
        ("twice.csv", "several times"),
        ("other.csv", "no column value"),
        ("list.parquet", "row 1: the value must be text or bytes"),
        ("bad.csv.gz", "zip"),
    ]:
        refused = engine("import", "t", tmp_path / name, "--data", data)
        assert refused.code == 1, (name, refused)
        assert what in refused.err, (name, refused.err)
        assert "Traceback" not in refused.err
    for name in ("head.csv", "e.jsonl", "none.parquet"):
        assert engine("import", "t", tmp_path / name, "--data", data).code == 0, name
    assert engine("import", "missing", tmp_path / "head.csv", "--data", data, "--no-create").code == 1
    with api.open(data) as e:
        assert read(e, "t") == []


json_cells = st.none() | st.integers() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=1)
json_lines = st.lists(
    st.dictionaries(st.sampled_from(["key", "value", "event_time", "properties", "x"]), json_cells, max_size=4).map(
        lambda row: json.dumps(row).encode()
    )
    | st.sampled_from(
        [b"", b"{", b"[]", b'{"value":"\xff"}', b'{"value":"a","value":"b"}', b'{"properties":{}}', b"1"]
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(lines=json_lines, plain=st.booleans())
def test_json_is_read_alike_both_ways(lines: list[bytes], plain: bool):
    if plain:  # what the fast way takes
        lines = [json.dumps({"key": "a", "value": str(n), "properties": {}}).encode() for n in range(len(lines))]

    def found(fast_from: int) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readers, "FAST_BYTES_MIN", fast_from)
            reader = readers.JsonLinesReader("t", io.BytesIO(b"\n".join(lines)))
            reader.columns = ["key", "value", "event_time", "properties"]
            rows: list[Any] = []
            for block in reader:
                rows += [(fault.row, None) for fault in block.faults]
                cells = [c if isinstance(c, list) else c.to_pylist() for c in block.columns.values()]
                for place, row in enumerate(zip(*cells, strict=True)):
                    rows.append((block.first + place, tuple(one or None if type(one) is dict else one for one in row)))
            return rows

    assert found(0) == found(1 << 40)


@pytest.mark.parametrize("ahead", [False, True])
def test_lines_before_one_that_is_too_long_are_read(monkeypatch: pytest.MonkeyPatch, ahead: bool):
    monkeypatch.setattr(readers, "LINE_BYTES_MAX", 3_000)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1_000)
    reader = readers.JsonLinesReader("f", io.BytesIO(b'{"a": "b"}\n' * 300 + b"x" * 9_000))
    reader.columns, reader.ahead = ["a"], ahead
    rows = 0
    with reader.blocks() as blocks, pytest.raises(api.InvalidArgumentError, match="at most 3,000"):  # noqa: PT012
        for block in blocks:
            rows += block.count
    assert rows >= 270


def test_an_import_is_done_once(engine: Any, data: Path, tmp_path: Path):
    file = tmp_path / "t.parquet"
    assert engine("export", "t", file, "--data", data).code == 0
    for again in range(3):
        once = engine("import", "once", file, "--data", data, "--json")
        assert once.code == 0, again
        said = json.loads(once.out)
        assert (said["sent"], said["before"]) == ((0, 400) if again else (400, 0))
        assert engine("import", "together", file, "--data", data, "--transaction").code == 0, again
    assert engine("import", "together", file, "--data", data, "--transaction", "--name", "again").code == 0
    with api.open(data) as e:
        assert by_key(read(e, "once")) == by_key(read(e, "t"))
        assert len(read(e, "together")) == 800
    bad = tmp_path / "bad.csv"
    bad.write_text("value\na\nb,c\n")
    assert engine("import", "nothing", bad, "--data", data, "--transaction").code == 1
    with api.open(data) as e:
        assert read(e, "nothing") == []


def test_encrypted_topics(engine: Any, tmp_path: Path):
    pair, data, file = x25519_pair(1), tmp_path / "data", tmp_path / "t.csv"
    (tmp_path / "public.pem").write_bytes(pair.public)
    (tmp_path / "private.pem").write_bytes(pair.private)
    file.write_text("key,value\na,apples\n")
    assert engine("import", "t", file, "--data", data, "--encrypt-for", f"alice={tmp_path / 'public.pem'}").code == 0
    refused = engine("export", "t", tmp_path / "out.csv", "--data", data)
    assert refused.code == 1
    assert "decryption_keys" in refused.err
    decrypt = ("--decrypt-with", f"alice={tmp_path / 'private.pem'}", "--columns", "key,value")
    assert engine("export", "t", tmp_path / "o.csv", "--data", data, *decrypt).code == 0
    assert (tmp_path / "o.csv").read_text() == '"key","value"\n"a","apples"\n'


def test_a_file_in_the_way_and_a_second_export(engine: Any, data: Path, tmp_path: Path):
    file = tmp_path / "t.csv"
    file.write_text("mine")
    refused = engine("export", "t", file, "--data", data)
    assert refused.code == 1
    assert "--overwrite" in refused.err
    assert file.read_text() == "mine"
    journal = exporting.Journal(tmp_path / "u.csv", overwrite=False)
    refused = engine("export", "t", tmp_path / "u.csv", "--data", data)
    assert "another export is writing" in refused.err
    journal.close()
    assert engine("export", "t", tmp_path / "u.csv", "--data", data).code == 0


class Stopped(Exception):
    """What ends a run."""


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl.zst"])
def test_an_interrupted_export_goes_on(engine: Any, data: Path, tmp_path: Path, form: str, monkeypatch: Any):
    """After each step that makes something durable, and before it."""
    monkeypatch.setattr(exporting, "PART_BYTES", 1 << 10)
    whole, file = tmp_path / f"whole.{form}", tmp_path / f"t.{form}"
    options = ("--data", data, "--rows-per-file", 170)
    assert engine("export", "t", whole, *options).code == 0
    wanted = [path.read_bytes() for path in sorted(tmp_path.glob(f"whole-*.{form}"))]
    save, publish = exporting.Journal.save, exporting.Journal.publish
    lives = steps = 0

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 2 + lives % 4:
            raise Stopped

    def with_steps(method: Any) -> Any:
        def call(*arguments: Any) -> None:
            step()
            method(*arguments)
            step()

        return call

    monkeypatch.setattr(exporting.Journal, "save", with_steps(save))
    monkeypatch.setattr(exporting.Journal, "publish", with_steps(publish))
    with api.open(data) as e:  # what comes later is not in it
        while True:
            lives, steps = lives + 1, 0
            try:
                if engine("export", "t", file, *options).code == 0:
                    break
            except Stopped:
                fill(e, "t", [(b"k1", b"later", None, {})])
            assert lives < 200
    assert lives > 5
    found = [path.read_bytes() for path in sorted(tmp_path.glob(f"t-*.{form}"))]
    if form == "csv":
        assert found == wanted
    elif form == "parquet":
        tables = [pa.concat_tables([pq.read_table(pa.BufferReader(one)) for one in many]) for many in (found, wanted)]
        assert tables[0].equals(tables[1])
    assert not list(tmp_path.glob(".t*"))


def test_another_export_to_the_same_file_is_refused(engine: Any, data: Path, tmp_path: Path, monkeypatch: Any):
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "t.csv"
    with monkeypatch.context() as patch:
        patch.setattr("engine.cli.transfer.writers.CsvWriter.part", fail)
        full = engine("export", "t", file, "--data", data)
    assert full.code == 1
    assert "No space left on device" in full.err
    assert "goes on from there" in full.err
    refused = engine("export", "t", file, "--data", data, "--limit", 5)
    assert "differs in limit" in refused.err
    assert engine("export", "t", file, "--data", data).code == 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("ending", "lives"),
    [
        (signal.SIGKILL, (3,)),
        pytest.param(signal.SIGINT, (2,), marks=pytest.mark.fuzz),
        pytest.param(signal.SIGKILL, tuple(range(12)), marks=pytest.mark.fuzz),
    ],
)
def test_both_are_killed_and_lose_nothing(engine: Any, tmp_path: Path, ending: signal.Signals, lives: tuple[int, ...]):
    """A process for each life; it is ended after a number of steps that it has told of."""
    data, file = tmp_path / "data", tmp_path / "t.parquet"
    with api.open(data) as e:
        e.admin.create_topic("t", segments=3)
        fill(e, "t", [(b"k%d" % (n % 50) if n % 5 else None, b"v%d" % n, n, {"n": str(n)}) for n in range(3000)])
    for verb, topic in (("export", "t"), ("import", "copy")):
        for steps in lives:
            killed_after(steps, ending, verb, topic, file, "--data", data)
        if verb == "import" or not file.exists():
            last = engine(verb, topic, file, "--data", data)
            assert last.code == 0, last.err
    with api.open(data) as e:
        found, copied = read(e, "t"), read(e, "copy")
    assert len(copied) == 3000
    assert by_key(copied) == by_key(found)


def killed_after(steps: int, ending: signal.Signals, *arguments: object) -> None:
    process = subprocess.Popen(
        program("tests.cli.transfer_program", *arguments), env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(steps):
        if process.stdout.readline().strip() != "step":
            break
    process.send_signal(ending)
    process.communicate(timeout=60)


def test_on_a_server(engine: Any, server: Any, tmp_path: Path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"key": "a", "value": "1"}\n')
    assert engine("import", "t", file, "--url", server.url).code == 0
    out = engine("export", "t", tmp_path / "o.jsonl", "--url", server.url, "--columns", "key,value", "--json")
    assert json.loads(out.out)["rows"] == 1
    assert (tmp_path / "o.jsonl").read_text() == '{"key":"a","value":"1"}\n'


def test_without_pyarrow_a_sentence_says_what_to_install(engine: Any, data: Path, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for verb in ("export", "import"):
        file = tmp_path / "t.csv"
        file.touch()
        refused = engine(verb, "t", file, "--data", data)
        assert refused.code == 1
        assert "pip install pyarrow" in refused.err


def test_other_programs_read_the_parquet_file(engine: Any, data: Path, tmp_path: Path):
    import duckdb
    import polars

    file = tmp_path / "t.parquet"
    assert engine("export", "t", file, "--data", data, "--row-group", 50).code == 0
    assert pq.ParquetFile(file).metadata.num_row_groups == 8
    assert polars.read_parquet(file).height == 400
    count = duckdb.sql(f"select count(*), count(distinct key) from '{file}'").fetchall()[0]
    assert count == (400, 20)


def test_a_parquet_file_is_read_page_by_page(tmp_path: Path):
    file = tmp_path / "t.parquet"
    # One row group of 24 MB, in which no value is there twice: whole columns of it would be 33 MB with a block.
    rng = random.Random(7)
    pq.write_table(pa.table({"value": [rng.randbytes(400) for _ in range(60_000)]}), file)
    assert pq.ParquetFile(file).metadata.num_row_groups == 1
    gc.collect()
    before = pa.total_allocated_bytes()
    blocks = iter(readers.ParquetReader(str(file)))
    first = next(blocks)
    assert pa.total_allocated_bytes() - before < 16_000_000
    ends = [first.first + first.count, *(rows.first + rows.count for rows in blocks)]
    assert ends == [16_384, 32_768, 49_152, 60_000]


def test_cells_as_large_as_they_may_be(engine: Any, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 16)
    data, file = tmp_path / "data", tmp_path / "t.jsonl"
    file.write_text(json.dumps({"value": "x" * (5 << 20)}) + "\n" + json.dumps({"value": "y" * (5 << 20) + "y"}) + "\n")
    said = json.loads(engine("import", "t", file, "--data", data, "--on-error", "skip", "--json").out)
    assert (said["sent"], said["bad"]) == (1, 1)
    assert "over the limit of 5,242,880" in said["faults"][0]
    assert sys.getsizeof(said) < 10_000


@pytest.mark.parametrize("head", [b"value,ke\ry\n1,2\n", b"value," + b"x" * 200_000 + b"\n1,2\n", b"", b"\xff\n"])
def test_a_csv_file_whose_names_cannot_be_read_is_refused(head: bytes):
    with pytest.raises(InvalidArgumentError, match="name"):
        CsvReader("it", io.BytesIO(head))
