"""A proxy that speaks for its clients: the broker believes it with the right to, and sees the client alone."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

import engine
from engine.broker.rights.token_file import line_of
from engine.errors import AuthenticationError, AuthorizationError, InvalidConfigurationError, UnsupportedError
from engine.proxy.config import ProxyConfig
from engine.testing.clock import FakeClock
from engine.wire.commands import Command
from tests.kit.certificates import Authority
from tests.kit.peer import Peer, until

GATE, ANN, ROOT = "token-of-gate", "token-of-ann", "token-of-root"
TOPICS = "/admin/v2/scalable/public/default"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def roles(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker."""
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("gate", GATE), ("ann", ANN), ("root", ROOT))))
    return {"roles_file": str(path), "superusers": ["root"], "audit_log": str(tmp_path / "audit")}


@pytest.fixture
def speaks(serve, authority: Authority, roles: dict[str, Any]):
    """Broker and proxy; the proxy takes certificates of clients."""
    cert, key = authority.certify("127.0.0.1")
    own = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.file}
    return lambda: serve(roles, broker_token=GATE, speaks_for_clients=True, **own)


def showing(authority: Authority, role: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if role is not None:
        context.load_cert_chain(*authority.certify("laptop.example.org", name=role, subject=role))
    return context


async def test_a_client_behind_a_proxy_is_what_it_proves(speaks, authority: Authority, tmp_path: Path) -> None:
    async with speaks() as front:
        admin, url = front.broker.admin, front.url.replace("engine:", "engines:")
        await admin.grant("*", "gate", ["proxy"])
        await admin.grant("public/default", "ann", ["produce"])
        await admin.grant("public/default", "bob", ["consume"])
        by_token = {"token": ANN, "tls": showing(authority)}
        by_certificate = {"tls": showing(authority, "ann")}
        for given in (by_token, by_certificate):
            async with engine.AsyncClient(url, **given) as ann:
                producer = await ann.producer("orders")
                await producer.send(b"x")
                with pytest.raises(AuthorizationError, match="consume"):
                    await ann.queue_consumer("orders", "s")
        async with engine.AsyncClient(url, tls=showing(authority, "bob")) as bob:
            consumer = await bob.queue_consumer("orders", "s", initial_position="earliest")
            assert (await consumer.receive()).value == b"x"
            with pytest.raises(AuthorizationError, match="produce"):
                await (await bob.producer("orders")).send(b"y")
        with pytest.raises(AuthenticationError, match="a token or a certificate is required"):
            async with engine.AsyncClient(url, tls=showing(authority)):
                pass
        assert front.proxy.doors.attempts.failures
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert {(line["role"], line["proof"], line.get("proxy")) for line in lines} == {
        ("ann", "token file", "gate"), ("ann", "proxy", "gate"), ("bob", "proxy", "gate")
    }  # fmt: skip
    assert all(line["peer"].startswith("tcp://127.0.0.1") for line in lines)


async def test_rest_over_the_proxy_has_the_clients_rights(speaks, authority: Authority) -> None:
    async with speaks() as front, aiohttp.ClientSession() as session:
        await front.broker.admin.grant("*", "gate", ["proxy", "operate"])
        await front.broker.admin.grant("public/default", "ann", ["lookup"])
        base, ann, nobody = front.admin_url.replace("http:", "https:"), showing(authority, "ann"), showing(authority)
        as_root = {"Engine-Proxy-Authorization": f"Bearer {ROOT}", "Engine-Proxy-Role": "root"}

        async def status(path: str, context: ssl.SSLContext, **headers: str) -> int:
            async with session.get(base + path, ssl=context, headers=headers) as answer:
                return answer.status

        assert await status(TOPICS, ann) == 200
        assert await status(TOPICS, nobody) == 401
        assert await status(TOPICS, nobody, Authorization=f"Bearer {ANN}") == 200
        assert await status("/admin/v2/brokers", ann) == 403  # the proxy's own rights are not its clients'
        assert await status("/admin/v2/brokers", ann, **as_root) == 403  # nor what a client says in a proxy's words
        for path in ("/metrics", "/admin/v2/proxy/configuration"):  # the proxy's own
            assert await status(path, ann) == 403
            assert await status(path, nobody, Authorization=f"Bearer {ROOT}") == 200
            assert await status(path, nobody, Authorization="Bearer guess") == 401
        assert await status("/health", nobody) == 200


@pytest.mark.parametrize("path", [TOPICS, "/metrics", "/admin/v2/proxy/configuration"])
async def test_its_token_is_not_sent_in_plain_text(speaks, authority: Authority, path: str) -> None:
    """Its own, where the client has shown a certificate, and no token."""
    async with speaks() as front, aiohttp.ClientSession() as session:
        await front.broker.admin.grant("*", "gate", ["proxy"])
        await front.broker.admin.grant("*", "ann", ["superuser"])
        base, ann = front.admin_url.replace("http:", "https:"), showing(authority, "ann")
        assert await front.proxy.admin_urls()
        async with session.get(base + path, ssl=ann) as answer:
            assert answer.status == 200
        front.proxy.tls_brokers = ssl.create_default_context()
        async with session.get(base + path, ssl=ann) as answer:
            assert answer.status == 503
            assert "must be an https:// address" in await answer.text()


async def test_without_the_right_a_proxy_is_not_believed(speaks, authority: Authority) -> None:
    async with speaks() as front:
        url = front.url.replace("engine:", "engines:")
        await front.broker.admin.grant("public/default", "ann", ["admin"])
        for given in ({"tls": showing(authority, "ann")}, {"tls": showing(authority), "token": ANN}):
            with pytest.raises(AuthorizationError, match="the right proxy is needed on the cluster"):
                async with engine.AsyncClient(url, **given) as client:
                    await client.list_topics()
        assert front.broker.rights.denials >= 2


async def test_a_right_that_is_taken_from_the_proxy_ends_what_it_spoke_for(speaks, authority: Authority) -> None:
    async with speaks() as front:
        admin = front.broker.admin
        await admin.grant("*", "gate", ["proxy"])
        await admin.grant("public/default", "ann", ["produce"])
        url = front.url.replace("engine:", "engines:")
        async with engine.AsyncClient(url, tls=showing(authority, "ann")) as ann:
            producer = await ann.producer("orders")
            await producer.send(b"x")
            await admin.revoke("*", "gate")
            await until(lambda: not front.broker.connections)
            with pytest.raises(AuthorizationError):
                await producer.send(b"y")


@pytest.mark.parametrize("token", [None, ANN])
async def test_a_client_does_not_pass_for_a_proxy(serve, roles, token: str | None) -> None:
    async with serve(roles) as front:
        peer = await Peer.connect(front.broker, front.direct_url, hello=False)
        with pytest.raises((AuthenticationError, AuthorizationError)):
            await peer.hello(proxy_token=token, role="root", forwarded="tcp://192.0.2.1:1")
        peer = await Peer.connect(front.broker, front.url, hello=False)  # the proxy drops what its client says so
        with pytest.raises(AuthenticationError):
            await peer.hello(proxy_token=ROOT, role="root")


async def test_a_broker_without_roles_lets_nobody_speak_for_others(serve) -> None:
    async with serve({}) as front:
        peer = await Peer.connect(front.broker, front.direct_url, hello=False)
        with pytest.raises(UnsupportedError, match="without roles"):
            await peer.hello(proxy_token="x", forwarded="tcp://192.0.2.1:1")


async def test_a_token_is_renewed_over_the_proxy(speaks, authority: Authority) -> None:
    async with speaks() as front:
        await front.broker.admin.grant("*", "gate", ["proxy"])
        peer = await Peer.connect(front.broker, front.direct_url, hello=False)
        await peer.hello(proxy_token=GATE, token=ANN, forwarded="tcp://192.0.2.1:1")
        await peer.ask(Command.AUTHENTICATE, token=ANN)
        (connection,) = front.broker.connections
        assert str(connection.principal.speaker) == "gate"
        with pytest.raises(AuthenticationError, match="the connection's role"):
            await peer.ask(Command.AUTHENTICATE, token=ROOT)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speaks_for_clients": True, "auth_token": "x"}, "auth_token must be unset"),
        ({"tls_cert": "a", "tls_key": "b", "tls_client_ca": "c"}, "tls_client_ca must be .* speaks_for_clients"),
        ({"broker_tls_cert": "a"}, "broker_tls_key"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        ProxyConfig(brokers=("engine://127.0.0.1",), **settings)


async def test_a_connection_ends_with_the_certificate_that_the_proxy_has_verified(
    speaks, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with speaks() as front:
        await front.broker.admin.grant("*", "gate", ["proxy"])
        await front.broker.admin.grant("public/default", "ann", ["produce"])
        clients, url = front.proxy.clients, front.url.replace("engine:", "engines:")
        async with engine.AsyncClient(url, tls=showing(authority, "ann")) as ann:
            producer = await ann.producer("orders")
            await producer.send(b"x")
            expires = certificate_expiry(authority)
            assert all(one._expiry is not None for one in front.proxy._sessions)
        await until(lambda: not front.proxy._sessions)
        near, ahead = FakeClock(), FakeClock()
        near.time_ms = lambda: int(expires * 1000) - 300
        ahead.time_ms = lambda: int(expires * 1000)
        monkeypatch.setattr(clients, "_clock", near)
        async with engine.AsyncClient(url, tls=showing(authority, "ann")) as ann:
            await ann.producer("orders")
            monkeypatch.setattr(clients, "_clock", ahead)
            await until(lambda: not front.proxy._sessions)  # it has not asked for anything
        with pytest.raises(AuthenticationError, match="the certificate has expired"):
            async with engine.AsyncClient(url, tls=showing(authority, "ann")) as ann:
                await ann.producer("orders")


def certificate_expiry(authority: Authority) -> float:
    """Wall-clock seconds; all certificates of a test's authority end at the same time."""
    found = x509.load_pem_x509_certificate(Path(authority.certify("x").cert).read_bytes())
    return found.not_valid_after_utc.timestamp()
