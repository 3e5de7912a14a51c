"""The commands, against a server in another process and against a data directory."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Client
from engine.cli.main import COMMANDS
from engine.errors import TimeoutError as EngineTimeoutError
from tests.cli.cli_lines import write_lines
from tests.cli.cli_server import Server

Run = Callable[..., Any]


@pytest.fixture(params=["server", "data"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """How a command reaches an engine: both ways."""
    if request.param == "data":
        return ["--data", str(tmp_path / "own")]
    return ["--url", request.getfixturevalue("server").url]


def test_help_names_every_command(engine: Run):
    result = engine("--help")
    assert result.code == 0
    assert all(name in result.out for name in COMMANDS)


def test_version(engine: Run):
    assert engine("--version").out.startswith("engine, version ")


def test_python_m_engine_is_the_command():
    done = subprocess.run([sys.executable, "-m", "engine", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("engine, version ")


def test_topics(engine: Run, place: list[str]):
    assert engine("topics", "create", "t", "--segments", 3, "--property", "team=a", *place).code == 0
    assert engine("topics", "list", *place).out.split() == ["topic://public/default/t"]
    assert engine("topics", "list", "--property", "team=b", *place).out == ""
    described = engine("topics", "describe", "t", *place)
    assert "0000-5554" in described.out
    assert described.out.count("ACTIVE") == 3
    metadata = json.loads(engine("topics", "describe", "t", "--json", *place).out)
    assert len(metadata["segments"]) == 3
    assert "segments" in json.loads(engine("topics", "stats", "t", "--json", *place).out)
    assert engine("topics", "stats", "t", *place).code == 0
    assert engine("topics", "delete", "t", "--yes", *place).code == 0
    assert json.loads(engine("topics", "list", "--json", *place).out) == []


def test_a_topic_changes_its_shape(engine: Run, place: list[str], tmp_path: Path):
    lines = write_lines(tmp_path / "in", [f"k{n}:{n}" for n in range(100)])
    engine("produce", "t", "--file", lines, "--key-separator", ":", *place)
    engine("subscriptions", "create", "t", "s", "--from", "earliest", *place)
    split = engine("topics", "split", "t", 0, *place)
    done = "split segment 0 of t: 1 (0000-7fff, 2 buckets) and 2 (8000-ffff, 2 buckets); the layout is at epoch 1\n"
    assert (split.code, split.out, split.err) == (0, "", done)
    rebucketed = json.loads(engine("topics", "rebucket", "t", 1, 1, "--json", *place).out)
    assert rebucketed["segments"]["3"]["parentIds"] == [1]
    merged = engine("topics", "merge", "t", 3, 2, *place)
    done = "merged segments 3 and 2 of t: 4 (0000-ffff, 3 buckets); the layout is at epoch 3\n"
    assert (merged.code, merged.err) == (0, done)
    tree = engine("topics", "describe", "t", *place).out
    assert "└── 0  0000-ffff              SEALED  4 buckets  100 messages  backlog s 100\n" in tree
    assert "    │   └── 3  0000-7fff      SEALED   1 bucket    0 messages\n" in tree
    assert "    │       └── 4  0000-ffff  ACTIVE  3 buckets    0 messages  merged, also from 2\n" in tree
    assert "        └── 4  (merged: see above)\n" in tree
    assert json.loads(engine("topics", "describe", "t", "--json", *place).out)["epoch"] == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("split t 5", "not in the layout"),
        ("merge t 0 0", "must be two neighbours"),
        ("merge t 0 2", "must be neighbours"),
        ("rebucket t 0 2", "has these 2 buckets already"),
        ("split nothing 0", "nothing"),
    ],
)
def test_a_change_that_cannot_be_is_one_line(engine: Run, place: list[str], command: str, said: str):
    engine("topics", "create", "t", "--segments", 3, "--entry-buckets", 6, *place)
    result = engine("topics", *command.split(), *place)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert said in result.err
    assert json.loads(engine("topics", "describe", "t", "--json", *place).out)["epoch"] == 0


def test_numbers_of_a_topic_and_a_subscription(engine: Run, server: Server, tmp_path: Path):
    place = ["--url", server.url]
    lines = write_lines(tmp_path / "in", [str(n) for n in range(10)])
    engine("produce", "t", "--file", lines, "--key", "k", *place)
    engine("subscriptions", "create", "t", "work", "--from", "earliest", *place)
    engine("topics", "split", "t", 0, *place)
    with Client(server.url) as client, client.stream_consumer("t", "work", name="one") as consumer:
        assert len(consumer.receive_batch(timeout=10.0)) > 0
        shown = engine("topics", "stats", "t", *place).out
        assert "2 active, 1 sealed" in shown
        assert re.search(r"^ *0 +0000-ffff +SEALED +4 +10 ", shown, re.MULTILINE)
        assert re.search(r"^work +stream +ACTIVE +10 ", shown, re.MULTILINE)
        assert re.search(r"^work +one +yes +0 +\d+ ", shown, re.MULTILINE)
        alone = engine("subscriptions", "stats", "t", "work", *place).out
        assert re.search(r"^backlog +10 *$", alone, re.MULTILINE)
        assert re.search(r"^ +0 +10 +exclusive +0 +0 +0 *$", alone, re.MULTILINE)
        facts = json.loads(engine("subscriptions", "stats", "t", "work", "--json", *place).out)
        assert facts["consumers"]["one"]["segments"] == [0]
    missing = engine("subscriptions", "stats", "t", "nobody", *place)
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert "no subscription 'nobody'" in missing.err


def test_what_goes_in_comes_out(engine: Run, place: list[str], tmp_path: Path):
    lines = write_lines(tmp_path / "in", [f"k{n % 3}:value {n}" for n in range(100)])
    assert "100 messages" in engine("produce", "t", "--file", lines, "--key-separator", ":", *place).err
    result = engine("consume", "t", "-n", 100, "--key-separator", ":", *place)
    assert sorted(result.out.splitlines()) == sorted(lines.read_text().splitlines())
    for key in ("k0", "k1", "k2"):
        values = [line for line in result.out.splitlines() if line.startswith(key)]
        assert values == [line for line in lines.read_text().splitlines() if line.startswith(key)]


def test_consume_as_json(engine: Run, place: list[str], tmp_path: Path):
    lines = write_lines(tmp_path / "in", ["a"])
    engine("produce", "t", "--file", lines, "--key", "k", "--property", "p=q", *place)
    message = json.loads(engine("consume", "t", "-n", 1, "--json", *place).out)
    assert (message["key"], message["value"], message["properties"]) == ("k", "a", {"p": "q"})
    assert message["topic"] == "topic://public/default/t"
    assert message["redelivery_count"] == 0


def test_bytes_that_are_no_text_stand_in_base64(engine: Run, place: list[str], tmp_path: Path):
    (tmp_path / "in").write_bytes(b"\xff\xfe\n")
    engine("produce", "t", "--file", tmp_path / "in", *place)
    assert json.loads(engine("consume", "t", "-n", 1, "--json", *place).out)["value_base64"] == "//4="
    assert engine("produce", "t", "--file", tmp_path / "in", "--json", *place).out.split()[-2] == "3"


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_subscription_remembers(engine: Run, place: list[str], tmp_path: Path, mode: str):
    lines = write_lines(tmp_path / "in", [str(n) for n in range(10)])
    engine("produce", "t", "--file", lines, "--key", "k", *place)
    options = ["-s", "s", "--mode", mode, "--timeout", "0.3", *place]
    assert engine("consume", "t", "-n", 4, *options).out.split() == ["0", "1", "2", "3"]
    assert engine("consume", "t", *options).out.split() == ["4", "5", "6", "7", "8", "9"]
    assert engine("consume", "t", *options).out == ""
    assert engine("subscriptions", "seek", "t", "s", "earliest", *place).code == 0
    assert engine("consume", "t", "-n", 1, *options).out.split() == ["0"]


def test_without_a_subscription_nothing_is_remembered(engine: Run, place: list[str], tmp_path: Path):
    engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a", "b"]), "--key", "k", *place)
    for _ in range(2):
        assert engine("consume", "t", "-n", 2, *place).out.split() == ["a", "b"]
    assert json.loads(engine("subscriptions", "list", "t", "--json", *place).out) == {}


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_what_needs_a_subscription_takes_none_that_nobody_named(engine: Run, place: list[str], mode: str):
    engine("topics", "create", "t", *place)
    refused = engine("consume", "t", "--mode", mode, *place)
    assert refused.code == 2
    assert f"a {mode} consumer reads as a subscription: name it with -s" in refused.err
    assert json.loads(engine("subscriptions", "list", "t", "--json", *place).out) == {}


def test_consume_from_a_time(engine: Run, place: list[str], tmp_path: Path):
    engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a"]), *place)
    assert engine("consume", "t", "--from", "2013-01-01", "-n", 1, *place).out == "a\n"
    assert engine("consume", "t", "--from", "2100-01-01", "--timeout", "0.2", *place).out == ""
    assert engine("consume", "t", "-s", "s", "--from", "2013-01-01", *place).code == 2


@pytest.mark.parametrize("mode", ["stream", "queue", "checkpoint"])
def test_consume_makes_a_topic_only_when_told_to(engine: Run, place: list[str], mode: str):
    engine("topics", "create", "other", *place)
    reader = [] if mode == "checkpoint" else ["-s", "s"]
    options = ["--mode", mode, *reader, "--timeout", "0.1", *place]
    refused = engine("consume", "typo", *options)
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "no topic typo; --create makes it" in refused.err
    assert engine("topics", "list", *place).out.split() == ["topic://public/default/other"]
    made = engine("consume", "typo", "--create", *options)
    assert (made.code, made.out, made.err) == (0, "", "created typo\n")
    again = engine("consume", "typo", "--create", *options)
    assert (again.code, again.err) == (0, "")


def test_subscriptions(engine: Run, place: list[str]):
    engine("topics", "create", "t", *place)
    assert engine("subscriptions", "create", "t", "s", "--from", "earliest", *place).code == 0
    assert "s" in json.loads(engine("subscriptions", "list", "t", "--json", *place).out)
    assert "backlog" in engine("subscriptions", "list", "t", *place).out
    again = engine("subscriptions", "create", "t", "s", *place)
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert engine("subscriptions", "delete", "t", "s", "--yes", *place).code == 0
    assert engine("subscriptions", "delete", "t", "s", "--yes", *place).code == 1


@pytest.mark.parametrize("mode", ["one", "bulk", "wait"])
def test_perf(engine: Run, place: list[str], mode: str):
    options = ["--mode", mode, "-n", 200, "--size", 10, "--segments", 2, "--json"]
    sent = json.loads(engine("perf", "produce", *options, *place).out)
    assert (sent["messages"], sent["bytes"]) == (200, 2000)
    assert ("p99_ms" in sent) is (mode == "wait")
    for more in ([], ["--columns"], ["-s", "s"]):
        read = json.loads(engine("perf", "consume", "-n", 200, "--json", *more, *place).out)
        assert (read["messages"], read["bytes"]) == (200, 2000)


def test_perf_as_a_table(engine: Run, place: list[str]):
    assert "messages/s" in engine("perf", "produce", "-n", 100, "--keys", 0, *place).out
    assert "100" in engine("perf", "consume", "-n", 100, *place).out


def test_an_error_is_one_line_and_code_1(engine: Run, place: list[str]):
    engine("topics", "create", "present", *place)
    result = engine("topics", "describe", "missing", *place)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith("engine: ")
    assert "missing" in result.err


def test_a_line_without_separator_is_an_error(engine: Run, place: list[str], tmp_path: Path):
    lines = write_lines(tmp_path / "in", ["k:v", "w"])
    result = engine("produce", "t", "--file", lines, "--key-separator", ":", *place)
    assert result.code == 1
    assert "line 2" in result.err
    assert engine("consume", "t", "--timeout", "0.2", *place).out == "v\n"


def test_a_backlog_is_cleared(engine: Run, place: list[str], tmp_path: Path):
    engine("topics", "create", "t", *place)
    engine("subscriptions", "create", "t", "s", *place)
    engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a", "b"]), *place)
    before = json.loads(engine("subscriptions", "stats", "t", "s", "--json", *place).out)
    assert before["backlog"] == 2
    result = engine("subscriptions", "clear-backlog", "t", "s", "--yes", *place)
    assert (result.code, result.err) == (0, "s on t has no backlog\n")
    assert json.loads(engine("subscriptions", "stats", "t", "s", "--json", *place).out)["backlog"] == 0


def test_a_range_of_a_segment_is_given_up(engine: Run, place: list[str], tmp_path: Path):
    engine("topics", "create", "t", "--segments", "1", *place)
    engine("subscriptions", "create", "t", "s", *place)
    engine("produce", "t", "--file", write_lines(tmp_path / "in", list("abcd")), *place)
    result = engine("subscriptions", "skip", "t", "s", "0", "1..2", "--yes", *place)
    assert (result.code, result.err) == (0, "s on t continues behind offset 2 of segment 0\n")
    assert json.loads(engine("subscriptions", "stats", "t", "s", "--json", *place).out)["backlog"] == 2
    assert engine("subscriptions", "skip", "t", "s", "0", "0", "--yes", *place).code == 0
    assert json.loads(engine("subscriptions", "stats", "t", "s", "--json", *place).out)["backlog"] == 1
    for offsets in ("", "x", "2..", "..2", "3..1", "-1"):
        assert engine("subscriptions", "skip", "t", "s", "0", "--yes", "--", offsets, *place).code == 2, offsets
    assert engine("subscriptions", "skip", "t", "s", "0", "3..9", "--yes", *place).code == 1


def test_namespaces_are_listed(engine: Run, place: list[str]):
    assert engine("topics", "create", "t", *place).code == 0
    assert engine("topics", "create", "acme/orders/t", *place).code == 0
    assert engine("namespaces", "set", "acme/empty", "--retention-time", "1h", *place).code == 0
    everything = ["acme/empty", "acme/orders", "public/default"]
    assert engine("namespaces", "list", *place).out.splitlines() == everything
    assert engine("namespaces", "unset", "acme/empty", "--all", *place).code == 0
    assert json.loads(engine("namespaces", "list", "--json", *place).out) == everything[1:]


def test_policies_of_a_namespace(engine: Run, place: list[str]):
    name = "public/default"
    assert engine("topics", "create", "t", *place).code == 0
    said = ["--retention-time", -1, "--retention-size", 2048, "--durability", "os"]
    assert engine("namespaces", "set", name, *said, *place).code == 0
    found = json.loads(engine("namespaces", "get", name, "--json", *place).out)
    said_now = {"retention_time_s": -1, "retention_size_bytes": 2048, "durability": "os"}
    of_broker = {"message_ttl_s": -1, "encryption_required": False, "flush_interval_ms": 100}
    assert found == said_now | of_broker | {"auto_create_topics": True}
    shown = engine("namespaces", "get", name, *place).out
    assert all(text in shown for text in ("for ever", "2.0 KiB", "os"))
    assert engine("topics", "create", "quick", *place).code == 0
    assert json.loads(engine("topics", "describe", "quick", "--json", *place).out)["durability"] == "os"
    assert engine("namespaces", "set", name, *place).code == 2
    assert engine("namespaces", "set", name, "--retention-time", -2, *place).code == 2
    assert engine("namespaces", "set", name, "--retention-time", "36h", "--retention-size", "1GB", *place).code == 0
    found = json.loads(engine("namespaces", "get", name, "--json", *place).out)
    assert (found["retention_time_s"], found["retention_size_bytes"]) == (36 * 3600, 1 << 30)
    assert found["durability"] == "os", "what is not given stays"
    assert engine("namespaces", "unset", name, "durability", *place).code == 0
    found = json.loads(engine("namespaces", "get", name, "--json", *place).out)
    assert (found["retention_time_s"], found["durability"]) == (36 * 3600, "fsync")
    assert engine("namespaces", "unset", name, "dura", *place).code == 2
    assert engine("namespaces", "unset", name, *place).code == 2
    assert engine("topics", "policies", "set", "t", "--retention-time", "7d", *place).code == 0
    found = json.loads(engine("topics", "policies", "get", "t", "--json", *place).out)
    said_now = {"retention_time_s": 7 * 86400, "retention_size_bytes": 1 << 30, "message_ttl_s": -1}
    assert found == said_now | {"encryption_required": False, "flush_interval_ms": 100}
    assert engine("topics", "policies", "set", "t", "--flush-interval", "25ms", *place).code == 0
    assert "25 ms" in engine("topics", "policies", "get", "t", *place).out
    refused = engine("topics", "policies", "set", "t", "--flush-interval", "2s", *place)
    assert refused.code != 0
    assert "flush_interval_ms must be an integer from 10 to 1000, got 2000" in refused.err
    assert engine("topics", "policies", "unset", "t", "flush-interval", *place).code == 0
    assert engine("topics", "policies", "set", "t", "--encryption-required", *place).code == 0
    assert json.loads(engine("topics", "policies", "get", "t", "--json", *place).out)["encryption_required"] is True
    assert engine("topics", "policies", "unset", "t", "encryption-required", *place).code == 0
    assert engine("topics", "policies", "set", "t", "--message-ttl", "14d", *place).code == 0
    assert json.loads(engine("topics", "policies", "get", "t", "--json", *place).out)["message_ttl_s"] == 14 * 86400
    assert engine("topics", "policies", "unset", "t", "message-ttl", *place).code == 0
    table = engine("topics", "policies", "get", "t", *place).out.splitlines()[1:]
    assert {line.split()[0]: line.split()[-1] for line in table} == {
        "retention-time": "topic", "retention-size": "namespace", "message-ttl": "broker",
        "encryption-required": "broker", "flush-interval": "broker",
    }  # fmt: skip
    assert engine("topics", "policies", "unset", "t", "retention-time", *place).code == 0
    found = json.loads(engine("topics", "policies", "get", "t", "--json", *place).out)
    assert found["retention_time_s"] == 36 * 3600
    assert engine("topics", "policies", "unset", "t", "--all", *place).code == 0
    assert engine("namespaces", "remove", name, *place).code == 0
    assert json.loads(engine("namespaces", "get", name, "--json", *place).out)["retention_time_s"] == 7 * 24 * 3600


def test_properties_of_a_topic_and_its_auto_scale_policy_from_the_start(engine: Run, place: list[str]):
    assert engine("topics", "create", "t", "--auto-scale", "max-segments=8", "--property", "a=1", *place).code == 0
    said = engine("topics", "create", "u", "--auto-scale", "split-cooldown=2m", "--auto-scale", "enabled=no", *place)
    assert said.code == 0
    shown = json.loads(engine("topics", "autoscale", "show", "u", "--json", *place).out)
    assert shown["topic"] == {"split_cooldown": 120.0, "enabled": False}
    assert engine("topics", "create", "v", "--auto-scale", "segments=8", *place).code == 2
    assert engine("topics", "properties", "set", "t", "b=2", *place).code == 0
    assert json.loads(engine("topics", "properties", "get", "t", "--json", *place).out) == {"a": "1", "b": "2"}
    assert engine("topics", "properties", "unset", "t", "a", *place).code == 0
    assert engine("topics", "properties", "get", "t", *place).out.split() == ["b", "2"]


def test_misuse_is_code_2_and_opens_nothing(engine: Run, tmp_path: Path):
    data = tmp_path / "untouched"
    assert engine("produce").code == 2
    assert engine("perf", "produce", "-n", 0).code == 2
    assert engine("produce", "t", "--key", "k", "--key-separator", ":", "--data", data).code == 2
    assert engine("produce", "t", "--property", "x", "--data", data).code == 2
    assert engine("consume", "t", "-s", "s", "--mode", "checkpoint", "--data", data).code == 2
    assert engine("consume", "t", "--from", "noon", "--data", data).code == 2
    assert engine("subscriptions", "seek", "t", "s", "noon", "--data", data).code == 2
    assert not data.exists()
    assert engine("nonsense").code == 2
    for wrong in ("split t", "split t one", "split t -1", "merge t 1", "rebucket t 1 0"):
        assert engine("topics", *wrong.split(), "--data", data).code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics split t -1", "must be a segment id, got '-1'; `engine topics describe` lists them"),
        ("topics merge t 0 -2", "must be a segment id, got '-2'"),
        ("topics rebucket t 0 -3", "-3 is not in the range"),
        ("topics create a/b", "topic name 'a/b' has 2 parts between its slashes, not 3 or a name alone"),
        ("topics create a//b", "namespace of 'a//b' must not be empty"),
        ("topics create ..", "topic name must not be '..', which file systems reserve"),
        ("topics stats http://a/b/c", "scheme 'http' is unknown"),
        ("produce a\tb", r"topic name must have no control character '\t', got 'a\tb'"),
        ("consume topic://t", "has 1 part between its slashes"),
        ("subscriptions create t a/b", "subscription name must have no '/', got 'a/b'"),
        ("topics list --namespace public", "namespace 'public' is malformed"),
        ("namespaces get public", "namespace 'public' is malformed"),
        ("topics list --url 127.0.0.1:6650", "write engine://host:port"),
    ],
)
def test_misuse_says_what_is_wrong(engine: Run, tmp_path: Path, line: str, said: str):
    data = tmp_path / "untouched"
    result = engine(*line.split(" "), *([] if "--url" in line else ["--data", data]))
    assert result.code == 2
    assert said in " ".join(result.err.split(" "))
    assert not data.exists()


def test_one_is_no_plural(engine: Run, place: list[str], tmp_path: Path):
    result = engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a"]), *place)
    assert result.err == "1 message is durable in t\n"
    shown = engine("topics", "describe", "t", "--active", *place).out
    assert "4 buckets  1 message\n" in shown


def test_nobody_answers(engine: Run):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = engine("topics", "list", "--url", f"engine://127.0.0.1:{unused.getsockname()[1]}")
    assert result.code == 1
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("command", ["topics list", "topics stats t", "subscriptions list t", "consume t -n 1"])
def test_what_only_reads_begins_no_data_directory(engine: Run, tmp_path: Path, command: str):
    result = engine(*command.split(), "--data", tmp_path / "typo")
    assert result.code == 1
    assert "typo is no data directory" in result.err
    assert not (tmp_path / "typo").exists()


def test_produce_stops_reading_when_a_message_has_failed(engine: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sent = []

    class Failing:
        """A client and its producer: the broker never answers."""

        def producer(self, topic: str, *, on_error: Callable[[Exception], object], **options: object) -> Failing:
            self.on_error = on_error
            return self

        def send_batch(self, values: list[bytes], keys: object, **options: object) -> None:
            sent.append(values)
            self.on_error(EngineTimeoutError("not acknowledged"))

        def flush(self) -> None:
            raise EngineTimeoutError("not acknowledged")

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *exc: object) -> None: ...

    monkeypatch.setattr("engine.cli.produce.connect", lambda url, data, create: Failing())
    monkeypatch.setattr("engine.cli.records.READ_BYTES", 2)
    result = engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a", "b", "c"]))
    assert (result.code, sent) == (1, [[b"a"]])
    assert result.err == "engine: not acknowledged\n"


def test_columns_without_pyarrow_say_what_to_install(engine: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = engine("perf", "consume", "--columns", "--url", "engine://127.0.0.1:1")
    assert (result.code, "pip install pyarrow" in result.err) == (1, True)


def test_consume_ends_when_its_reader_has_left(tmp_path: Path, engine: Run):
    data = tmp_path / "data"
    assert engine("produce", "t", "--file", write_lines(tmp_path / "in", ["a", "b"]), "--data", data).code == 0
    command = [sys.executable, "-m", "engine", "consume", "t", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a\n"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)
