"""No port on an address that other machines reach without a token; tokens in files; reading both again."""

from __future__ import annotations

import logging
import random
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import check_exposed
from engine.cli.reloading import reload_broker, reload_proxy
from engine.client.admin.admin_http import HttpAdmin
from engine.client.base.options import ClientOptions
from engine.clock import SystemClock
from engine.errors import AlreadyClosedError, AuthenticationError, ConnectError, InvalidConfigurationError
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.wire.url import parse_url

TLS = Path(__file__).parent / "tls"  # self-signed, for 127.0.0.1
CERTIFICATE = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
BASE = "/admin/v2/scalable/public/default"
EXPOSED = ["0.0.0.0", "::", "", "10.0.0.7", "192.168.1.1", "2001:db8::1", "fe80::1%eth0"]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "no-such-host.invalid"]


@pytest.mark.parametrize("host", EXPOSED)
async def test_an_exposed_address_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"auth_token must be set .* insecure"):
        await check_exposed(host, BrokerConfig())
    with pytest.raises(InvalidConfigurationError, match="auth_token"):
        await check_exposed(host, BrokerConfig(**CERTIFICATE))
    await check_exposed(host, BrokerConfig(auth_token="x"))
    await check_exposed(host, BrokerConfig(insecure=True))


@pytest.mark.parametrize("host", LOOPBACK)
async def test_the_loopback_does_not(host: str) -> None:
    """A name that means nothing is for the listener to refuse."""
    await check_exposed(host, BrokerConfig())


async def test_both_ports_of_a_broker_and_of_a_proxy_refuse(broker: Broker) -> None:
    proxy = Proxy(ProxyConfig(brokers=("engine://127.0.0.1:1",)))
    for serve in (broker.serve, broker.serve_admin, proxy.serve, proxy.serve_admin):
        with pytest.raises(InvalidConfigurationError, match="auth_token"):
            await serve("0.0.0.0", 0)
    assert broker.admin_url is None
    await proxy.close()


@pytest.mark.parametrize("doors", [{"listen": "0.0.0.0:0"}, {"admin": "0.0.0.0:0"}, {"listen": ("::", 0)}])
async def test_an_embedded_engine_refuses_before_it_opens_anything(tmp_path: Path, doors: dict) -> None:
    with pytest.raises(InvalidConfigurationError, match="auth_token"):
        await engine.open_async(tmp_path / "data", **doors)
    assert not (tmp_path / "data").exists()


def test_whether_it_is_insecure_is_yes_or_no() -> None:
    with pytest.raises(InvalidConfigurationError, match="insecure"):
        BrokerConfig(insecure="maybe")  # type: ignore[arg-type]
    assert BrokerConfig.load(environment={"ENGINE_INSECURE": "true"}).insecure


# -- tokens in files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


def test_a_token_is_read_from_a_file(secret: Path, tmp_path: Path) -> None:
    assert BrokerConfig.load(auth_token_file=str(secret)).auth_token == "s3cret"
    assert BrokerConfig.load(environment={"ENGINE_AUTH_TOKEN_FILE": str(secret)}).auth_token == "s3cret"
    config = tmp_path / "engine.toml"
    config.write_text(f'auth_token_file = "{secret}"\n')
    assert BrokerConfig.load(config).auth_token == "s3cret"
    assert BrokerConfig.load(config, environment={"ENGINE_AUTH_TOKEN": "later"}).auth_token == "later"
    config.write_text('auth_token = "earlier"\n')
    assert BrokerConfig.load(config, auth_token_file=str(secret)).auth_token == "s3cret"
    found = ProxyConfig.load(brokers=("engine://a",), auth_token_file=str(secret), broker_token_file=str(secret))
    assert (found.auth_token, found.broker_token) == ("s3cret", "s3cret")


@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"\xff\xfe", None])
def test_files_without_a_token_are_named_and_not_shown(secret: Path, content: bytes | None) -> None:
    secret.unlink()
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(InvalidConfigurationError, match="auth_token_file") as refused:
        BrokerConfig.load(auth_token_file=str(secret))
    assert "one" not in str(refused.value).replace("one line", "")
    with pytest.raises(InvalidConfigurationError, match="both"):
        BrokerConfig.load(auth_token_file=str(secret), auth_token="x")


# -- read again --------------------------------------------------------------------------------------------------------


