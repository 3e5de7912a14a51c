"""What is collected unclosed closes itself, with a warning, and what it held is free at once."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest

import engine
from tests.kit.programs import environment


def test_a_lost_producer_flushes_and_says_so(tmp_path: Path):
    with engine.open(tmp_path / "data") as e:
        producer = e.producer("t")
        producer.send_nowait(b"x")
        with pytest.warns(ResourceWarning, match="Producer .* was not closed"):
            del producer
        with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=30).value == b"x"


@pytest.mark.parametrize("kind", ["queue_consumer", "stream_consumer"])
def test_a_lost_consumer_gives_its_messages_back_at_once(tmp_path: Path, kind: str):
    with engine.open(tmp_path / "data") as e, e.producer("t") as producer:
        consumer = getattr(e, kind)("t", "s", initial_position="earliest")
        producer.send(b"x", key="k")
        assert consumer.receive(timeout=30).value == b"x"
        with pytest.warns(ResourceWarning, match="Consumer .* was not closed"):
            del consumer
        with getattr(e, kind)("t", "s") as other:
            assert other.receive(timeout=30).value == b"x"


def test_a_cell_that_runs_twice_has_one_engine(tmp_path: Path):
    e = engine.open(tmp_path / "data")
    e.admin.create_topic("t")
    with pytest.warns(ResourceWarning, match="Engine .* was not closed"):
        e = engine.open(tmp_path / "data")  # the old handle lives until the new one is there
    assert e.admin.list_topics() == ["topic://public/default/t"]
    e.close()
    engine.open(tmp_path / "data", shared=False).close()


def test_a_lost_client_ends_its_thread(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0") as e:
        client = engine.Client(e.service_url)
        thread = client._portal._thread
        with pytest.warns(ResourceWarning, match="Client .* was not closed"):
            del client
        thread.join(30)
        assert not thread.is_alive()


def test_what_a_client_has_made_keeps_it(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as e:
        producer, admin = engine.Client(e.service_url).producer("t"), engine.Client(e.service_url).admin
        gc.collect()
        producer.send(b"x")
        assert admin.list_topics() == ["topic://public/default/t"]
        with pytest.warns(ResourceWarning, match="was not closed"):
            del producer, admin


def test_what_is_closed_is_collected_silently(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    gc.collect()
    recwarn.clear()
    with engine.open(tmp_path / "data") as e:
        e.producer("t").close()
        unclosed = e.queue_consumer("t", "s")
    assert unclosed.closed  # by its client
    del e, unclosed
    gc.collect()
    assert not recwarn.list


FORGOTTEN = """
import sys, engine
e = engine.open(sys.argv[1])
p = e.producer("t")
p.send_nowait(b"x")
"""


def test_a_program_that_ends_closes_what_it_forgot(tmp_path: Path):
    command = [sys.executable, "-W", "error", "-c", FORGOTTEN, str(tmp_path / "data")]
    done = subprocess.run(command, env=environment(), timeout=60, check=True, capture_output=True, text=True)
    assert not done.stderr
    with engine.open(tmp_path / "data") as e, e.stream_consumer("t", "s", initial_position="earliest") as consumer:
        assert consumer.receive(timeout=30).value == b"x"


async def test_a_lost_asynchronous_handle_closes(tmp_path: Path):
    e = await engine.open_async(tmp_path / "data")
    async with e.producer("t") as producer:
        await producer.send(b"x")
    del producer
    thread = e._hold.portal._thread  # type: ignore[attr-defined]
    with pytest.warns(ResourceWarning, match="AsyncEngine .* was not closed"):  # noqa: PT031 - it is in a cycle
        del e
        gc.collect()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    engine.open(tmp_path / "data", shared=False).close()


async def test_what_an_asynchronous_handle_has_made_keeps_it(tmp_path: Path):
    async def of_a_handle_that_is_lost() -> engine.AsyncProducer[bytes]:
        return await (await engine.open_async(tmp_path / "data")).producer("t")

    producer = await of_a_handle_that_is_lost()
    gc.collect()
    await producer.send(b"x")
    await producer._client.close()  # type: ignore[attr-defined]
