"""Formats of `engine consume` and `engine produce`: what the one writes the other reads; CSV and templates."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

import engine as api
from engine.cli import records
from engine.cli.formats import JsonMessage
from engine.cli.main import main
from engine.cli.records import arrow_records
from engine.cli.template import TOKENS, Template
from engine.errors import InvalidArgumentError
from engine.limits import MESSAGE_SIZE_MAX
from tests.cli.cli_lines import write_lines

Run = Callable[..., Any]
Facts = tuple[bytes | None, bytes, datetime | None, dict[str, str]]

AT = datetime(2013, 1, 1, 5, 0, 0, 123000, tzinfo=UTC)
MESSAGES: list[Facts] = [
    (b"k", b"text", AT, {"a": "1", "b": "é=,\n"}),
    (None, b"", None, {}),
    (b"", b'quote " comma , newline \n and tab \t', None, {"": "empty name"}),
    (b"\xff\x00", b"\xfe\x00\xff", AT, {}),
    ("ключ".encode(), "значение\u2028\x1b".encode(), None, {"x": ""}),
]


def send_all(data: Path) -> None:
    with api.open(data) as broker:
        broker.admin.create_topic("t", segments=1, entry_buckets=1)
        with broker.producer("t") as producer:
            for key, value, event_time, properties in MESSAGES:
                producer.send(value, key=key, event_time=event_time, properties=properties)


def read_all(data: Path, topic: str) -> list[Facts]:
    with (
        api.open(data) as broker,
        broker.checkpoint_consumer(topic, start=api.Checkpoint.earliest()) as consumer,
    ):
        found: list[Facts] = []
        while len(found) < len(MESSAGES):
            batch = consumer.receive_batch(timeout=30.0)
            assert len(batch) > 0
            found += [(m.key, bytes(m.value), m.event_time, m.properties) for m in batch]
        return sorted(found, key=lambda facts: facts[1])  # without a key a message has no place among others


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with MESSAGES in the topic t, in their order."""
    data = tmp_path_factory.mktemp("formats") / "data"
    send_all(data)
    return data


@pytest.fixture
def written(data: Path, tmp_path: Path) -> Callable[..., bytes]:
    """What `consume` writes into a file, which may be no text."""

    def run(*options: str) -> bytes:
        with (tmp_path / "out").open("w") as out, contextlib.redirect_stdout(out):
            assert main(["consume", "t", "--data", str(data), "-n", str(len(MESSAGES)), *options]) == 0
        return (tmp_path / "out").read_bytes()

    return run


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_produce_reads_what_consume_wrote(
    engine: Run, written: Callable[..., bytes], data: Path, tmp_path: Path, form: str
):
    copy, more = f"copy-{form}", f"more-{form}"
    file = tmp_path / "messages"
    file.write_bytes(written("--format", form))
    place = ["--data", data]
    assert engine("topics", "create", copy, "--segments", 1, "--entry-buckets", 1, *place).code == 0
    result = engine("produce", copy, "--format", form, "--file", file, *place)
    assert (result.code, result.err) == (0, f"5 messages are durable in {copy}\n")
    assert read_all(data, copy) == sorted(MESSAGES, key=lambda facts: facts[1])
    assert engine("produce", more, "--format", form, "--file", file, "--property", "a=0", *place).code == 0
    assert {p["a"] for _, _, _, p in read_all(data, more)} == {"1", "0"}, "a message's own property wins"


def test_json_lines(written: Callable[..., bytes]):
    output = written("--format", "json")
    assert output == written("--json")
    lines = [json.loads(line) for line in output.split(b"\n")[:-1]]
    assert [line.get("key") for line in lines] == ["k", None, "", None, "ключ"]
    assert base64.b64decode(lines[3]["key_base64"]) == MESSAGES[3][0]
    assert base64.b64decode(lines[3]["value_base64"]) == MESSAGES[3][1]
    assert [line["offset"] for line in lines] == [0, 1, 2, 3, 4]
    assert datetime.fromisoformat(lines[0]["event_time"]) == AT
    assert api.MessageId.from_bytes(base64.b64decode(lines[2]["id"])).offset == 2
    assert set(lines[0]) == set(JsonMessage.__struct_fields__) - {"key_base64", "value_base64"}


