"""`engine perf compare`: real servers of Redis and NATS, and the cluster that Kafka's client makes for tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.cli import perf_compare
from engine.cli.peers import peer
from engine.cli.perf_compare import Measured
from engine.errors import InvalidArgumentError, UnsupportedError

Run = Callable[..., Any]
BIN = Path(sys.executable).parent
FEW = ("-n", "300", "--size", "50", "--turns", "2")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def process(*command: object, port: int) -> Iterator[None]:
    """A server that answers on the port, until the end."""
    made = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert made.poll() is None, f"{command[0]} ended with {made.returncode}"
                assert time.monotonic() < end, f"{command[0]} does not answer"
                time.sleep(0.02)
        yield
    finally:
        made.terminate()
        made.wait(30)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    options = ("--port", port, "--bind", "127.0.0.1", "--dir", tmp_path, "--save", "", "--appendonly", "yes")
    with process(BIN / "redis-server", *options, port=port):
        yield f"redis://127.0.0.1:{port}"


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    (tmp_path / "nats.conf").write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{tmp_path}/js" }}\n')
    with process(BIN / "nats-server", "-c", tmp_path / "nats.conf", port=port):
        yield f"nats://127.0.0.1:{port}"


class Admin:
    """The cluster for tests answers no requests of administrators: it makes a topic when one is asked for."""

    made: ClassVar[list[str]] = []

    def __init__(self, settings: dict[str, Any]) -> None: ...

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        self.made.extend(topic.topic for topic in topics)
        return {topic.topic: done() for topic in topics}

    def delete_topics(self, topics: list[str]) -> dict[str, Future[None]]:
        self.made[:] = [topic for topic in self.made if topic not in topics]
        return {topic: done() for topic in topics}


def done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


@pytest.fixture
def kafka_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from confluent_kafka import Producer

    from engine.cli.peers import kafka

    monkeypatch.setattr(kafka, "AdminClient", Admin)
    cluster = Producer({"test.mock.num.brokers": 1})
    (broker,) = cluster.list_topics(timeout=60).brokers.values()
    yield f"kafka://{broker.host}:{broker.port}"
    del cluster
    assert Admin.made == []


def topics_of_redis(url: str) -> list[bytes]:
    import redis

    with redis.Redis.from_url(url) as client:
        return list(client.keys())


def test_each_is_measured_and_leaves_nothing(engine: Run, tmp_path, redis_url: str, nats_url: str, kafka_url: str):
    words = ("perf", "compare", redis_url, nats_url, kafka_url, "--data", tmp_path / "data", *FEW)
    result = engine(*words, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert list(found) == ["engine", redis_url, nats_url, kafka_url]
    for each in found.values():
        assert [set(one) for one in each] == [set(Measured._fields)] * 2
        assert all(value > 0 for one in each for value in one.values())
    assert topics_of_redis(redis_url) == []
    assert engine("topics", "list", "--data", tmp_path / "data").out == ""
    shown = engine("perf", "compare", redis_url, "--data", tmp_path / "data", *FEW)
    assert shown.code == 0, shown.err
    assert "publish/s" in shown.out
    assert shown.out.count("×") == 3


def test_another_broker_of_ours(engine: Run, server, tmp_path):
    result = engine("perf", "compare", server.url, "--data", tmp_path / "own", *FEW, "--json")
    assert result.code == 0, result.err
    assert list(json.loads(result.out)) == ["engine", server.url]
    assert engine("topics", "list", "--url", server.url).out == ""


def test_what_cannot_be_measured_is_said(engine: Run, tmp_path, monkeypatch: pytest.MonkeyPatch):
    data = ("--data", tmp_path / "data")
    wrong = engine("perf", "compare", "amqp://127.0.0.1", *data)
    assert (wrong.code, "must begin with one of kafka://, redis://" in wrong.err) == (1, True)
    assert not (tmp_path / "data").exists()
    gone = engine("perf", "compare", f"redis://127.0.0.1:{free_port()}", *data, *FEW)
    assert gone.code == 1
    assert gone.err.splitlines()[-1].startswith("engine: Redis: ")
    monkeypatch.setattr("engine.cli.peers.kafka.TIMEOUT_S", 0.2)
    gone = engine("perf", "compare", f"kafka://127.0.0.1:{free_port()}", *data, *FEW)
    assert gone.code == 1
    assert gone.err.splitlines()[-1].startswith("engine: Kafka: ")
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "engine.cli.peers.nats", raising=False)
    lacking = engine("perf", "compare", "nats://127.0.0.1", *data, *FEW)
    assert (lacking.code, "pip install nats-py" in lacking.err) == (1, True)


def test_urls_with_secrets_come_from_the_environment(engine, tmp_path, monkeypatch):
    url, data = f"redis://user:s3cret@127.0.0.1:{free_port()}", ("--data", tmp_path / "data")
    refused = engine("perf", "compare", url, *data, *FEW)
    assert refused.code == 2
    assert perf_compare.URLS in refused.err
    assert "s3cret" not in refused.err
    monkeypatch.setenv(perf_compare.URLS, f"{url} kafka://127.0.0.1")
    tried = engine("perf", "compare", *data, *FEW)
    assert tried.code == 1
    assert tried.err.splitlines()[-1].startswith("engine: Redis: "), "it was asked, and is not there"
    assert "s3cret" not in tried.err


def test_urls_are_shown_without_secrets():
    assert perf_compare.shown("redis://user:secret@host:1/0") == "redis://host:1/0"
    with pytest.raises(InvalidArgumentError):
        peer.scheme_of("redis:host")


def test_the_ratio_is_taken_inside_a_turn():
    found = {"engine": [Measured(10, 10, 2), Measured(40, 20, 1)], "x": [Measured(5, 20, 4), Measured(10, 10, 2)]}
    assert list(perf_compare.table(found))[1] == ["x", "8", "3.0 ×", "15", "1.2 ×", "3.000", "2.0 ×"]


def test_a_message_that_comes_back_otherwise_is_an_error():
    class Losing:
        def publish(self, rows: Any) -> None: ...
        def publish_each(self, rows: Any) -> None: ...
        def close(self) -> None: ...

        def consume(self, count: int) -> int:
            return count * 50 - 1

    with pytest.raises(OSError, match="were sent"):
        perf_compare.measure(Losing(), perf_compare.sample(100, 50))


def test_a_client_that_is_not_installed_is_named():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "confluent_kafka", None)
        patch.delitem(sys.modules, "engine.cli.peers.kafka", raising=False)
        with pytest.raises(UnsupportedError, match="pip install confluent-kafka"):
            peer.connected("kafka://x", "t")
