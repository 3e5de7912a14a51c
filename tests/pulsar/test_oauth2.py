"""OAuth 2.0 of Apache Pulsar's client: the token that its issuer gives it is a JSON Web Token of a role."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import jwt
import pulsar
import pytest

import engine
from tests.pulsar.conftest import connect, service_url

SECRET = "0123456789abcdef0123456789abcdef"
TOPIC = "persistent://public/default/orders"


@contextmanager
def issuer() -> Iterator[tuple[str, list[str]]]:
    """The address of one, and the roles for which it was asked, by the `client_credentials` grant."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"token_endpoint": f"{url}/token"})

        def do_POST(self) -> None:
            said = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            (role,), (audience,) = said["client_id"], said["audience"]
            asked.append(role)
            claims = {"sub": role, "aud": audience, "exp": time.time() + 600}
            self.answer(
                {"access_token": jwt.encode(claims, SECRET, "HS256"), "expires_in": 600, "token_type": "Bearer"}
            )

        def answer(self, found: dict[str, object]) -> None:
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_role_of_a_client_is_that_of_its_token(tmp_path: Path):
    keys = tmp_path / "keys"
    secret = base64.urlsafe_b64encode(SECRET.encode()).rstrip(b"=").decode()
    keys.write_text(json.dumps({"keys": [{"kty": "oct", "k": secret}]}))
    config = {"jwt_keys": str(keys), "jwt_audience": "engine", "superusers": ["root"]}
    with issuer() as (url, asked), engine.open(":memory:", listen="127.0.0.1:0", config=config) as served:
        served.admin.create_topic(TOPIC)
        served.admin.grant("public/default/persistent:orders", "ann", ["produce", "lookup"])

        def connected(role: str, audience: str = "engine") -> pulsar.Client:
            credentials = tmp_path / f"{role}.json"
            credentials.write_text(json.dumps({"client_id": role, "client_secret": "s"}))
            said = {"issuer_url": url, "private_key": f"file://{credentials}", "audience": audience}
            return connect(service_url(served), 5, authentication=pulsar.AuthenticationOauth2(json.dumps(said)))

        ann = connected("ann")
        ann.create_producer(TOPIC).send(b"v")
        ann.close()
        for stranger in (connected("bob"), connected("ann", "another")):
            with pytest.raises(pulsar.PulsarException):
                stranger.create_producer(TOPIC)
            stranger.close()
        assert set(asked) == {"ann", "bob"}
        assert served.table(TOPIC)["value"].to_pylist() == [b"v"]
