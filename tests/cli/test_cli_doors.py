"""How `engine serve` and `engine proxy` are started and told things: tokens that no process list shows, signals."""

from __future__ import annotations

import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.cli_server import Server, start_server, stop_server

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


@pytest.mark.parametrize("option", ["--token", "--auth-token"])
def test_a_proxy_takes_no_secret_as_an_argument(engine: Run, option: str) -> None:
    result = engine("proxy", "--broker", "engine://127.0.0.1:1", option, "s3cret")
    assert result.code == 2
    assert f"{option}-file" in result.err
    assert "s3cret" not in result.err


def test_a_command_warns_of_a_secret_as_an_argument(
    tmp_path: Path, engine: Run, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(tmp_path / "data", "--auth-token-file", str(secret))
    try:
        listed = ("topics", "list", "--url", server.url)
        result = engine(*listed, "--token", "s3cret")
        assert (result.code, result.err.count("\n")) == (0, 1)
        assert "--token-file" in result.err
        assert "s3cret" not in result.err
        result = engine(*listed, "--token-file", secret)
        assert (result.code, result.err) == (0, "")
        monkeypatch.setenv("ENGINE_TOKEN", "s3cret")
        result = engine(*listed)
        assert (result.code, result.err) == (0, "")
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
