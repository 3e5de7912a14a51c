"""`engine serve --processes N`: one server for its clients, which goes on when one of its processes dies."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.broker.opening import METADATA_FILE
from engine.cli.serve import command, process_count
from engine.client.client import AsyncClient
from engine.client.topic.session import TopicSession
from engine.limits import MIB
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.sync import Client
from engine.wire.url import parse_url
from tests.cli.cli_server import start_server, stop_server
from tests.kit.children import children_of, is_alive
from tests.processes.conftest import Start

pytestmark = pytest.mark.timeout(300)

WAIT_S_MAX = 60.0
TOPIC = TopicName.parse("orders")
SEGMENTS = 12


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so that is not told."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def send(client: Client, numbers: range) -> None:
    with client.producer("orders") as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=f"key-{number % 50}")


def read(client: Client, count: int) -> list[int]:
    """All messages, sorted."""
    found: list[int] = []
    with client.checkpoint_consumer("orders", start=Checkpoint.earliest()) as reader:
        while len(found) < count:
            batch = reader.receive_batch(timeout=WAIT_S_MAX)
            assert len(batch), f"{len(found)} of {count} came"
            found += [int(message.value) for message in batch]
    return sorted(found)


def samples(client: Client, name: str) -> dict[str, float]:
    """A metric by the label of the process, summed over its other labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(client.admin.get_metrics()):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels["process"]
                sums[process] = sums.get(process, 0.0) + sample.value
    return sums


async def owners(url: str) -> set[str]:
    """The addresses of the segments' owners that a client of this address is given."""
    async with AsyncClient(url) as client:
        session = TopicSession(client._pool, TOPIC)
        await session.open(create=False)
        found = {view.url for view in session.layout.segments.values() if view.url is not None}
        session.close()
    return found


async def test_one_server_for_its_clients(start: Start, tmp_path: Path):
    """Addresses, metrics, limits, reloads and the end of one and the same server: starting one takes a second."""
    data, config = tmp_path / "data", tmp_path / "engine.toml"
    config.write_text("publish_bytes_max = '300MiB'\n")
    server = start(data, "--config", str(config))
    port = parse_url(server.url)[1]
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=SEGMENTS)
        send(client, range(200))
        assert read(client, 200) == list(range(200))

        over_tcp, local = await owners(server.url), f"engine+unix://{quote(str(data / 'engine.sock'))}"
        assert {parse_url(url)[0] for url in over_tcp} == {"127.0.0.1"}
        assert len(over_tcp) == 2
        assert port not in {parse_url(url)[1] for url in over_tcp}
        over_unix = await owners(local)
        assert len(over_unix) == len(over_tcp)
        assert over_unix <= {f"engine+unix://{quote(str(data / f'engine-{i}.sock'))}" for i in range(2)}
        with Client(local) as near:
            assert read(near, 200) == list(range(200))

        assert samples(client, "engine_process_serving") == {"0": 1, "1": 1}
        open_segments = samples(client, "engine_segments_open")
        assert sum(open_segments.values()) == SEGMENTS
        assert set(open_segments) == {"0", "1"}
        assert sum(samples(client, "engine_publish_bytes_limit").values()) == 300 * MIB
        assert samples(client, "engine_metadata_writes_total").keys() == {"parent"}
        assert samples(client, "process_resident_memory_bytes").keys() == {"0", "1", "parent"}

        config.write_text("publish_bytes_max = '150MiB'\n")
        server.process.send_signal(signal.SIGHUP)
        limits = lambda: set(samples(client, "engine_publish_bytes_limit").values())  # noqa: E731
        until(lambda: limits() == {75 * MIB}, "not every process has reloaded the configuration")
        client.admin.set_dynamic_configuration("publish_bytes_max", "600MiB")
        until(lambda: limits() == {300 * MIB}, "not every process has its share of a limit that was set")
        assert client.admin.get_runtime_configuration()["publish_bytes_max"] == 600 * MIB

    children = children_of(server.process.pid)
    assert sorted(children) == [0, 1]
    code, said = stop_server(server)
    assert code == 0, said
    assert "Traceback" not in said
    assert not any(map(is_alive, children.values()))
    assert not list(data.glob("*.sock"))


def test_a_process_that_dies_is_replaced_and_its_segments_go_on(start: Start, tmp_path: Path):
    server = start(tmp_path / "data")
    before = children_of(server.process.pid)
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=SEGMENTS)
        send(client, range(100))
        for index, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            os.kill(before[index], number)
            send(client, range(100 * index + 100, 100 * index + 200))
        assert read(client, 300) == list(range(300))

        def serving() -> bool:
            with Client(server.url) as other:  # over a new connection, which a starting process does not accept
                assert other.admin.list_topics() == [str(TOPIC)]
            if samples(client, "engine_process_restarts_total") != {"0": 1, "1": 1}:  # one drains before it ends
                return False
            return samples(client, "engine_process_serving") == {"0": 1, "1": 1}

        until(serving, "not every process was started again")
        after = children_of(server.process.pid)
        assert sorted(after) == [0, 1]
        assert not set(before.values()) & set(after.values())
        send(client, range(300, 400))
        assert read(client, 400) == list(range(400))


def test_when_the_parent_is_killed_its_children_end_and_the_next_server_serves_everything(start: Start, tmp_path: Path):
    server = start(tmp_path / "data")
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=SEGMENTS)
        send(client, range(100))
        children = children_of(server.process.pid)
        os.kill(children[0], signal.SIGSTOP)  # a stopped one, too
        server.process.kill()
        server.process.communicate()  # the error stream ends with the last of its processes
        until(lambda: not any(map(is_alive, children.values())), "a child of the killed server lives on")
        LockFile(lock_file_of(tmp_path / "data" / METADATA_FILE)).release()  # is free
        start(tmp_path / "data", "--listen", server.url.removeprefix("engine://"), "--process-port", "0")
        send(client, range(100, 200))
        assert read(client, 200) == list(range(200))


@pytest.mark.parametrize("option", ["--listen", "--admin", "--process-port"])
def test_a_port_in_use_is_named_with_its_option(tmp_path: Path, option: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        value = f"{port}" if option == "--process-port" else f"127.0.0.1:{port}"
        with pytest.raises(RuntimeError) as refused:
            start_server(tmp_path / "data", "--processes", "2", option, value)
    why = f"127.0.0.1:{port}: the address is in use by another program; set another address with {option}"
    assert str(refused.value) == f"engine: cannot listen on {why}\n"


def test_a_directory_in_use(tmp_path: Path):
    lock = LockFile(lock_file_of(tmp_path / METADATA_FILE))
    try:
        with pytest.raises(RuntimeError, match=f"engine: {tmp_path} is open in another engine, of the process"):
            start_server(tmp_path, "--processes", "2")
    finally:
        lock.release()


def test_what_a_process_refuses_ends_the_server(tmp_path: Path):
    path = tmp_path / "engine-1.sock"
    path.write_text("not a socket")
    with pytest.raises(RuntimeError, match="another kind of file has its name"):
        start_server(tmp_path, "--processes", "2", "--log-level", "error")
    assert path.read_text() == "not a socket"


@pytest.mark.parametrize("text", ["0", "many", "-1", "1.5", "1000"])
def test_a_number_of_processes_is_checked(text: str):
    with pytest.raises(click.BadParameter, match="must be auto or a number from 1 to 256"):
        process_count(click.Context(command), command.params[0], text)


def test_as_many_as_there_are_cores():
    found = process_count(click.Context(command), command.params[0], "auto")
    assert 1 <= found <= len(os.sched_getaffinity(0))
