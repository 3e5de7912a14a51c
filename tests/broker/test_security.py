"""Who may come in over the network: the shared token, TLS; and what is said to those who may not."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import aiohttp
import pytest

import engine
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthenticationError, ConnectError, InvalidConfigurationError
from engine.wire.connector import SocketConnector
from tests.kit.peer import Peer

TOKEN = "correct horse battery staple"
TLS = Path(__file__).parent / "tls"  # self-signed, for 127.0.0.1
CERTIFICATE = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])


async def url_of(broker) -> str:
    host, port = await broker.serve("127.0.0.1", 0)
    return f"engine://{host}:{port}"


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
async def test_a_wrong_token_is_refused(start_broker, token, caplog):
    caplog.set_level(logging.DEBUG)
    async with start_broker(auth_token=TOKEN) as broker:
        peer = await Peer.connect(broker, await url_of(broker), hello=False)
        with pytest.raises(AuthenticationError):
            await peer.hello(token=token)
        await asyncio.wait_for(peer.lost, 10)
        assert not broker.connections
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(broker.config)


async def test_before_the_handshake_nothing_is_done(start_broker):
    async with start_broker(auth_token=TOKEN) as broker:
        peer = await Peer.connect(broker, await url_of(broker), hello=False)
        with pytest.raises(ConnectionError):
            await peer.lookup("orders")
        assert await broker.admin.list_topics("public/default") == []


async def test_clients_with_the_token_do_everything(start_broker):
    async with start_broker(auth_token=TOKEN) as broker:
        await broker.serve_admin("127.0.0.1", 0)
        url = await url_of(broker)
        async with engine.AsyncClient(url, token=TOKEN) as client:
            producer = await client.producer("orders")
            await producer.send(b"x")
            assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]
        for token in (None, "wrong"):
            with pytest.raises(AuthenticationError):
                async with engine.AsyncClient(url, token=token):
                    pass


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), (TOKEN, 401), (f"Basic {TOKEN}", 401), ("Bearer ", 401),
     (f"Bearer {TOKEN}", 200), (f"bearer {TOKEN}", 200)],
)  # fmt: skip
async def test_the_admin_api_asks_for_it_too(start_broker, header, status):
    async with start_broker(auth_token=TOKEN) as broker, aiohttp.ClientSession() as session:
        await broker.serve_admin("127.0.0.1", 0)
        headers = {"Authorization": header} if header else {}
        for path in ("/admin/v2/scalable/public/default", "/metrics", "/openapi.json"):
            async with session.get(broker.admin_url + path, headers=headers) as answer:
                assert answer.status == status
                if status == 401:
                    assert (await answer.json())["code"] == AuthenticationError.code
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
        async with session.put(broker.admin_url + "/admin/v2/scalable/public/default/t", headers=headers) as answer:
            assert (answer.status == 204) == (status == 200)
        async with session.get(broker.admin_url + "/health", headers=headers) as answer:
            assert answer.status == 200, "for those who only want to know whether it runs"


async def test_within_the_process_no_token_is_asked_for(tmp_path):
    async with engine.open_async(tmp_path, listen="127.0.0.1:0", config={"auth_token": TOKEN}) as embedded:
        producer = await embedded.producer("orders")
        await producer.send(b"x")
        with pytest.raises(AuthenticationError):
            async with engine.AsyncClient(embedded.broker.service_url):
                pass


async def test_tls_on_both_doors(start_broker):
    async with start_broker(auth_token=TOKEN, **CERTIFICATE) as broker:
        await broker.serve_admin("127.0.0.1", 0)
        url = await url_of(broker)
        assert broker.admin_url.startswith("https://")
        async with engine.AsyncClient(url, token=TOKEN, tls=trusting()) as client:
            producer = await client.producer("orders")
            await producer.send(b"x" * 3_000_000)
            for i in range(2_000):
                producer.send_nowait(b"%d" % i)
            await producer.flush()
            consumer = await client.stream_consumer("orders", "s", initial_position="earliest")
            got = [await consumer.receive(timeout=20) for _ in range(2_001)]
            assert [m.value for m in got[1:]] == [b"%d" % i for i in range(2_000)]
            assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]


async def test_without_trust_or_without_tls_nothing_is_said(start_broker):
    async with start_broker(handshake_timeout=0.2, **CERTIFICATE) as broker:
        url = await url_of(broker)
        with pytest.raises(ConnectError, match=r"(?i)certificate"):
            async with engine.AsyncClient(url, tls=ssl.create_default_context()):
                pass
        with pytest.raises(ConnectError, match="does it require TLS"):
            async with engine.AsyncClient(url):
                pass
        host, port = url.removeprefix("engine://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), 10) == b"", "silence ends at the handshake's time limit"
        writer.close()
        assert not broker.connections
        async with engine.AsyncClient(url, tls=trusting()):
            assert len(broker.connections) == 1


async def test_a_broker_without_tls_is_not_talked_to_in_the_clear(broker):
    with pytest.raises(ConnectError, match="does it speak TLS"):
        await SocketConnector(tls=trusting(), connect_timeout=1.0).connect(await url_of(broker), lambda stream: None)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"auth_token": ""}, "auth_token"),
        ({"auth_token": 5}, "auth_token"),
        ({"auth_token": "a\nb"}, "auth_token"),
        ({"tls_cert": "x"}, "tls_cert.*together with tls_key"),
        ({"tls_key": "x"}, "tls_key.*together with tls_cert"),
        ({"tls_cert": 1, "tls_key": "x"}, "tls_cert"),
    ],
)
def test_what_is_wrong_is_named(values, text):
    with pytest.raises(InvalidConfigurationError, match=text):
        BrokerConfig(**values)


async def test_certificates_that_cannot_be_used_are_named(start_broker, tmp_path):
    (tmp_path / "junk.pem").write_text("junk")
    for cert, key in ((tmp_path / "missing.pem", TLS / "key.pem"), (tmp_path / "junk.pem", TLS / "key.pem")):
        async with start_broker(tls_cert=str(cert), tls_key=str(key)) as broker:
            with pytest.raises(InvalidConfigurationError, match=cert.name):
                await broker.serve("127.0.0.1", 0)
            with pytest.raises(InvalidConfigurationError, match=cert.name):
                await broker.serve_admin("127.0.0.1", 0)
