"""The same directory, opened several times in one process: one engine, which ends with its last handle."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.aio.uv import run
from engine.broker.settings.config import BrokerConfig
from engine.embedded.terms import Terms


def test_a_directory_that_is_open_twice_is_one_engine(tmp_path: Path):
    with engine.open(tmp_path / "data") as one, engine.open(tmp_path / "data") as other:
        with one.producer("t") as producer:
            producer.send(b"x")
        with other.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=30).value == b"x"
        assert one.service_url == other.service_url


def test_an_engine_ends_with_its_last_handle(tmp_path: Path):
    one = engine.open(tmp_path / "data")
    other = engine.open(tmp_path / "data")
    consumer = other.stream_consumer("t", "s")
    one.close()
    with pytest.raises(engine.AlreadyClosedError):
        one.producer("t")
    with other.producer("t") as producer:
        producer.send(b"x")
    assert consumer.receive(timeout=30).value == b"x"
    with pytest.raises(engine.DataDirectoryBusyError, match=f"process {os.getpid()}"):
        engine.open(tmp_path / "data", shared=False)
    other.close()
    other.close()
    engine.open(tmp_path / "data", shared=False).close()
    assert not (tmp_path / "data" / "engine.sock").exists()


def test_a_directory_is_known_by_what_it_is_and_not_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with engine.open("data") as one, engine.open(tmp_path / "link") as other, engine.open("link/../data") as third:
        one.admin.create_topic("t")
        assert other.admin.list_topics() == third.admin.list_topics() == ["topic://public/default/t"]


def test_memory_is_an_engine_of_its_own_each_time():
    with engine.open(":memory:") as one, engine.open(":memory:") as other:
        one.admin.create_topic("t")
        assert other.admin.list_topics() == []


async def test_loops_and_threads_share_it(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as here:
        consumer = await here.stream_consumer("t", "s")

        def elsewhere() -> None:
            with engine.open(tmp_path / "data") as blocking, blocking.producer("t") as producer:
                producer.send(b"of a thread")

        async def another_loop() -> None:
            async with engine.open_async(tmp_path / "data") as there, await there.producer("t") as producer:
                await producer.send(b"of a loop")

        await asyncio.to_thread(elsewhere)
        await asyncio.to_thread(asyncio.run, another_loop())
        await asyncio.to_thread(run, another_loop())
        received = [await consumer.receive(timeout=30) for _ in range(3)]
        assert [message.value for message in received] == [b"of a thread", b"of a loop", b"of a loop"]


async def test_a_blocking_call_on_the_loop_that_has_it_open_is_served(tmp_path: Path):
    """As in a notebook, whose cells run on a loop."""
    async with engine.open_async(tmp_path / "data") as here:
        with engine.open(tmp_path / "data") as blocking, blocking.producer("t") as producer:
            producer.send(b"x")
        async with here.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert (await consumer.receive(timeout=30)).value == b"x"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio's own, of what the ended loop has left open
@pytest.mark.parametrize("runs", [asyncio.run, run])
def test_a_handle_whose_loop_has_ended_takes_nobody_with_it(tmp_path: Path, runs):
    kept = []

    async def forget_it() -> None:
        kept.append(opened := await engine.open_async(tmp_path / "data"))
        producer = await opened.producer("t")
        await producer.send(b"x")

    runs(forget_it())
    with engine.open(tmp_path / "data") as after:
        with after.stream_consumer("t", "s", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=30).value == b"x"
        runs(kept.pop().close())
        with after.producer("t") as producer:
            producer.send(b"y")
    engine.open(tmp_path / "data", shared=False).close()
    gc.collect()


def test_many_threads_open_and_close_it(tmp_path: Path):
    failures = []

    def work(number: int) -> None:
        try:
            for turn in range(4):
                with engine.open(tmp_path / "data") as opened, opened.producer(f"t{number}") as producer:
                    producer.send(b"%d" % turn)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with engine.open(tmp_path / "data", shared=False) as opened:
        assert len(opened.admin.list_topics()) == 6


def test_a_later_address_is_added_to_the_running_engine(tmp_path: Path):
    with engine.open(tmp_path / "data") as one:
        assert one.service_url.startswith("engine+unix://")
        with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as other:
            assert one.service_url == other.service_url
            assert one.admin_url == other.admin_url
            with engine.Client(one.service_url) as client:
                client.admin.create_topic("t")
        with engine.Client(one.service_url) as client:  # it stays
            assert client.topic_exists("t")
        with engine.open(tmp_path / "data", listen=one.service_url):
            pass  # it is there already


def test_an_address_that_is_taken_is_told_and_the_engine_goes_on(tmp_path: Path):
    with engine.open(tmp_path / "a", listen="127.0.0.1:0") as a, engine.open(tmp_path / "b") as b:
        with pytest.raises(engine.ConnectError, match="in use"):
            engine.open(tmp_path / "b", listen=a.service_url)
        b.admin.create_topic("t")


GIVEN = [{"durability": "os"}, {"retention_time": "2h"}, BrokerConfig(segments=2)]


@pytest.mark.parametrize("config", GIVEN)
def test_another_configuration_is_refused_by_the_names_of_its_settings(tmp_path: Path, config):
    with engine.open(tmp_path / "data") as one:
        with pytest.raises(engine.InvalidConfigurationError, match=r"durability|retention_time|segments") as refused:
            engine.open(tmp_path / "data", config=config)
        assert str(tmp_path / "data") in str(refused.value)
        one.admin.create_topic("t")
    with engine.open(tmp_path / "data", config=config), engine.open(tmp_path / "data", config=config):
        engine.open(tmp_path / "data").close()  # whatever it has


def test_a_secret_is_not_told(tmp_path: Path):
    with engine.open(tmp_path / "data", config={"auth_token": "abc"}):
        with pytest.raises(engine.InvalidConfigurationError, match="auth_token") as refused:
            engine.open(tmp_path / "data", config={"auth_token": "wrong"})
        assert "abc" not in str(refused.value)
        assert "wrong" not in str(refused.value)


def test_an_engine_that_is_not_shared_refuses_others(tmp_path: Path):
    with engine.open(tmp_path / "data", shared=False):
        for shared in (True, False):
            with pytest.raises(engine.DataDirectoryBusyError, match=f"process {os.getpid()}"):
                engine.open(tmp_path / "data", shared=shared)


@pytest.mark.parametrize("blocking", [True, False])
async def test_an_address_that_is_refused_makes_no_directory_and_reads_the_configuration_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, blocking: bool
):
    made: list[Terms] = []
    config = Terms.config

    def counted(terms: Terms) -> BrokerConfig:
        made.append(terms)
        return config(terms)

    monkeypatch.setattr(Terms, "config", counted)

    async def opened(**options: Any) -> engine.Engine | engine.AsyncEngine:
        if blocking:
            return await asyncio.to_thread(engine.open, tmp_path / "data", **options)
        return await engine.open_async(tmp_path / "data", **options)

    async def refused() -> None:
        with pytest.raises(engine.InvalidConfigurationError, match="auth_token"):
            await opened(listen="0.0.0.0:0")

    await refused()
    assert len(made) == 1
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    await refused()
    assert len(made) == 2
    made.clear()
    e = await opened()
    assert len(made) == 1
    await (asyncio.to_thread(e.close) if isinstance(e, engine.Engine) else e.close())