async def test_a_broker_takes_over_what_can_change(start_broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with start_broker(auth_token="sesame", **CERTIFICATE) as broker:
        url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
        _, port = await broker.serve_admin("127.0.0.1", 0)
        trusting = ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])
        await broker.dynamic.set("lookups_max", 77)
        async with engine.AsyncClient(url, token="sesame", tls=trusting) as old:
            changed = {"auth_token": "new", "connections_max": 123, "lookups_max": 5, "segments": 4}
            reload_broker(broker, BrokerConfig(**{**CERTIFICATE, **changed}, admin_hosts=("other.example",)))
            producer = await old.producer("orders")
            await producer.send(b"a connection that is there stays")
        async with engine.AsyncClient(url, token="new", tls=trusting) as client:
            assert await client.admin.list_topics("public/default")
        with pytest.raises(AuthenticationError):
            async with engine.AsyncClient(url, token="sesame", tls=trusting):
                pass
        assert broker.config.connections_max == 123
        assert broker.config.lookups_max == 77, "what was set at run time wins"
        assert broker.config.segments == 1
        assert "segments has changed in the configuration: restart to apply it" in caplog.text
        headers = {"Host": "other.example", "Authorization": "Bearer new"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{port}{BASE}", headers=headers, ssl=trusting) as answer,
        ):
            assert answer.status == 200
        assert "sesame" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"auth_token": None}, "auth_token"), ({"tls_cert": None, "tls_key": None}, "tls_cert"),
     ({"tls_cert": "missing.pem"}, "tls_cert"), ({"tls_key": str(TLS / "cert.pem")}, "tls_key")],
)  # fmt: skip
async def test_what_cannot_change_changes_nothing(start_broker, changes: dict, key: str) -> None:
    said = {"auth_token": "old", **CERTIFICATE}
    async with start_broker(**said) as broker:
        url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
        with pytest.raises(InvalidConfigurationError, match=key):
            reload_broker(broker, BrokerConfig(**{**said, **changes}, connections_max=7))
        assert broker.config.connections_max != 7
        trusting = ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])
        async with engine.AsyncClient(url, token="old", tls=trusting):
            pass


async def test_a_broker_that_does_not_run_reads_nothing_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with pytest.raises(AlreadyClosedError):
        reload_broker(broker, BrokerConfig())
    await broker.close()


async def test_a_proxy_takes_over_its_tokens() -> None:
    proxy = Proxy(ProxyConfig(brokers=("engine://127.0.0.1:1",), auth_token="old", broker_token="x"))
    address = "http://{}:{}".format(*await proxy.serve_admin("127.0.0.1", 0))
    reload_proxy(proxy, ProxyConfig(brokers=("engine://b",), auth_token="new", broker_token="y"))
    assert (proxy.config.broker_token, proxy.config.brokers) == ("y", ("engine://127.0.0.1:1",))
    async with aiohttp.ClientSession() as session:
        for token, status in (("old", 401), ("new", 200)):
            async with session.get(address + "/metrics", headers={"Authorization": f"Bearer {token}"}) as answer:
                assert answer.status == status
    await proxy.close()


# -- clients -----------------------------------------------------------------------------------------------------------


async def test_a_client_with_tls_sends_its_token_to_no_admin_api_without() -> None:
    trusting = ssl.create_default_context()
    for url in ("http://127.0.0.1:8080", "http://localhost:1", "http://engine.example"):
        with pytest.raises(InvalidConfigurationError, match=r"admin_url .* https:// .* in the clear") as refused:
            HttpAdmin(url, token="s3cret", timeout=1.0, tls=trusting)
        assert "s3cret" not in str(refused.value)
    for made in (
        HttpAdmin("https://127.0.0.1:8080", token="s3cret", timeout=1.0, tls=trusting),
        HttpAdmin("http://127.0.0.1:8080", token="s3cret", timeout=1.0),
        HttpAdmin("http://127.0.0.1:8080", token=None, timeout=1.0, tls=trusting),
    ):
        await made.close()


async def test_a_client_is_told_so_by_its_admin_calls(start_broker) -> None:
    """A broker whose admin API is said to be elsewhere, without TLS."""
    async with start_broker(auth_token="s3cret", admin_url="http://127.0.0.1:1", **CERTIFICATE) as broker:
        url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
        trusting = ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])
        async with engine.AsyncClient(url, token="s3cret", tls=trusting) as client:
            with pytest.raises(InvalidConfigurationError, match="admin_url"):
                await client.admin.list_topics("public/default")


async def test_a_proxy_with_tls_sends_no_token_to_an_admin_api_without() -> None:
    settings = {"auth_token": "ours", "broker_token": "s3cret", "broker_tls_ca": CERTIFICATE["tls_cert"]}
    proxy = Proxy(ProxyConfig(brokers=("engine://a",), broker_admin="http://127.0.0.1:1", **settings))
    address = "http://{}:{}".format(*await proxy.serve_admin("127.0.0.1", 0))
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer ours"}) as session,
        session.get(address + BASE) as answer,
    ):
        said = await answer.json()
    await proxy.close()
    assert (answer.status, said["code"]) == (503, ConnectError.code)
    assert "https://" in said["reason"]


def test_no_repr_shows_a_token() -> None:
    connector: Any = object()
    options = ClientOptions(connector, SystemClock(), random.Random(1), token="s3cret")
    proxy = ProxyConfig(brokers=("engine://a",), auth_token="s3cret", broker_token="s3cret")
    for made in (options, BrokerConfig(auth_token="s3cret"), proxy):
        assert "s3cret" not in repr(made)


@pytest.mark.parametrize("url", ["engine://s3cret@host:1", "engine://me:s3cret@host", "engine://s3cret@host:x"])
def test_no_error_shows_a_token_that_stands_in_a_url(url: str) -> None:
    with pytest.raises(engine.InvalidArgumentError, match="malformed") as refused:
        parse_url(url)
    assert "s3cret" not in str(refused.value)
