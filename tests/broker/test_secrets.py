"""Secrets are where they were put, and nowhere else: in no log, repr, error, metric, answer, audit line or file name.

Each secret has CANARY in it, in the form in which it is given and in each form in which it is kept.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import engine
from engine.broker.metrics.catalogue import metrics_text
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import AuthenticationError, ConnectError, EngineError
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.model.admin_requests import NO_BODY
from tests.broker.test_rights_matrix import ARGUMENTS
from tests.kit.certificates import Authority
from tests.kit.peer import listening

CANARY = "c4n4ry"
SHARED, ROLE, CLUSTER, WRONG = (f"{CANARY}-{what}-" + "x" * 32 for what in ("shared", "role", "cluster", "wrong"))
SIGNING = f"{CANARY}-signing-" + "y" * 32


class Secrets:
    """What is secret, in each of its forms."""

    def __init__(self) -> None:
        self.forms = {CANARY, base64.b64encode(SIGNING.encode()).decode().rstrip("=")}

    def add(self, text: str) -> None:
        """A key in PEM: each of its lines between the first and the last."""
        self.forms |= {line for line in text.splitlines() if line and not line.startswith("-----")}

    def seen_in(self, *shown: Any) -> list[str]:
        text = "\n".join(one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in shown)
        return [form for form in self.forms if form in text]


@pytest.fixture
def kept() -> Secrets:
    return Secrets()


@pytest.fixture
def settings(tmp_path: Path, kept: Secrets) -> dict[str, Any]:
    key = base64.urlsafe_b64encode(SIGNING.encode()).decode().rstrip("=")
    (tmp_path / "roles").write_text(line_of("ann", ROLE) + "\n")
    (tmp_path / "keys").write_text(json.dumps({"keys": [{"kty": "oct", "k": key}]}))
    certified = Authority(tmp_path).certify("127.0.0.1")
    kept.add(Path(certified.key).read_text())
    return {
        "auth_token": SHARED, "roles_file": str(tmp_path / "roles"), "jwt_keys": str(tmp_path / "keys"),
        "cluster_token": CLUSTER, "tls_cert": certified.cert, "tls_key": certified.key, "superusers": ["ann"],
        "audit_log": str(tmp_path / "audit"), "unix_users": [],
    }  # fmt: skip


def signed(secret: str, **more: Any) -> str:
    return jwt.encode({"sub": "ann", "exp": time.time() + 600, **more}, secret, "HS256")


async def answers(broker: Broker, token: str, most: int) -> list[str]:
    """Of so many operations that change nothing."""
    found: list[str] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        for row in ROWS:
            request = row.request({p.name: ARGUMENTS[p.name] if p.required else p.default for p in row.parameters})
            if request.verb != "GET" or len(found) == most:
                continue
            url = aiohttp.client.URL(f"{broker.admin_url}{request.path}", encoded=True)
            body = {} if request.body is NO_BODY else {"json": request.body}
            async with session.request(request.verb, url, ssl=False, **body) as answer:
                found.append(f"{answer.headers} {await answer.text()}")
    return found


def files_below(path: Path) -> list[Any]:
    """Names, and what is in them but for those that are there to hold a secret."""
    found = list(path.rglob("*"))
    held = [p for p in found if p.is_file() and p.name != "keys" and p.suffix not in (".pem", ".key")]
    return [*map(str, found), *(p.read_bytes() for p in held)]


async def test_secrets_are_shown_nowhere(
    start_broker: Any, settings: dict[str, Any], kept: Secrets, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    private = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    kept.add(pem.decode())
    shown: list[Any] = []
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with start_broker(**settings) as broker:
        url = (await listening(broker)).replace("engine:", "engines:")
        await broker.serve_admin("127.0.0.1", 0)
        for token in (SHARED, ROLE, signed(SIGNING)):
            async with engine.AsyncClient(url, token=token, tls=tls) as client:
                producer = await client.producer("orders", encryption_keys={"k": public})
                await producer.send(b"x", key="k")
                consumer = await client.stream_consumer(
                    "orders", "s", initial_position="earliest", decryption_keys={"k": pem}
                )
                await consumer.receive(timeout=20)
                shown += [repr(one) for one in (client, producer, consumer, client._pool.options)]
        for token in (WRONG, signed(WRONG), signed(SIGNING, exp=1)):
            with pytest.raises(AuthenticationError) as caught:
                async with engine.AsyncClient(url, token=token, tls=tls):
                    pass
            shown.append(repr(caught.value))
        for bad in (f"engine://{CANARY}@127.0.0.1:1", f"engine://{CANARY}@[", f"engine://{CANARY}/@x:9/?a"):
            with pytest.raises(EngineError) as refused:
                async with engine.AsyncClient(bad, operation_timeout=0.2):
                    pass
            shown.append(refused.value)
        shown += await answers(broker, SHARED, len(ROWS))
        shown += await answers(broker, WRONG, 2)  # each is slowed
        shown += [metrics_text(broker), repr(broker.config), str(broker.config), repr(broker), broker.rights.denials]
        shown += [repr(c.principal) for c in broker.connections]
    shown += [caplog.text, *capfd.readouterr(), (tmp_path / "audit").read_text()]
    shown += files_below(tmp_path)
    for at, one in enumerate(shown):
        assert not kept.seen_in(one), f"{at}: {str(one)[:2_000]}"
    assert len(shown) > 60
    gc.collect()  # nothing that ends late says more
    assert not kept.seen_in(caplog.text, *capfd.readouterr())


def test_the_search_finds_what_is_shown(kept: Secrets) -> None:
    assert kept.seen_in(f"refused the token {ROLE}")
    assert kept.seen_in(base64.b64encode(SIGNING.encode()))
    assert not kept.seen_in(repr(ConnectError("nothing")))
