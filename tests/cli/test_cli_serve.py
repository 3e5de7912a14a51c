"""`engine serve`: ready when it answers, clean when it stops, one on a directory."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.sync import Client
from tests.cli.cli_server import Server, start_server, stop_server

Run = Callable[..., Any]


def test_both_ports_answer(server: Server):
    with Client(server.url) as client:
        client.admin.create_topic("t")
    with urllib.request.urlopen(f"{server.admin_url}/admin/v2/scalable/public/default") as answer:
        assert "topic://public/default/t" in answer.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_cleanly(tmp_path: Path, number: signal.Signals):
    server = start_server(tmp_path)
    with Client(server.url) as client, client.producer("t") as producer:
        producer.send(b"a")
        server.process.send_signal(number)
        _, rest = server.process.communicate(timeout=30)
    assert server.process.returncode == 0
    assert "closing" in rest
    assert "Traceback" not in rest


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path):
    server = start_server(tmp_path)
    with Client(server.url) as client, client.producer("t") as producer:
        for n in range(10):
            producer.send(b"%d" % n, key=b"k")
        server.process.kill()
        server.process.communicate(timeout=30)
    server = start_server(tmp_path)
    try:
        with Client(server.url) as client, client.stream_consumer("t", "s", initial_position="earliest") as consumer:
            received = [consumer.receive(timeout=10.0) for _ in range(10)]
        assert [m.value for m in received if m] == [b"%d" % n for n in range(10)]
    finally:
        stop_server(server)


def test_a_directory_in_use(server: Server, tmp_path: Path, engine: Run):
    with pytest.raises(RuntimeError, match=r"engine: .*another") as refused:
        start_server(tmp_path / "data")
    assert " closed" not in str(refused.value)  # it never started
    result = engine("topics", "list", "--data", tmp_path / "data")
    assert (result.code, result.err.count("\n")) == (1, 1)


@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_a_port_in_use(tmp_path: Path, engine: Run, option: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", option: f"127.0.0.1:{port}"}
        chosen = [word for pair in ports.items() for word in pair]
        result = engine("serve", "--data", tmp_path, *chosen, "--log-level", "error")
    assert result.code == 1
    assert result.err.count(str(port)) == result.err.count("\n") == 1
    assert f"in use by another program; set another address with {option}" in result.err


def test_a_configuration_file_is_read_and_checked(tmp_path: Path, engine: Run):
    config = tmp_path / "engine.toml"
    config.write_text("segments = 3\nallowAutoTopicCreation = true\n")
    server = start_server(tmp_path / "data", "--config", str(config))
    try:
        with Client(server.url) as client:
            client.producer("t").close()
            assert len(client.admin.get_metadata("t")["segments"]) == 3
            assert engine("topics", "create", "u", "--url", server.url).code == 0
            assert len(client.admin.get_metadata("u")["segments"]) == 3
    finally:
        stop_server(server)
    config.write_text("segmnets = 3\n")
    result = engine("serve", "--data", tmp_path / "data", "--config", config)
    assert result.code == 1
    assert "segmnets" in result.err


def test_without_an_admin_api(tmp_path: Path, engine: Run):
    server = start_server(tmp_path, "--admin", "none")
    try:
        assert engine("consume", "t", "--create", "--timeout", 0.1, "--url", server.url).code == 0
        result = engine("topics", "describe", "t", "--url", server.url)
        assert (result.code, result.err.count("\n")) == (1, 1)
        assert "--admin" in result.err
    finally:
        stop_server(server)


def test_a_reader_is_told_when_its_server_goes_and_comes_back(tmp_path: Path):
    server = start_server(tmp_path / "data")
    where = server.url.removeprefix("engine://")
    command = [sys.executable, "-m", "engine", "consume", "t", "--create", "--url", server.url]
    reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert reader.stderr is not None
        assert reader.stderr.readline() == "created t\n"
        stop_server(server)
        said = reader.stderr.readline()
        assert said.startswith(f"engine: the connection to {server.url} was lost: ")
        server = start_server(tmp_path / "data", "--listen", where)
        assert reader.stderr.readline() == f"engine: connected to {server.url} again\n"
    finally:
        stop_server(server)
        reader.kill()
        reader.communicate()


# `engine consume t --create`, which waits for a line at each place where `STAGES` names a function that it calls.
STAGES = """
import sys
from engine.cli import consume, main

def staged(name, function):
    def called(*arguments):
        print(name, flush=True)
        sys.stdin.readline()
        return function(*arguments)
    setattr(consume, name, called)

staged("open_consumer", consume.open_consumer)  # it has asked for the topic
staged("batches", consume.batches)  # its consumer is attached, and "created t" said
main.main()
"""


def test_a_reader_is_told_of_a_loss_before_its_consumer_is_attached(tmp_path: Path):
    server = start_server(tmp_path / "data")
    url, where = server.url, server.url.removeprefix("engine://")
    command = [sys.executable, "-c", STAGES, "consume", "t", "--create", "--url", url]
    pipe = subprocess.PIPE
    reader = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
    try:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stderr is not None
        for stage, said in (("open_consumer", [f"engine: connected to {url} again\n", "created t\n"]), ("batches", [])):
            assert reader.stdout.readline() == f"{stage}\n"
            stop_server(server)
            assert reader.stderr.readline().startswith(f"engine: the connection to {url} was lost: ")
            server = start_server(tmp_path / "data", "--listen", where)
            reader.stdin.write("go on\n")
            assert [reader.stderr.readline() for _ in said] == said
        assert reader.stderr.readline() == f"engine: connected to {url} again\n"
    finally:
        stop_server(server)
        reader.kill()
        reader.communicate()


def test_a_mistyped_variable_is_told(tmp_path: Path, engine: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENGINE_SEGMENT", "4")
    result = engine("serve", "--data", tmp_path / "data")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "ENGINE_SEGMENTS is" in result.err


def test_a_token_and_tls(tmp_path: Path, engine: Run, monkeypatch: pytest.MonkeyPatch):
    tls = Path(__file__).parents[1] / "broker" / "tls"
    config = tmp_path / "engine.toml"
    config.write_text(f'auth_token = "s3cret"\ntls_cert = "{tls / "cert.pem"}"\ntls_key = "{tls / "key.pem"}"\n')
    server = start_server(tmp_path / "data", "--config", str(config))
    try:
        at = ["--url", server.url, "--tls-ca", tls / "cert.pem"]
        assert server.admin_url.startswith("https://")
        monkeypatch.setenv("ENGINE_TOKEN", "s3cret")
        assert engine("topics", "create", "t", *at).code == 0
        monkeypatch.setenv("ENGINE_TOKEN", "guess")
        refused = engine("topics", "create", "t", *at)
        assert refused.code == 1
        assert "the token is invalid" in refused.err
        untrusting = engine("topics", "list", "--url", server.url, "--tls-ca", config)
        assert untrusting.code == 2
        assert "PEM" in untrusting.err
    finally:
        code, said = stop_server(server)
    assert code == 0
    assert "s3cret" not in "".join(server.lines) + said


@pytest.mark.parametrize("text", ["localhost", "1:2:x", "127.0.0.1:99999"])
def test_an_address_is_checked(engine: Run, tmp_path: Path, text: str):
    assert engine("serve", "--data", tmp_path, "--listen", text).code == 2
