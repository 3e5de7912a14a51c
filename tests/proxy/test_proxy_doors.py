"""Who may come in over a proxy, by which door, and what is said to those who may not."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import aiohttp
import pytest

import engine
from engine.broker.server import Broker
from engine.cli.reloading import reload_broker, reload_proxy
from engine.errors import AuthenticationError, ConnectError, InvalidConfigurationError, ProtocolError, UnsupportedError
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.testing.maps import encode_bytes
from engine.wire.commands import FEATURES, Command
from engine.wire.url import parse_url
from tests.kit.certificates import Authority
from tests.kit.peer import Peer
from tests.proxy.proxies import Served, free_url, until

OURS, THEIRS = "what the clients say", "what the brokers ask for"
TLS = Path(__file__).parent.parent / "broker" / "tls"  # self-signed, for 127.0.0.1
CERTIFICATE = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
TOPICS = "/admin/v2/scalable/public/default"


async def hello(front: Served, **changes: object) -> dict:
    peer = await Peer.connect(front.broker, front.url, hello=False)
    return await peer.hello(**changes)


async def test_the_clients_own_token_is_handed_on(serve) -> None:
    async with serve({"auth_token": THEIRS}) as front:
        assert (await hello(front, token=THEIRS))["proxied"]
        for token in (None, "wrong"):
            with pytest.raises(AuthenticationError):
                await hello(front, token=token)


async def test_a_token_of_its_own_on_either_side(serve, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve({"auth_token": THEIRS}, auth_token=OURS, broker_token=THEIRS) as front:
        for token in (None, THEIRS, "wrong"):
            with pytest.raises(AuthenticationError):
                await hello(front, token=token)
        assert not front.broker.connections
        async with engine.AsyncClient(front.url, token=OURS) as client:
            producer = await client.producer("orders")
            await producer.send(b"x")
            assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]
        async with aiohttp.ClientSession() as session:
            for token, status in ((OURS, 200), (THEIRS, 401), ("", 401)):
                headers = {"Authorization": f"Bearer {token}"}
                async with session.get(front.admin_url + TOPICS, headers=headers) as answer:
                    assert answer.status == status
            async with session.get(front.admin_url + "/health") as answer:
                assert answer.status == 200
    assert OURS not in caplog.text
    assert THEIRS not in caplog.text


async def test_tls_on_both_sides(serve) -> None:
    trusting = ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])
    async with serve(CERTIFICATE, broker_tls_ca=CERTIFICATE["tls_cert"], **CERTIFICATE) as front:
        async with engine.AsyncClient(front.url, tls=trusting) as client:
            producer = await client.producer("orders")
            await producer.send(b"x" * 3_000_000)
            consumer = await client.stream_consumer("orders", "s", initial_position="earliest")
            message = await consumer.receive(timeout=20)
            assert message is not None
            assert message.value == b"x" * 3_000_000
            assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]
        with pytest.raises(ConnectError):
            async with engine.AsyncClient(front.url):
                pass


async def test_whom_it_trusts_is_read_again_while_it_runs(serve, tmp_path: Path) -> None:
    """Over the wire and REST: an authority that comes, and one that goes, in the file of the same name."""
    old, new, trusted = Authority(tmp_path, "old"), Authority(tmp_path, "new"), tmp_path / "trusted.pem"
    trusted.write_text(old.text)
    pair = {name: tmp_path / f"broker.{name}" for name in ("cert", "key")}

    def certify(authority: Authority, broker: Broker | None = None) -> None:
        made = authority.certify("127.0.0.1")
        for name, path in pair.items():
            path.write_bytes(Path(getattr(made, name)).read_bytes())
        if broker is not None:
            reload_broker(broker, broker.config)

    certify(old)
    files = {f"tls_{name}": str(path) for name, path in pair.items()}
    async with serve(files, broker_tls_ca=str(trusted)) as front:

        async def works() -> None:
            async with engine.AsyncClient(front.url, operation_timeout=20) as client:
                async with client.producer("orders") as producer:
                    await producer.send(b"x")
                await client.admin.list_topics("public/default")

        async def is_refused() -> None:
            with pytest.raises(ConnectError, match="certificate"):
                async with engine.AsyncClient(front.url, operation_timeout=1.0):
                    pass

        async with engine.AsyncClient(front.url) as there:
            producer = await there.producer("orders")
            certify(new, front.broker)
            await is_refused()
            trusted.write_text(old.text + new.text)
            reload_proxy(front.proxy, front.proxy.config)
            await works()
            trusted.write_text("nothing")
            with pytest.raises(InvalidConfigurationError, match="broker_tls_ca"):
                reload_proxy(front.proxy, front.proxy.config)
            await works()
            trusted.write_text(new.text)
            reload_proxy(front.proxy, front.proxy.config)
            certify(old, front.broker)  # which is trusted no more
            await is_refused()
            await producer.send(b"a connection that is there stays")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"brokers": ()}, "brokers"),
        ({"brokers": "engine://a"}, "brokers"),
        ({"brokers": ("http://a",)}, "brokers"),
        ({"broker_token": "x"}, "auth_token"),
        ({"tls_cert": "a.pem"}, "tls_cert"),
        ({"auth_token": "ü"}, "auth_token"),
        ({"topic_list_heap_max": 7}, "topic_list_heap_max"),
        ({"allow": "engine://a"}, "allow"),
        ({"connections_max": 0}, "connections_max"),
    ],
)
def test_settings_that_cannot_be(settings: dict, key: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=key):
        ProxyConfig(**{"brokers": ("engine://a",), **settings})


def test_settings_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(
        '[proxy]\nbrokers = ["engine://a"]\nmaxTopicListInFlightHeapMemSizeMB = 200\nconnectionsMax = 7\n'
        "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis = 1500\n"
    )
    config = ProxyConfig.load(file, auth_token=None)
    assert config.brokers == ("engine://a:6650",)
    assert (config.topic_list_heap_max, config.topic_list_direct_timeout) == (200 * 2**20, 1.5)
    assert config.connections_max == 7
    assert ProxyConfig.load(file, connections_max=9).connections_max == 9
    for text in ("brokers = 3", "nothing = 1", "[proxy", "maxTopicListInFlightHeapMemSizeMB = 'x'"):
        file.write_text(text)
        with pytest.raises(InvalidConfigurationError):
            ProxyConfig.load(file)
    with pytest.raises(InvalidConfigurationError, match="cannot be read"):
        ProxyConfig.load(tmp_path / "nothing.toml")
    with pytest.raises(InvalidConfigurationError, match="broker_tls_ca"):
        Proxy(ProxyConfig(brokers=("engine://a",), broker_tls_ca=str(file)))


# -- clients that cannot be helped -------------------------------------------------------------------------------------


async def test_a_client_that_knows_no_proxies_is_told(front: Served) -> None:
    with pytest.raises(UnsupportedError, match="feature proxy"):
        await hello(front, features=[f for f in FEATURES if f != "proxy"])


async def test_a_proxy_in_front_of_a_proxy_is_told(front: Served) -> None:
    outer = Proxy(ProxyConfig(brokers=(front.url,)))
    host, port = await outer.serve("127.0.0.1", 0)
    try:
        peer = await Peer.connect(front.broker, f"engine://{host}:{port}", hello=False)
        with pytest.raises(UnsupportedError, match="not proxies"):
            await peer.hello()
    finally:
        await outer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        bytes(64),
        encode_bytes(Command.PING, {}),
        encode_bytes(Command.CONNECT, {"magic": "other", "protocol": 1, "features": [], "client": "x"}),
        encode_bytes(Command.CONNECT, {"magic": 7}),
        encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(100_000))[:200],
    ],
)
async def test_a_first_word_that_is_none(front: Served, said: bytes, caplog) -> None:
    neighbour = await Peer.connect(front.broker, front.url)
    reader, writer = await asyncio.open_connection(*parse_url(front.url))
    writer.write(said)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer[4] == Command.ERROR
    assert b"Traceback" not in answer
    assert "is closed:" in caplog.text
    neighbour.send(Command.PING, {})
    await neighbour.take(Command.PONG)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, (2**31).to_bytes(4, "little") + b"\x16" + bytes(20)])
async def test_garbage_later_ends_that_connection_alone(front: Served, garbage: bytes, caplog) -> None:
    neighbour, peer = [await Peer.connect(front.broker, front.url) for _ in range(2)]
    peer.stream.transport.write(garbage)
    _, header, _ = await peer.take(Command.ERROR)
    assert header["code"] == ProtocolError.code
    await peer.lost
    assert "is closed:" in caplog.text
    await until(lambda: len(front.broker.connections) == 1)
    neighbour.send(Command.PING, {})
    await neighbour.take(Command.PONG)


async def test_headers_that_only_the_broker_looks_into(front: Served, caplog) -> None:
    """It ends its connection, and so the client's."""
    peer = await Peer.connect(front.broker, front.url)
    peer.send(Command.SEND, {"producer_id": "one", "entries": 1})
    await asyncio.wait_for(peer.lost, 20)
    assert "over the proxy" in caplog.text
    assert front.proxy.statistics().sessions == 0


