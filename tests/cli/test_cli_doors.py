"""How `engine serve` and `engine proxy` are started and told things: tokens that no process list shows, signals."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine.cli.main import cli
from tests.cli.cli_server import Server, start_server, stop_server
from tests.cli.test_cli_help import walk

Run = Callable[..., Any]
TLS = Path(__file__).parents[1] / "broker" / "tls"
TOPICS = "/admin/v2/scalable/public/default"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


def line_with(server: Server, text: str) -> str:
    """The next line of its log that has the text."""
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.lines.append(line)
        if text in line:
            return line
    raise AssertionError("".join(server.lines))


def status(server: Server, token: str, path: str = TOPICS) -> int:
    request = urllib.request.Request(server.admin_url + path, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=TLS / "cert.pem")) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        with e:
            return e.code


def test_a_hangup_reads_token_and_certificate_again(tmp_path: Path, secret: Path) -> None:
    config = tmp_path / "engine.toml"
    pair = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    for name, path in pair.items():
        path.write_bytes((TLS / f"{name}.pem").read_bytes())
    config.write_text(f'tls_cert = "{pair["cert"]}"\ntls_key = "{pair["key"]}"\n')
    server = start_server(tmp_path / "data", "--config", str(config), "--auth-token-file", str(secret))
    try:
        assert status(server, "s3cret") == 200
        secret.write_text("another\n")
        server.process.send_signal(signal.SIGHUP)
        line_with(server, "SIGHUP: the configuration was reloaded")
        assert [status(server, token) for token in ("s3cret", "another")] == [401, 200]
        secret.write_text("")
        server.process.send_signal(signal.SIGHUP)
        assert "auth_token_file" in line_with(server, "SIGHUP: the configuration was not reloaded")
        assert status(server, "another") == 200
    finally:
        code, rest = stop_server(server)
    assert code == 0
    assert "closing" in rest
    assert not {"s3cret", "another"} & set("".join([*server.lines, rest]).split())


def test_half_sent_requests_do_not_hold_up_a_signal_to_stop(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    where = urlsplit(server.admin_url)
    head = b"PUT /admin/v2/scalable/public/default/t HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    connections = [socket.create_connection((where.hostname, where.port)) for _ in range(3)]
    try:
        for connection, said in zip(connections, (b"", head, head + body), strict=True):
            connection.sendall(said)
        assert status(server, "") == 200  # so what came before it has been received
        server.process.terminate()
        _, rest = server.process.communicate(timeout=20)  # the limit of a body alone is 30 s
    finally:
        for connection in connections:
            connection.close()
        stop_server(server)
    assert server.process.returncode == 0
    assert "Traceback" not in rest


@pytest.mark.parametrize("option", ["--listen", "--admin"])
@pytest.mark.parametrize("command", ["serve", "proxy"])
def test_a_port_for_others_needs_a_token(tmp_path: Path, engine: Run, command: str, option: str) -> None:
    about = ["--data", tmp_path / "data"] if command == "serve" else ["--broker", "engine://127.0.0.1:1"]
    ports = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", option: "0.0.0.0:0"}
    result = engine(command, *about, *[word for pair in ports.items() for word in pair])
    assert (result.code, result.err.count("\n")) == (1, 1)
    for word in ("auth_token", "--insecure"):
        assert word in result.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("how", [("--insecure",), ("--processes", "2", "--insecure")], ids=["one", "processes"])
def test_what_is_explicitly_insecure_serves_others(tmp_path: Path, how: tuple[str, ...]) -> None:
    """On each address of the machine, and without it on none (above)."""
    ports = ("--listen", "0.0.0.0:0", "--admin", "0.0.0.0:0")
    with pytest.raises(RuntimeError, match=r"auth_token must be set .*--insecure"):
        start_server(tmp_path / "data", *ports, *how[:-1])
    server = start_server(tmp_path / "data", *ports, *how)
    try:
        port = urlsplit(server.admin_url).port
        with urllib.request.urlopen(f"http://127.0.0.2:{port}{TOPICS}") as answer:
            assert answer.status == 200
    finally:
        code, _ = stop_server(server)
    assert code == 0


@pytest.mark.parametrize("option", ["--token", "--auth-token"])
def test_a_proxy_takes_no_secret_as_an_argument(engine: Run, option: str) -> None:
    result = engine("proxy", "--broker", "engine://127.0.0.1:1", option, "s3cret")
    assert result.code == 2
    assert f"{option}-file" in result.err
    assert "s3cret" not in result.err


def test_no_command_takes_a_token_as_an_argument(engine: Run) -> None:
    """Of the whole command line: what could be one is refused, unless it names a file."""
    refused = 0
    for path, command in walk(cli):
        for parameter in command.params:
            option = parameter.opts[0]
            words = set(option.strip("-").split("-"))
            if not words & {"token", "secret", "password"} or words & {"file", "url"}:
                continue
            result = engine(*path.split()[1:], option, "s3cret")
            assert result.code == 2, path
            assert f"{option}-file" in result.err, path
            assert "s3cret" not in result.err + result.out, path
            refused += 1
    assert refused > 50


def test_where_a_command_gets_its_token(
    tmp_path: Path, engine: Run, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(tmp_path / "data", "--auth-token-file", str(secret))
    listed = ("topics", "list", "--url", server.url)

    def from_stdin(text: bytes, *words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "engine", *words, "--url", server.url, "--token-file", "-"]
        done = subprocess.run(command, input=text, capture_output=True, timeout=120, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    try:
        assert engine(*listed).code == 1
        result = engine(*listed, "--token-file", secret)
        assert (result.code, result.err) == (0, "")
        code, _, said = from_stdin(b"s3cret\none\ntwo\n", "produce", "orders")
        assert (code, said) == (0, "2 messages are durable in orders\n"), "what is behind the token is the command's"
        code, out, _ = from_stdin(b"s3cret", "consume", "orders", "-n", "2")
        assert (code, out) == (0, "one\ntwo\n")
        code, _, said = from_stdin(b"guess\n", "topics", "list")
        assert (code, "the token is invalid" in said, "guess" in said) == (1, True, False)
        code, _, said = from_stdin(b"", "topics", "list")
        assert (code, "--token-file - takes a line" in said) == (2, True)
        monkeypatch.setenv("ENGINE_TOKEN_FILE", str(secret))
        assert engine(*listed).code == 0
        monkeypatch.delenv("ENGINE_TOKEN_FILE")
        monkeypatch.setenv("ENGINE_TOKEN", "s3cret")
        assert (engine(*listed).code, engine(*listed).err) == (0, "")
    finally:
        stop_server(server)


def test_a_token_in_a_url_comes_from_the_environment(
    tmp_path: Path, engine: Run, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(tmp_path / "data", "--auth-token-file", str(secret))
    try:
        where = server.url.removeprefix("engine://")
        result = engine("topics", "list", "--url", f"engine://s3cret@{where}")
        assert result.code == 2
        assert "--token-file" in result.err
        assert "s3cret" not in result.err
        monkeypatch.setenv("ENGINE_TOKEN", "of another service")
        monkeypatch.setenv("ENGINE_URL", f"engine://s3cret@127.0.0.1:1,{where}")
        result = engine("topics", "list")
        assert (result.code, result.err) == (0, "")
        monkeypatch.setenv("ENGINE_URL", f"engine://s3cret@{where}x")
        result = engine("topics", "list")
        assert result.code == 2
        assert "a port must be a number" in result.err
        assert "s3cret" not in result.err
    finally:
        stop_server(server)


@pytest.mark.parametrize("command", ["serve --data DATA", "cluster status", "cluster init", "cluster check"])
def test_a_password_of_etcd_comes_from_the_environment(
    tmp_path: Path, engine: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A prefix may have an @, and an address that is none is told without the password."""
    words = [str(tmp_path / "data") if word == "DATA" else word for word in command.split()]
    result = engine(*words, "--metadata", "etcd://user:s3cret@127.0.0.1:1/p")
    assert result.code == 2
    assert "ENGINE_METADATA" in result.err
    assert "s3cret" not in result.err
    for host in ("etcd://127.0.0.1:1x/a@b", "etcd://user:s3cret@127.0.0.1:1x/p"):
        monkeypatch.setenv("ENGINE_METADATA", host)
        result = engine(*words)
        assert "ENGINE_METADATA" not in result.err
        assert "is malformed" in result.err
        assert "s3cret" not in result.err
    monkeypatch.delenv("ENGINE_METADATA")
    assert "shows arguments" not in engine(*words, "--metadata", "etcd://127.0.0.1:1x/a@b").err
