"""The fixtures for applications' tests, and that time that is moved moves everything."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.testing.memory_engine import MemoryOpening
from engine.testing.passing import MovableClock
from tests.kit.programs import environment
from tests.tidy.source_tree import ROOT

pytest_plugins = ["engine.pytest_plugin"]

BOUND_S = 30


def test_each_engine_in_memory_is_one_of_its_own_and_touches_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with engine.open(":memory:") as one, engine.open(":memory:", listen="127.0.0.1:0") as other:
        with one.producer("t") as producer:
            producer.send_batch([b"%d" % n for n in range(1_000)], keys=[b"%d" % n for n in range(1_000)])
        one.admin.split_segment("t", 0)
        assert other.admin.list_topics("public/default") == []
        with one.stream_consumer("t", "s", initial_position="earliest") as consumer:
            found = 0
            while found < 1_000:
                found += len(batch := consumer.receive_batch(timeout=BOUND_S))
                assert len(batch)
                consumer.acknowledge_cumulative(batch)
        with one.transaction() as transaction, one.producer("u") as producer:
            producer.send(b"x", transaction=transaction)
        with engine.Client(other.service_url) as client, client.producer("t") as producer:
            assert producer.send(b"over TCP").offset == 0
    assert list(tmp_path.iterdir()) == []


async def test_the_asynchronous_form_is_in_memory_too():
    async with engine.open_async(":memory:") as e:
        producer = await e.producer("t")
        await producer.send(b"x")
        async with await e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            message = await consumer.receive(BOUND_S)
    assert message is not None
    assert message.value == b"x"


def test_backoff_and_delays_pass_with_the_clock(
    engine_memory: engine.Engine, engine_topic: str, engine_clock: MovableClock
):
    with (
        engine_memory.producer(engine_topic) as producer,
        engine_memory.queue_consumer(engine_topic, "s", initial_position="earliest", nack_backoff=60) as consumer,
    ):
        producer.send(b"job")
        producer.send(b"later", deliver_after=3_600)
        job = consumer.receive(timeout=BOUND_S)
        assert job is not None
        consumer.negative_acknowledge(job)
        engine_clock.advance(30)
        assert consumer.receive(timeout=0) is None
        engine_clock.advance(31)
        again = consumer.receive(timeout=0)
        assert again is not None
        assert (again.value, again.redelivery_count) == (b"job", 1)
        consumer.acknowledge(again)
        assert consumer.receive(timeout=0) is None
        engine_clock.advance(3_600)
        later = consumer.receive(timeout=0)
        assert later is not None
        assert later.value == b"later"
        assert producer.send(b"still connected").offset == 2


@pytest.mark.parametrize("engine_config", [{"retention_time": 600.0, "scalable_topic_auto_scale_enabled": False}])
def test_retention_passes_with_the_clock(engine_memory: engine.Engine, engine_topic: str, engine_clock: MovableClock):
    with engine_memory.producer(engine_topic) as producer:
        producer.send(b"old", key=b"k")
    with engine_memory.stream_consumer(engine_topic, "s", initial_position="earliest") as consumer:
        message = consumer.receive(timeout=BOUND_S)
        assert message is not None
        consumer.acknowledge_cumulative(message)
    engine_memory.admin.split_segment(engine_topic, 0)
    segments = lambda: set(engine_memory.admin.get_metadata(engine_topic)["segments"])  # noqa: E731
    engine_clock.advance(300)
    assert "0" in segments()
    engine_clock.advance(3_900)  # segments that were closed as idle are looked at once an hour
    assert segments() == {"1", "2"}, "the sealed one is older than its retention"


def test_the_backoff_of_a_run_passes_with_the_clock(
    engine_memory: engine.Engine, engine_topic: str, engine_clock: MovableClock
):
    with engine_memory.producer(engine_topic) as producer:
        producer.send(b"x", key=b"k")
    consumer = engine_memory.stream_consumer(engine_topic, "s", initial_position="earliest")
    tries = [threading.Event() for _ in range(3)]

    def handle(message: engine.Message) -> None:
        number = sum(event.is_set() for event in tries)
        tries[number].set()
        if number < 2:
            raise ValueError(number)
        consumer.close()

    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"backoff": 600})
    thread.start()
    for event in tries:
        assert event.wait(BOUND_S)
        while event is not tries[-1] and consumer.statistics().handler_failures <= tries.index(event):
            event.wait(0.001)  # the run has not noted the failure yet
        engine_clock.advance(600)
    thread.join(BOUND_S)
    assert not thread.is_alive()


async def test_asynchronous_engines_follow_the_clock(
    engine_memory_async: MemoryOpening, engine_topic: str, engine_clock: MovableClock
):
    async with engine_memory_async as e:
        await (await e.producer(engine_topic)).send(b"x")
        consumer = await e.queue_consumer(engine_topic, "s", initial_position="earliest", ack_timeout=600)
        assert await consumer.receive(BOUND_S) is not None
        woken = asyncio.create_task(asyncio.sleep(500))
        await engine_clock.advance_async(300)
        assert await consumer.receive(0) is None
        assert not woken.done()
        with pytest.raises(engine.InvalidArgumentError, match="advance_async"):
            engine_clock.advance(1)
        await engine_clock.advance_async(400)
        assert woken.done(), "the timers of the test's own loop, too"
        again = await consumer.receive(0)
        assert again is not None
        assert again.redelivery_count == 1


async def test_a_loop_that_does_not_follow_is_refused():
    with pytest.raises(engine.UnsupportedError, match="asyncio's own event loop"):
        await MovableClock().advance_async(1)


def test_a_clock_goes_forward_alone():
    clock = MovableClock()
    before = clock.time_ms(), clock.monotonic()
    clock.advance(3_600)
    assert clock.time_ms() - before[0] >= 3_600_000
    assert clock.monotonic() - before[1] >= 3_600
    for wrong in (-1, "1", float("nan")):
        with pytest.raises(engine.InvalidArgumentError, match="seconds must be"):
            clock.advance(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("_", [1, 2])
def test_names_of_topics_are_fresh(_: int, engine_topic: str, engine_memory: engine.Engine):
    assert re.fullmatch(r"test-names-of-topics-are-fresh-[12]-\d+", engine_topic)
    assert not engine_memory.topic_exists(engine_topic)


def test_the_plugin_imports_nothing_of_the_engine_until_a_fixture_is_used():
    program = "import sys, engine.pytest_plugin; print(*sorted(m for m in sys.modules if m.startswith('engine')))"
    found = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=True)
    assert found.stdout.split() == [b"engine", b"engine.lazy", b"engine.pytest_plugin"]


def test_the_programs_of_the_page_pass(tmp_path: Path):
    page = (ROOT / "docs" / "testing-applications.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    blocks = [code for code in programs if "def test_" in code]
    assert len(blocks) == 2
    for number, code in enumerate(blocks):
        (tmp_path / f"test_page_{number}.py").write_text(code)
    settings = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    (tmp_path / "pytest.ini").write_text(settings)
    command: list[Any] = [sys.executable, "-m", "pytest", "-q", "-p", "engine.pytest_plugin", "-p", "no:cacheprovider"]
    ran = subprocess.run([*command, tmp_path], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