async def test_silence_ends_at_the_handshakes_time_limit(serve) -> None:
    async with serve(handshake_timeout=0.1) as front:
        reader, writer = await asyncio.open_connection(*parse_url(front.url))
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert b"did not complete the handshake within 0.1 s" in answer


async def test_no_more_connections_than_allowed(serve) -> None:
    async with serve(connections_max=2) as front:
        peers = [await Peer.connect(front.broker, front.url) for _ in range(2)]
        with pytest.raises(ConnectError, match="maximum of 2"):
            await hello(front)
        await peers[0].close()
        await until(lambda: front.proxy.statistics().sessions == 1)
        assert (await hello(front))["proxied"]


# -- back-pressure -----------------------------------------------------------------------------------------------------


async def test_who_does_not_read_holds_little_memory(front: Served) -> None:
    """32 MiB wait for a client; the proxy has no more of them than its marks allow, and the rest is the broker's."""
    async with engine.AsyncClient(front.direct_url) as client:
        producer = await client.producer("orders")
        for _ in range(32):
            await producer.send(bytes(2**20))
    peer = await Peer.connect(front.broker, front.url)
    consumer = await peer.consumer(await peer.segment("orders"), "reader", None, credit=0, start=0)
    peer.stop_reading()
    peer.send(Command.FLOW, {"consumer_id": consumer, "messages": 10**6, "bytes": 2**30})
    [session] = front.proxy._sessions
    await until(lambda: session.client.is_full)
    for _ in range(50):
        await asyncio.sleep(0)
        assert front.proxy.statistics().unsent_bytes < 2**20
    peer.resume_reading()
    got = 0
    while got < 32 * 2**20:
        _, _, payload = await peer.take(Command.MESSAGE)
        got += len(payload)
    assert front.proxy.statistics().bytes_out > 32 * 2**20