def test_arrow_has_the_columns_of_a_batch_also_when_nothing_came(written: Callable[..., bytes]):
    table = pa.ipc.open_stream(written("--format", "arrow")).read_all()
    assert table["value"].to_pylist() == [value for _, value, _, _ in MESSAGES]
    none = written("--format", "arrow", "--from", "latest", "--timeout", "0")
    empty = pa.ipc.open_stream(none).read_all()
    assert (empty.schema, len(empty)) == (table.schema, 0)


def test_csv(written: Callable[..., bytes]):
    text = written("--format", "csv").decode(errors="surrogateescape")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["value"].encode(errors="surrogateescape") for row in rows] == [value for _, value, _, _ in MESSAGES]
    assert [row["key"].encode(errors="surrogateescape") for row in rows] == [key or b"" for key, _, _, _ in MESSAGES]
    assert [row["event_time"] for row in rows] == ["2013-01-01T05:00:00.123+00:00", "", "", rows[0]["event_time"], ""]
    assert json.loads(rows[0]["properties"]) == MESSAGES[0][3]
    assert (rows[4]["topic"], rows[4]["segment"], rows[4]["offset"]) == ("topic://public/default/t", "0", "4")


def test_a_template(written: Callable[..., bytes]):
    assert written("-f", r"%k\x00%v;").split(b";")[3] == b"\xff\x00\x00\xfe\x00\xff"
    first = written("-f", r"%t %p %o %e %K %S %r 100%%\t%h\n").split(b"\n\n")[0]
    assert first == b"topic://public/default/t 0 0 1357016400123 1 4 0 100%\ta=1,b=\xc3\xa9=,"
    assert b" -1 -1 " in written("-f", "%e %K %P %q %T %s|").split(b"|")[1].join([b" ", b" "])
    assert set("kvshtpoTeKS") <= set(TOKENS)


@pytest.mark.parametrize(("text", "said"), [("%z", "'%z'"), ("a%", "'%'"), (r"\q", r"'\q'"), (r"\x1", "an escape")])
def test_a_template_with_what_it_does_not_know_is_refused(text: str, said: str):
    with pytest.raises(click.BadParameter) as refused:
        Template(text)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"value": "b", "key": 5}', "Expected `str | null`, got `int` - at `$.key`"),
        ('{"value": "b", "keys": "k"}', "unknown field `keys`"),
        ('{"key": "k"}', "one of value and value_base64, got 0"),
        ('{"value": "b", "value_base64": "Yg=="}', "one of value and value_base64, got 2"),
        ('{"value": "b", "key": "k", "key_base64": "aw=="}', "one of key and key_base64, got both"),
        ('{"value_base64": "!"}', "Invalid base64"),
        ("[1]", "Expected `object`"),
        ('{"value": ', "truncated"),
        ('{"value": "b", "event_time": "noon"}', "Invalid RFC3339"),
        ("nonsense", "malformed"),
    ],
)
def test_a_bad_line_is_named_behind_what_is_before_it(line: str, said: str):
    read = records.json_records(io.BytesIO(f'{{"value": "a"}}\n\n{line}\n{{"value": "c"}}\n'.encode()))
    assert next(read).values == [b"a"]
    with pytest.raises(api.InvalidArgumentError, match=r"^line 3: .*; nothing from it on was sent$") as refused:
        next(read)
    assert said in str(refused.value)


@pytest.mark.parametrize("line", ["nonsense", '{"value": "b", "event_time": 9223372036854775808}'])
def test_what_is_before_a_bad_line_is_sent(engine: Run, tmp_path: Path, line: str):
    data = tmp_path / "data"
    file = write_lines(tmp_path / "in", ['{"value": "a"}', "", line, '{"value": "c"}'])
    result = engine("produce", "t", "--format", "json", "--file", file, "--data", data)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "line 3: " in result.err
    assert engine("consume", "t", "--timeout", "0.2", "--data", data).out == "a\n"


