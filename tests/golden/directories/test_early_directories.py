"""Directories of builds before formats changed: read, gone on with, backed up and restored."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import engine

TREE = Path(__file__).parents[3]
ARCHIVES = sorted(Path(__file__).parent.glob("early-*.tar.xz"))
CONFIG = {"scalable_topic_auto_scale_enabled": False, "retention_time": None, "consumer_grace_period": 0.2}
RECEIVE_S_MAX = 60.0  # only a failure waits for so long


def test_there_are_archives_of_each_release_and_of_each_change_of_a_format() -> None:
    builds = {path.name.split("-")[1] for path in ARCHIVES}
    releases = (TREE / "benchmarks" / "releases.txt").read_text().split()[::2]
    assert builds == {"3e8cf401", "ff1f373e", "bc66ec4b", *(name.removeprefix("v") for name in releases)}
    assert len(ARCHIVES) == 2 * len(builds)
    assert {path.name.split("-")[2] for path in ARCHIVES} == {"killed.tar.xz", "closed.tar.xz"}


def by_name(path: Path) -> Any:
    """Closed directories of the releases whose killed ones are opened are a long form."""
    marks = [pytest.mark.fuzz] if re.search(r"0\.1\.0a[1-5]-closed", path.name) else []
    return pytest.param(path, id=path.name.removesuffix(".tar.xz"), marks=marks)


@pytest.mark.parametrize("archive", [by_name(path) for path in ARCHIVES])
def test_an_early_directory(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    with engine.open(tmp_path / "data", config=CONFIG) as e:
        check(e, expected)
        engine.backup(e, tmp_path / "backups")  # before anything of it is written by this build
        more = {topic: send(e, topic, facts) for topic, facts in expected.items()}
        check(e, expected, more)
        e.admin.split_segment("plain", 0)
        engine.backup(e, tmp_path / "backups", verify=True)
    with engine.open(tmp_path / "data", config=CONFIG) as e:
        check(e, expected, more)
    old, new = engine.list_backups(tmp_path / "backups")
    engine.restore(tmp_path / "backups", tmp_path / "old", generation=old.name)
    engine.restore(tmp_path / "backups", tmp_path / "new", generation=new.name)
    with engine.open(tmp_path / "new", config=CONFIG) as e:
        check(e, expected, more)
        drain(e, expected, more)
    with engine.open(tmp_path / "old", config=CONFIG) as e:
        check(e, expected)
        drain(e, expected, {topic: send(e, topic, facts) for topic, facts in expected.items()})


def check(e: engine.Engine, expected: dict[str, Any], more: dict[str, list[str]] | None = None) -> None:
    """Every message that was acknowledged to its sender, and no other."""
    for topic, facts in expected.items():
        table = e.table(topic, columns=["key", "value"])
        found = Counter(
            (k.decode(), v.decode()) for k, v in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
        )
        sent = [(key, value) for key, value in facts["sent"]] + [("key-new", v) for v in (more or {}).get(topic, [])]
        assert found == Counter(sent), topic


def send(e: engine.Engine, topic: str, facts: dict[str, Any]) -> list[str]:
    """By the producer that the topic knows, which goes on where it stood."""
    values = [f"{topic} new {n}" for n in range(10)]
    with e.producer(topic, name=f"named-{topic}") as p:
        assert p.last_sequence_id == facts["last_sequence_id"]
        for value in values:
            p.send(value.encode(), key="key-new")
    return values


def drain(e: engine.Engine, expected: dict[str, Any], more: dict[str, list[str]]) -> None:
    """Each subscription gets what it has not acknowledged."""
    for topic, facts in expected.items():
        wanted = [value for _, value in facts["sent"]] + more[topic]
        left = Counter(wanted) - Counter(facts["acknowledged"])
        make = e.stream_consumer if facts["kind"] == "stream" else e.queue_consumer
        with make(topic, "readers", name="r") as c:
            found: Counter[str] = Counter()
            for _ in range(left.total()):
                message = c.receive(timeout=RECEIVE_S_MAX)
                assert message is not None, f"{topic}: {found.total()} of {left.total()}"
                found[bytes(message.value).decode()] += 1
                c.acknowledge_cumulative(message) if facts["kind"] == "stream" else c.acknowledge(message)
        assert found == left, topic
