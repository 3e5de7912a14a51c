"""Several processes behind one port: the first frame names the process, and the parent passes bytes on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest

from engine.errors import AuthenticationError
from engine.sync import Client
from engine.wire.url import parse_url
from tests.cli.cli_server import stop_server
from tests.kit.children import children_of
from tests.processes.conftest import Start
from tests.processes.test_server import SEGMENTS, read, samples, send

TLS = Path(__file__).parents[1] / "broker" / "tls"

pytestmark = pytest.mark.timeout(300)


def test_one_port_with_tls_and_a_token(start: Start, tmp_path: Path):
    config = tmp_path / "engine.toml"
    config.write_text(f'auth_token = "s3cret"\ntls_cert = "{TLS / "cert.pem"}"\ntls_key = "{TLS / "key.pem"}"\n')
    server = start(tmp_path / "data", "--one-port", "--config", str(config))
    tls = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with Client(server.url, tls=tls, token="s3cret") as client:
        client.admin.create_topic("orders", segments=SEGMENTS)
        send(client, range(100))
        os.kill(children_of(server.process.pid)[1], signal.SIGKILL)
        send(client, range(100, 200))
        assert read(client, 200) == list(range(200))
        assert samples(client, "engine_proxy_in_bytes_total")["parent"] > 0
        assert samples(client, "engine_process_restarts_total") == {"0": 0, "1": 1}
        with socket.create_connection(parse_url(server.url)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(4096):  # an alert
                    pass
        assert samples(client, "engine_proxy_tls_handshake_failures_total")["parent"] == 1
    with pytest.raises(AuthenticationError), Client(server.url, tls=tls, token="guess") as stranger:
        stranger.producer("orders")
    code, said = stop_server(server)
    assert code == 0, said
    assert "Traceback" not in said
    assert "a TLS handshake with 127.0.0.1 failed, 1 in a row: HTTP_REQUEST" in said