def test_a_message_that_is_too_large_is_named_by_its_line(engine: Run, tmp_path: Path):
    data = tmp_path / "data"
    file = write_lines(tmp_path / "in", ["k:a", "k:" + "x" * (MESSAGE_SIZE_MAX + 1), "k:c"])
    result = engine("produce", "t", "--file", file, "--key-separator", ":", "--data", data)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "line 2: " in result.err
    assert engine("consume", "t", "--timeout", "0.2", "--data", data).out == "a\n"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "must have a column value, got key"),
        (pa.table({"value": [1]}), "message 1: "),
        (pa.table({"value": ["a"], "properties": ["x"]}), "properties must"),
        (pa.table({"value": ["a"], "event_time": ["noon"]}), "event_time must be"),
    ],
)
def test_an_arrow_stream_of_something_else_is_refused(engine: Run, tmp_path: Path, table: pa.Table, said: str):
    with pa.OSFile(str(tmp_path / "in"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    result = engine("produce", "t", "--format", "arrow", "--file", tmp_path / "in", "--data", tmp_path / "data")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert said in result.err


def test_what_is_no_arrow_stream_is_refused(engine: Run, tmp_path: Path):
    file = write_lines(tmp_path / "in", ["not Arrow at all"])
    result = engine("produce", "t", "--format", "arrow", "--file", file, "--data", tmp_path / "data")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "must be an Arrow stream" in result.err


@pytest.mark.parametrize("how", ["flatbuffer", "name", "cut"])
def test_a_damaged_arrow_stream_is_refused(how: str):
    table = pa.table({"value": [b"a", b"b"], "key": ["x", "y"]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    image = bytearray(sink.getvalue())
    if how == "flatbuffer":
        image[24:60] = bytes(36)
    elif how == "name":
        at = image.index(b"key")
        image[at : at + 3] = b"\xff\xff\xff"
    else:
        del image[-40:]
    with pytest.raises(InvalidArgumentError, match="must be an Arrow stream"):
        list(arrow_records(io.BytesIO(bytes(image))))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("consume t --json --format csv", "excludes --format csv"),
        ("consume t -f %v --format raw", "-f excludes"),
        ("consume t -f %v --key-separator :", "-f excludes"),
        ("consume t --format json --key-separator :", "is for --format raw"),
        ("consume t -f %z", "a token must be"),
        ("produce t --format json --key k", "are for --format raw"),
        ("produce t --format arrow --key-separator :", "are for --format raw"),
    ],
)
def test_options_that_exclude_each_other_open_nothing(engine: Run, tmp_path: Path, line: str, said: str):
    result = engine(*line.split(), "--data", tmp_path / "untouched")
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert not (tmp_path / "untouched").exists()


def test_a_terminal_gets_no_binary_data_and_no_control_characters(
    engine: Run, data: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.cli.lines.on_terminal", lambda: True)
    assert engine("consume", "t", "--format", "arrow", "--data", data).code == 2
    for options in (["--json"], ["--format", "csv"], ["-f", r"%v %k %h\n"], ["--key-separator", ":"]):
        shown = engine("consume", "t", "-n", len(MESSAGES), *options, "--data", data).out
        assert not {"\x1b", "\x00", "\u2028"} & set(shown)
        assert "text" in shown


def test_arrow_without_pyarrow_says_what_to_install(engine: Run, data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in ("consume", "produce"):
        result = engine(command, "t", "--format", "arrow", "--data", data)
        assert (result.code, "pip install pyarrow" in result.err) == (1, True)


def test_a_line_is_sent_when_it_comes_not_when_its_pipe_ends(tmp_path: Path, server: Any):
    place = ["--url", server.url]
    command = [sys.executable, "-m", "engine", "produce", "t", "--format", "json", *place]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        api.Client(server.url) as client,
        client.checkpoint_consumer("t", start=api.Checkpoint.earliest()) as consumer,
    ):
        assert process.stdin is not None
        for value in (b"one", b"two"):
            process.stdin.write(b'{"value": "%s"}\n' % value)
            process.stdin.flush()
            assert consumer.receive(timeout=60.0).value == value
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 18])
def test_lines_are_whole_however_they_are_read(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "READ_BYTES", size)
    text = b"a\n\nlong line\n\xff\nlast"
    blocks = list(records.line_blocks(io.BytesIO(text)))
    assert [line for block, _ in blocks for line in block] == text.split(b"\n")
    assert sum(size for _, size in blocks) <= len(text)
    found = list(records.raw_records(io.BytesIO(text)))
    assert [some.place(i) for some in found for i in range(len(some))] == [f"line {n}" for n in range(1, 6)]


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "LINE_BYTES_MAX", 10)
    monkeypatch.setattr(records, "READ_BYTES", 4)
    with pytest.raises(api.InvalidArgumentError, match="at most 10 bytes"):
        list(records.raw_records(io.BytesIO(b"x" * 100)))
