"""Certificates of clients: which role one proves, over the wire and over HTTP, and what ends it."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights.principal import Kind, Proof
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthenticationError, AuthorizationError, ConnectError, InvalidConfigurationError
from engine.testing.maps import over_maps
from engine.wire.commands import Command
from engine.wire.connector import SocketConnector
from tests.kit.certificates import Authority, Certified
from tests.kit.peer import Peer, listening


@pytest.fixture
def brokers_ca(tmp_path) -> Authority:
    return Authority(tmp_path, "brokers")


@pytest.fixture
def clients_ca(tmp_path) -> Authority:
    return Authority(tmp_path, "clients")


@pytest.fixture
def start(start_broker, brokers_ca, clients_ca):
    def begin(**more):
        cert, key = brokers_ca.certify("127.0.0.1")
        return start_broker(**{"tls_cert": cert, "tls_key": key, "tls_client_ca": clients_ca.file, **more})

    return begin


def showing(trusted: Authority, certified: Certified | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusted.file)
    if certified is not None:
        context.load_cert_chain(*certified)
    return context


async def connected(url: str, context: ssl.SSLContext, **hello: Any) -> tuple[Peer, dict[str, Any]]:
    peer = Peer()
    await SocketConnector(tls=context).connect(url, over_maps(peer._made))
    return peer, await peer.hello(**hello)


@pytest.mark.parametrize(
    ("where", "made"),
    [("subject", {"hosts": ("laptop.example.org",), "subject": "ann"}), ("san", {"hosts": ("ann",)})],
)
async def test_a_certificate_names_a_role(start, brokers_ca, clients_ca, where, made):
    own = clients_ca.certify(*made["hosts"], subject=made.get("subject"))
    context = showing(brokers_ca, own)
    async with start(tls_client_role=where) as broker, aiohttp.ClientSession() as session:
        await broker.admin.grant("public/default", "ann", ["produce"])
        url = await listening(broker)
        async with engine.AsyncClient(url.replace("engine:", "engines:"), tls=context) as ann:
            producer = await ann.producer("orders")
            await producer.send(b"x")
            with pytest.raises(AuthorizationError, match="consume is needed on 'public/default/orders'"):
                await ann.queue_consumer("orders", "s")
        await broker.serve_admin("127.0.0.1", 0)
        for path, status in (("/admin/v2/scalable/public/default", 200), ("/metrics", 403)):
            async with session.get(broker.admin_url + path, ssl=context) as answer:
                assert answer.status == status
        async with session.get(broker.admin_url + "/metrics", ssl=showing(brokers_ca)) as answer:
            assert answer.status == 401


async def test_what_proves_no_role_is_refused(start, tmp_path, brokers_ca, clients_ca):
    async with start(cluster_tls_ca=brokers_ca.file) as broker:
        url = await listening(broker)
        with pytest.raises(AuthenticationError, match="a token is required"):
            await connected(url, showing(brokers_ca))
        with pytest.raises(AuthenticationError, match="common name of its subject"):
            await connected(url, showing(brokers_ca, clients_ca.certify("nobody")))
        stranger = Authority(tmp_path, "strangers").certify("laptop.example.org", subject="ann")
        with pytest.raises((ConnectError, ConnectionError)):
            await connected(url, showing(brokers_ca, stranger))
        other_broker = brokers_ca.certify("laptop.example.org", subject="ann")
        with pytest.raises(AuthenticationError, match="a token is required"):  # that authority is of brokers alone
            await connected(url, showing(brokers_ca, other_broker))
        assert broker.doors.attempts.failures == 3


async def test_a_client_with_the_name_of_a_broker_is_none(start, brokers_ca, clients_ca):
    """Its certificate is of the authority of clients, and the port trusts both."""
    own = clients_ca.certify("127.0.0.1", subject="ann")
    async with start(cluster_tls_ca=brokers_ca.file) as broker:
        url = await listening(broker)
        peer, _ = await connected(url, showing(brokers_ca, own), broker=url)
        (connection,) = broker.connections
        assert (connection.principal.kind, connection.principal.role) == (Kind.ROLE, "ann")
        with pytest.raises(AuthorizationError):
            await peer.ask(Command.BROKER_CALL, target="segment", method="open")
        peer.stream.close()
        await peer.lost
        await connected(url, showing(brokers_ca, brokers_ca.certify("127.0.0.1")), broker=url)
        (connection,) = broker.connections
        assert (connection.principal.kind, connection.principal.proof) == (Kind.BROKER, Proof.CERTIFICATE)


async def test_a_certificate_may_be_required_of_all(start, brokers_ca, clients_ca, tmp_path):
    own = clients_ca.certify("laptop.example.org", subject="ann")
    async with start(tls_client_required=True) as broker, aiohttp.ClientSession() as session:
        url = await listening(broker)
        with pytest.raises((ConnectError, ConnectionError)):
            await connected(url, showing(brokers_ca))
        await connected(url, showing(brokers_ca, own))
        await broker.serve_admin("127.0.0.1", 0)
        with pytest.raises(aiohttp.ClientError):
            await session.get(broker.admin_url + "/health", ssl=showing(brokers_ca))
        async with session.get(broker.admin_url + "/health", ssl=showing(brokers_ca, own)) as answer:
            assert answer.status == 200


async def test_a_connection_ends_with_its_certificate_or_the_authority(start, tmp_path, brokers_ca, clients_ca):
    first = clients_ca.text
    second = Authority(tmp_path, "second")
    both = tmp_path / "both.pem"
    both.write_text(first + second.text)
    async with start(tls_client_ca=str(both)) as broker:
        url = await listening(broker)
        ann, said = await connected(url, showing(brokers_ca, clients_ca.certify("a", subject="ann")))
        assert said["token_left"] > 0  # until the certificate's own end
        bob, _ = await connected(url, showing(brokers_ca, second.certify("b", subject="bob")))
        both.write_text(second.text)
        await ann.lost
        assert not bob.lost.done()
        with pytest.raises(AuthenticationError):
            await connected(url, showing(brokers_ca, clients_ca.certify("a", subject="ann")))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca must be .* tls_cert"),
        ({"tls_client_required": True}, "tls_client_required must be false without tls_client_ca"),
        ({"tls_client_role": "cn"}, "tls_client_role must be subject or san"),
        ({"unix_users": ["ann"]}, "unix_users must be a list of users"),
        ({"unix_users": ["ann=a", "ann=b"]}, "each once"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(InvalidConfigurationError, match=words):
        BrokerConfig(**settings)


async def test_a_file_without_certificates_is_named(start, tmp_path):
    path = tmp_path / "empty.pem"
    path.write_text("")
    with pytest.raises(InvalidConfigurationError, match=r"tls_client_ca .*empty\.pem must have certificates"):
        async with start(tls_client_ca=str(path)):
            pass
