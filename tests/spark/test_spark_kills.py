"""The sink is killed at every step, driver and tasks; every row is there once, none of what does not count."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.testing.checker import check, describe
from engine.testing.history import History
from tests.kit.programs import environment, program

STEPS = ("before-write", "during-write", "behind-write", "before-commit", "behind-commit")
KEYS = 20
WAIT_S = 600


class Query:
    """The program over a pair of topics, run after run."""

    def __init__(self, broker: engine.Engine, topic: str, folder: Path, spark: dict[str, str]) -> None:
        self.broker, self.source, self.target, self.folder = broker, topic, f"{topic}-out", folder
        self._environment = environment(**spark, SINK_FOLDER=str(folder))
        self.rows = 0
        (folder / "strikes").mkdir()
        broker.admin.create_topic(topic, segments=2)
        broker.admin.create_topic(self.target, segments=2)

    def fill(self, count: int) -> None:
        """More to do."""
        numbers = range(self.rows, self.rows + count)
        with self.broker.producer(self.source) as producer:
            producer.send_batch([b"%d" % n for n in numbers], keys=[b"k%d" % (n % KEYS) for n in numbers])
        self.rows += count

    def strike(self, step: str, victim: str, passes: int = 0) -> None:
        """At this step, when it has been passed so often."""
        (self.folder / "strikes" / f"{step}.{victim}").write_text(str(passes))

    def run(self) -> bool:
        """To the end, or until it is killed; whether it came to the end."""
        code = self._run()
        while code == 1 and "failed to connect back" in self._log():  # Spark gives Python 10 s to start
            code = self._run()
        assert code in (0, -9), self._log()[-4000:]
        return code == 0

    def _run(self) -> int:
        arguments = program("tests.spark.sink_program", self.broker.service_url, self.source, self.target)
        with (self.folder / "log").open("wb") as log:
            try:
                done = subprocess.run(
                    arguments, env=self._environment, stdout=log, stderr=log, timeout=WAIT_S, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.fail(f"not at its end after {WAIT_S} s: {self.facts()[-3:]}\n{self._log()[-4000:]}")
        return done.returncode

    def _log(self) -> str:
        return (self.folder / "log").read_text()

    def facts(self) -> list[dict[str, Any]]:
        """What the program has written down."""
        return [json.loads(line) for line in (self.folder / "evidence").read_text().splitlines()]

    def history(self) -> History:
        """The same and a reading of the target, in the checker's words."""
        history, facts = History(lambda: 0.0), self.facts()
        attempts = {fact["mark"]: fact["attempt"] for fact in facts if fact["what"] == "written"}
        names = {
            fact["transaction"].rpartition("-")[2]: fact["transaction"] for fact in facts if fact["what"] == "send"
        }
        commits: dict[int, Any] = {}
        for fact in facts:
            if fact["what"] == "send":
                self._sent(history, fact, attempts)
            elif fact["what"] == "commit" and None not in fact["accepted"]:
                asked = {"transaction": names[str(fact["batch"])], "action": "commit", "accepted": fact["accepted"]}
                commits[fact["batch"]] = history.invoke("driver", "txn_end", **asked)
            elif fact["what"] == "committed" and fact["batch"] in commits:
                commits.pop(fact["batch"]).ok(state="COMMITTED")
        history.record("final", "reading", reading=0)
        for message in read(self.broker, self.target):
            found = {"key": (message.key or b"").decode(), "value": message.value.decode(), "topic": self.target}
            history.record("final", "final", reading=0, segment=message.segment_id, offset=message.offset, **found)
        return history

    def _sent(self, history: History, fact: dict[str, Any], attempts: dict[str, str | None]) -> None:
        """It was written; or not, as the transaction was committed before; or, of who was killed, nobody knows."""
        mark = fact["mark"]
        where = {"topic": self.target, "transaction": fact["transaction"], "attempt": attempts.get(mark) or mark}
        for key, value in zip(fact["keys"], fact["values"], strict=True):
            call = history.invoke(mark, "send", value=value, key=key, **where)
            if attempts.get(mark):
                call.ok(segment=-1, offset=-1)
            elif mark in attempts:
                call.fail("an earlier run of the query has done it")

    def check(self) -> None:
        """The checker's word, and each row once, in the order of its key."""
        history = self.history()
        found = check(history.events)
        assert not found, describe(found)
        values = [event["value"].split("#")[0] for event in history.events if event["what"] == "final"]
        assert sorted(map(int, values)) == list(range(self.rows))
        for key in range(KEYS):
            mine = [int(value) for value in values if int(value) % KEYS == key]
            assert mine == sorted(mine)


def read(broker: engine.Engine, topic: str) -> Iterator[engine.Message]:
    """All that may be read."""
    with broker.topic_view(topic) as view:
        segments = view.segments(exact=True).segments
    with broker.range_reader(topic, {i: (s.first, s.end) for i, s in segments.items()}) as reader:
        yield from reader


@pytest.fixture
def query(broker: engine.Engine, topic: str, tmp_path: Path, spark_environment: dict[str, str]) -> Query:
    return Query(broker, topic, tmp_path, spark_environment)


DRIVER_STEPS = ("before-write", "during-write", "before-commit", "behind-commit")


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("steps", [DRIVER_STEPS[1::2], pytest.param(DRIVER_STEPS, marks=pytest.mark.fuzz)], ids=len)
def test_killed_step_by_step(query: Query, steps: tuple[str, ...]):
    """The driver, each time in the next step; then a task in the middle and one behind it, which Spark runs again."""
    query.fill(1000)
    for step in steps:
        query.strike(step, "driver")
        assert not query.run(), step
    query.strike("during-write", "worker")
    query.strike("behind-write", "worker", passes=1)
    assert query.run()
    marks = {fact["mark"] for fact in query.facts() if fact["what"] == "send"}
    assert len(marks) >= 6 + len(steps)  # tasks that count, and as many at least that do not
    query.check()


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random(query: Query, seed: int):
    """Anywhere in a growing stream, drivers and tasks; and a split of the target in between."""
    rng = random.Random(seed)
    for n in range(12):
        query.fill(rng.randint(0, 1500))
        for step in rng.sample(STEPS[:3], 2):
            query.strike(step, "worker", passes=rng.randint(0, 6))
        query.strike(rng.choice(STEPS), "driver", passes=rng.randint(0, 4))
        query.run()
        if n % 4 == 3:
            active = [i for i, s in active_segments(query)]
            query.broker.admin.split_segment(query.target, rng.choice(active))
    for path in (query.folder / "strikes").iterdir():
        path.unlink()
    assert query.run()
    query.check()


def active_segments(query: Query) -> list[tuple[int, engine.Segment]]:
    """Of the target."""
    with query.broker.topic_view(query.target) as view:
        return [(i, s) for i, s in view.segments().segments.items() if s.active]
