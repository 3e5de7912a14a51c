"""A real `engine serve` whose disk begins to fail: typed errors for those concerned, nothing acknowledged lost."""

from __future__ import annotations

import errno
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import engine
from engine.sync import Client
from tests.crash.conftest import USUAL_BUILD
from tests.kit.programs import environment, program

READY = re.compile(r"on (engine://\S+), admin on (http://\S+)")
FAIL_ONCE, FAIL_FROM = 4, 5
WRITES, SYNCS = 1, 2
LOGS, METADATA = ".log", "/metadata.db"  # not its mark, which is synced later


class Served:
    """One life of the server."""

    def __init__(self, shim: Path, data: Path) -> None:
        under_shim = environment(LD_PRELOAD=str(shim), PYTHONPATH=USUAL_BUILD)
        command = program("tests.crash.serve_under_shim", shim, "serve", "--data", data)
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "error"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=under_shim, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        match = READY.search(line := self.process.stderr.readline())
        if match is None:
            self.end()
            pytest.fail(f"it did not start: {line}")
        self.url, self._admin_url = match[1], match[2]

    def health(self) -> int:
        """The status of /health."""
        try:
            with urllib.request.urlopen(f"{self._admin_url}/health", timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as e:
            e.close()
            return e.code

    def arm(self, action: int, error: int, kinds: int, within: str = "", n: int = 1) -> None:
        """From the n-th call of these kinds on, or only that one; of files whose path has the part `within`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{n} {action} {error} {kinds} {within}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "armed\n"

    def disarm(self) -> None:
        """The disk is well again."""
        self.arm(0, 0, 0, n=0)

    def end(self) -> None:
        """kill -9: what counts is what is on the disk."""
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def serve(shim: Path, tmp_path: Path) -> Iterator[Callable[[], Served]]:
    """Begin a life of the server on the test's directory."""
    lives: list[Served] = []

    def start() -> Served:
        lives.append(Served(shim, tmp_path / "data"))
        return lives[-1]

    yield start
    for life in lives:
        life.end()


def send_all(producer: engine.Producer, values: list[bytes]) -> dict[bytes, str]:
    """How each send ended: "ok", or the error's name."""
    outcomes = {}
    for value in values:
        try:
            producer.send(value)
        except engine.EngineError as e:
            outcomes[value] = type(e).__name__
        else:
            outcomes[value] = "ok"
    return outcomes


def read_all(client: Client, topic: str, count: int) -> list[bytes]:
    """At least `count` messages, and whatever else is there."""
    with client.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as reader:
        found: list[bytes] = []
        while (message := reader.receive(timeout=20 if len(found) < count else 0.2)) is not None:
            found.append(message.value)
        return found


@pytest.mark.parametrize(
    ("error", "kinds", "expected"),
    [
        (errno.EIO, SYNCS, {"UnknownOutcomeError"}),
        (errno.EIO, WRITES, {"StorageError"}),
        (errno.ENOSPC, WRITES, {"DiskFullError"}),
    ],
)
def test_a_disk_that_fails_for_a_while(serve: Callable[[], Served], error: int, kinds: int, expected: set[str]) -> None:
    server = serve()
    values = [b"%03d" % i for i in range(30)]
    with Client(server.url) as client:
        producer, other = client.producer("orders"), client.producer("others")
        outcomes = send_all(producer, values[:10])
        assert set(outcomes.values()) == {"ok"}
        send_all(other, values[:5])
        server.arm(FAIL_FROM, error, kinds)
        failing = send_all(producer, values[10:15])
        assert set(failing.values()) <= expected | {"StorageError"}, "each send ends, with what befell it"
        assert expected & set(failing.values())
        server.disarm()
        producer.close()
        producer = client.producer("orders")
        after = send_all(producer, values[15:])
        assert set(after.values()) == {"ok"}, "the segment goes on, with the same server"
        assert set(send_all(other, values[5:]).values()) == {"ok"}, "and so do the others"
        outcomes |= failing | after
    server.end()
    server = serve()
    with Client(server.url) as client:
        acknowledged = [v for v in values if outcomes[v] == "ok"]
        found = read_all(client, "orders", len(acknowledged))
        assert len(found) == len(set(found)), "nothing is doubled"
        assert [v for v in found if v in acknowledged] == acknowledged, "nothing acknowledged is lost"
        unknown = {v for v in values if outcomes[v] == "UnknownOutcomeError"}
        assert set(found) - set(acknowledged) <= unknown, "nothing refused is there"
        assert read_all(client, "others", 30) == values


def test_a_failed_sync_of_the_metadata_is_said_and_mended_by_a_restart(serve: Callable[[], Served]) -> None:
    server = serve()
    with Client(server.url) as client, client.producer("orders") as producer:
        producer.send(b"0")
        producer.send(b"1")
        with client.stream_consumer("orders", "s", name="c", initial_position="earliest") as consumer:
            first, second = consumer.receive(timeout=20), consumer.receive(timeout=20)
            consumer.acknowledge_cumulative(first)
            assert server.health() == 200
            server.arm(FAIL_ONCE, errno.EIO, SYNCS, METADATA)
            with pytest.raises(engine.EngineError):
                consumer.acknowledge_cumulative(second)
            assert server.health() == 503, "the health check must report it"
            producer.send(b"2")  # publishing does not need the metadata
    server.end()
    server = serve()
    assert server.health() == 200
    with Client(server.url) as client:
        assert read_all(client, "orders", 3) == [b"0", b"1", b"2"]
        with client.stream_consumer("orders", "s", name="c", initial_position="earliest") as consumer:
            assert consumer.receive(timeout=20).value in (b"1", b"2"), "what was confirmed stays so"


def test_one_failed_sync_fails_one_send(serve: Callable[[], Served]) -> None:
    server = serve()
    with Client(server.url) as client, client.producer("orders") as producer:
        producer.send(b"0")
        server.arm(FAIL_ONCE, errno.EIO, SYNCS, LOGS)
        with pytest.raises(engine.UnknownOutcomeError, match="sync failed"):
            producer.send(b"1")
        producer.send(b"2")
        found = read_all(client, "orders", 2)
        assert found in ([b"0", b"2"], [b"0", b"1", b"2"])