# -- HTTP --------------------------------------------------------------------------------------------------------------


async def test_health_and_readiness(serve) -> None:
    async with serve() as front, aiohttp.ClientSession() as session:
        async with session.get(front.admin_url + "/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        await front.broker.close()
        async with session.get(front.admin_url + "/ready") as answer:
            assert answer.status == 503
            assert "connection refused" in (await answer.json())["reasons"][0]
        async with session.get(front.admin_url + "/health") as answer:
            assert answer.status == 200


async def test_a_stranger_learns_of_readiness_yes_or_no(serve, caplog: pytest.LogCaptureFixture) -> None:
    """Where clients need a token, addresses of brokers are for the log, once."""
    async with serve(auth_token=OURS) as front, aiohttp.ClientSession() as session:
        await front.broker.close()
        for _ in range(2):
            async with session.get(front.admin_url + "/ready") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "not ready"})
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("not ready")]
    assert len(said) == 1
    assert front.direct_url.removeprefix("engine://") in said[0]


async def test_the_admin_api_is_relayed(front: Served) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{front.admin_url}{TOPICS}/a%3Fb", json={"segments": 3}) as answer:
            assert answer.status == 204
        async with session.get(f"{front.admin_url}{TOPICS}/a%3Fb") as answer:
            assert len((await answer.json())["segments"]) == 3
        async with session.get(f"{front.admin_url}{TOPICS}/missing?x=1") as answer:
            assert (answer.status, (await answer.json())["code"]) == (404, engine.NotFoundError.code)
        json = {"Content-Type": "application/json"}
        async with session.put(f"{front.admin_url}{TOPICS}/c", data=b"{not json", headers=json) as answer:
            assert answer.status == 400
        await front.broker.close()
        async with session.get(f"{front.admin_url}{TOPICS}") as answer:
            assert (answer.status, (await answer.json())["code"]) == (503, ConnectError.code)


async def test_metrics_have_every_name_of_the_specification(front: Served) -> None:
    await hello(front)
    async with aiohttp.ClientSession() as session, session.get(front.admin_url + "/metrics") as answer:
        text = await answer.text()
    assert "engine_proxy_connections 1.0\n" in text
    names = "memory_used_bytes memory_limit_bytes queue_size queue_max_size wait_time_ms_count timeout_total"
    for pool in ("heap", "direct"):
        for name in names.split():
            assert f"engine_proxy_topic_list_{pool}_{name}{{" in text


async def test_a_proxy_without_brokers_says_so() -> None:
    proxy = Proxy(ProxyConfig(brokers=(free_url(),)))
    host, port = await proxy.serve("127.0.0.1", 0)
    _, admin = await proxy.serve_admin("127.0.0.1", 0)
    try:
        with pytest.raises(ConnectError, match="connection refused"):
            async with engine.AsyncClient(f"engine://{host}:{port}"):
                pass
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{admin}{TOPICS}") as answer:
            assert "broker_admin" in (await answer.json())["reason"]
    finally:
        await proxy.close()
