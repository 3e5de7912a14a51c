"""Brokers that know each other: by TLS with certificates of an authority, by a token of their own, by both."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.broker.cluster.peers import Peers
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.tls import is_named
from engine.cli.reloading import reload_broker
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    InvalidArgumentError,
    InvalidConfigurationError,
    NotOwnerError,
)
from engine.metadata.memory import MemoryMetadataStore
from engine.model.positions import Checkpoint
from engine.wire.connector import SocketConnector
from engine.wire.url import parse_url
from tests.brokers.test_tcp import free_url
from tests.kit.certificates import Authority

CLIENTS, BROKERS = "the token of clients", "the token of brokers"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def brokers(path: Path, count: int, **settings: Any) -> AsyncIterator[list[Broker]]:
    """Each starts with the same settings, or, where a setting is a list, with its own."""
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    async with AsyncExitStack() as stack:
        found = []
        for i in range(count):
            own = {name: value[i] if isinstance(value, list) else value for name, value in settings.items()}
            url, handle = free_url(), root.client()
            config = BrokerConfig(service_url=url, session_timeout=5.0, segments=6, **own)
            broker = Broker(path, config=config, metadata=handle, clock=clock)
            stack.push_async_callback(handle.close)
            stack.push_async_callback(broker.close)
            await broker.start()
            await broker.serve(*parse_url(url))
            found.append(broker)
        yield found


def with_tls(authority: Authority, **more: Any) -> dict[str, Any]:
    cert, key = authority.certify("127.0.0.1")
    return {"tls_cert": cert, "tls_key": key, "cluster_tls_ca": authority.file, **more}


def addresses(found: list[Broker], scheme: str) -> str:
    return f"{scheme}://" + ",".join(b.service_url.removeprefix("engine://") for b in found)


async def work_over(found: list[Broker], url: str, **options: Any) -> None:
    """Produce and consume, and have brokers call each other."""
    async with AsyncClient(url, **options) as client:
        producer = await client.producer("orders")
        stream = await client.stream_consumer("orders", "s", initial_position="earliest")
        queue = await client.queue_consumer("orders", "q", initial_position="earliest")
        for i in range(30):
            await producer.send(b"%d" % i, key=f"key-{i}")
        assert sum(1 for b in found if len(b.segments)) >= 2
        for broker in found:
            stats = await broker.admin.get_stats("orders")
            assert sum(segment["nextOffset"] for segment in stats["segments"].values()) == 30, "it asks the owners"
        await found[-1].admin.split_segment("orders", 0)
        for i in range(30, 60):
            await producer.send(b"%d" % i, key=f"key-{i}")
        for consumer in (stream, queue):
            got: set[int] = set()
            while len(got) < 60:
                batch = await consumer.receive_batch(timeout=60)
                assert len(batch)
                got.update(int(m.value) for m in batch)
                if consumer is stream:
                    await stream.acknowledge_cumulative(batch)


async def call(broker: Broker, peers: Peers) -> None:
    """A call that a broker answers with InvalidArgumentError, once it takes calls from this peer."""
    try:
        with pytest.raises(InvalidArgumentError, match="unknown broker call"):
            await peers.call(broker.service_url, "moon", "land", {}, 60)
    finally:
        await peers.close()


@pytest.mark.parametrize("count", [2, 3])
async def test_brokers_with_tls_call_each_other(tmp_path: Path, authority: Authority, count: int) -> None:
    async with brokers(tmp_path, count, auth_token=CLIENTS, **with_tls(authority)) as found:
        await work_over(found, f"{addresses(found, 'engines')}?ca={authority.file}", token=CLIENTS)


async def test_a_client_goes_on_at_another_address(tmp_path: Path, authority: Authority) -> None:
    """Over TLS, and its admin requests over HTTPS."""
    async with brokers(tmp_path, 3, auth_token=CLIENTS, **with_tls(authority)) as found:
        for broker in found:
            await broker.serve_admin("127.0.0.1", 0)
        url = f"{addresses(found, 'engines')}?ca={authority.file}"
        async with AsyncClient(url, token=CLIENTS) as client:
            await client.admin.create_topic("orders", segments=3)
            in_use = next(b for b in found if b.service_url == client._pool.home.url)
            await in_use.close()
            assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]
            assert await client.list_topics() == ["topic://public/default/orders"]
            await client.admin.create_topic("letters")
            producer = await client.producer("letters")
            async with client.transaction() as txn:
                await producer.send(b"x", transaction=txn)
            reader = await client.checkpoint_consumer("letters", start=Checkpoint.earliest())
            message = await reader.receive(timeout=60)
            assert message is not None
            assert message.value == b"x"


async def test_brokers_with_a_token_of_their_own(tmp_path: Path, authority: Authority) -> None:
    settings = with_tls(authority, auth_token=CLIENTS, cluster_token=BROKERS)
    async with brokers(tmp_path, 3, **settings) as found:
        await work_over(found, f"{addresses(found, 'engines')}?ca={authority.file}", token=CLIENTS)
        assert BROKERS not in repr(found[0].config)
    async with brokers(tmp_path / "plain", 2, cluster_token=BROKERS) as found:
        await work_over(found, addresses(found, "engine"))


async def test_a_certificate_for_other_brokers_alone(tmp_path: Path, authority: Authority) -> None:
    """The port's is of a public authority, as clients trust it; calls are made with another one."""
    public = Authority(tmp_path, "public")
    both = tmp_path / "both.pem"
    both.write_text(public.text + authority.text)
    port, own = public.certify("127.0.0.1"), authority.certify("127.0.0.1", name="own")
    settings = {"tls_cert": port.cert, "tls_key": port.key, "cluster_tls_ca": str(both)}
    settings |= {"cluster_tls_cert": own.cert, "cluster_tls_key": own.key}
    async with brokers(tmp_path / "data", 2, **settings) as found:
        await work_over(found, f"{addresses(found, 'engines')}?ca={public.file}")


async def test_a_client_is_no_broker(tmp_path: Path, authority: Authority) -> None:
    settings = with_tls(authority, auth_token=CLIENTS)
    async with brokers(tmp_path, 2, **settings) as (broker, other):
        trusting = ssl.create_default_context(cafile=authority.file)
        for own_url in (None, other.service_url):
            with pytest.raises(AuthorizationError, match="must be a broker, by cluster_tls_ca"):
                await call(broker, Peers(SocketConnector(tls=trusting), CLIENTS, own_url))
        laptop = authority.certify("laptop.example.org")
        trusting.load_cert_chain(laptop.cert, laptop.key)
        with pytest.raises(AuthorizationError):
            await call(broker, Peers(SocketConnector(tls=trusting), CLIENTS, other.service_url))
        with pytest.raises(NotOwnerError, match="not among the live brokers"):
            await call(broker, Peers(SocketConnector(tls=trusting), CLIENTS, "engine://laptop.example.org:6650"))
        trusting.load_cert_chain(*authority.certify("127.0.0.1"))
        await call(broker, Peers(SocketConnector(tls=trusting), CLIENTS, other.service_url))


async def test_a_certificate_of_another_authority_ends_the_connection(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with brokers(tmp_path / "data", 1, **with_tls(authority)) as (broker,):
        trusting = ssl.create_default_context(cafile=authority.file)
        trusting.load_cert_chain(*stranger.certify("127.0.0.1"))
        with pytest.raises(ConnectError):
            await call(broker, Peers(SocketConnector(tls=trusting), None, broker.service_url))
        assert not [c for c in broker.connections if c.ready]


async def test_a_broker_verifies_the_broker_that_it_calls(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "stranger")
    own, other = with_tls(authority), with_tls(stranger)
    settings = {name: [own[name], other[name]] for name in own}
    async with brokers(tmp_path / "data", 2, **settings) as found:
        for here, there in (found, found[::-1]):
            with pytest.raises(ConnectError, match=r"(?i)certificate"):
                await here.members.peers.call(there.service_url, "moon", "land", {}, 60)


async def test_who_knows_the_token_of_clients_is_no_broker(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2, auth_token=CLIENTS, cluster_token=BROKERS) as (broker, other):
        with pytest.raises(AuthorizationError, match="must be a broker, by cluster_token"):
            await call(broker, Peers(SocketConnector(), CLIENTS, other.service_url))
        with pytest.raises(AuthenticationError):
            await call(broker, Peers(SocketConnector(), "a guess", other.service_url))
        with pytest.raises(AuthorizationError):
            await call(broker, Peers(SocketConnector(), BROKERS))
        await call(broker, Peers(SocketConnector(), BROKERS, other.service_url))


async def test_a_guess_is_refused_also_where_clients_need_no_token(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2, cluster_token=BROKERS) as (broker, other):
        with pytest.raises(AuthorizationError):
            await call(broker, Peers(SocketConnector(), None, other.service_url))
        with pytest.raises(AuthenticationError):
            await call(broker, Peers(SocketConnector(), "a guess", other.service_url))
        assert broker.doors.attempts.failures == 1
        async with AsyncClient(broker.service_url) as client:
            assert await client.list_topics() == []


async def test_certificates_and_tokens_are_renewed_while_brokers_run(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.certify("127.0.0.1", name="renewed")
    settings = {"tls_cert": cert, "tls_key": key, "cluster_tls_ca": authority.file, "cluster_token": "old"}
    async with brokers(tmp_path, 2, **settings) as (here, there):

        async def shown() -> set[str]:
            """The serial numbers of the certificates that a broker which calls is shown, and shows."""
            with pytest.raises(InvalidArgumentError, match="unknown broker call"):
                await here.members.peers.call(there.service_url, "moon", "land", {}, 60)
            (accepted,) = (c.stream for c in there.connections if c.broker == here.service_url)
            streams: list[Any] = [accepted, here.members.peers._peers[there.service_url].stream]
            return {one.transport.get_extra_info("peercert")["serialNumber"] for one in streams}

        (first,) = await shown()
        authority.certify("127.0.0.1", name="renewed")
        for broker in (here, there):
            with pytest.raises(InvalidConfigurationError, match="cluster_token must stay set"):
                reload_broker(broker, dataclasses.replace(broker.config, cluster_token=None))
            reload_broker(broker, dataclasses.replace(broker.config, cluster_token="new"))
        assert await shown() == {first}, "connections stay"
        peer = here.members.peers._peers[there.service_url]
        peer.stream.abort()
        while peer.lost is None or there.connections:  # noqa: ASYNC110 - both ends hear of it
            await asyncio.sleep(0.01)
        (second,) = await shown()
        assert second != first


async def test_the_authorities_of_brokers_are_read_again_while_they_run(tmp_path: Path) -> None:
    """At both ends of a call, in the file of the same name: one that comes, and one that goes."""
    old, new, trusted = Authority(tmp_path, "old"), Authority(tmp_path, "new"), tmp_path / "trusted.pem"
    trusted.write_text(old.text)
    mine, theirs = ([str(tmp_path / f"{name}.{kind}") for name in "ab"] for kind in ("cert", "key"))

    def certify(at: int, authority: Authority) -> None:
        made = authority.certify("127.0.0.1")
        Path(mine[at]).write_bytes(Path(made.cert).read_bytes())
        Path(theirs[at]).write_bytes(Path(made.key).read_bytes())

    certify(0, old)
    certify(1, old)
    settings = {"tls_cert": mine, "tls_key": theirs, "cluster_tls_ca": str(trusted)}
    async with brokers(tmp_path, 2, **settings) as found:
        here, there = found

        async def calls(caller: Broker, other: Broker) -> None:
            """Over a new connection."""
            peer = caller.members.peers._peers.get(other.service_url)
            if peer is not None:
                peer.stream.abort()
                while peer.lost is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            with pytest.raises(InvalidArgumentError, match="unknown broker call"):
                await caller.members.peers.call(other.service_url, "moon", "land", {}, 60)

        def renew(text: str) -> None:
            trusted.write_text(text)
            for broker in found:
                reload_broker(broker, broker.config)

        await calls(here, there)
        renew(old.text + new.text)
        certify(1, new)
        renew(old.text + new.text)
        await calls(here, there)
        await calls(there, here)
        renew(new.text)  # the certificate of `here` is worth nothing any more
        for caller, other in ((there, here), (here, there)):
            with pytest.raises((ConnectError, AuthorizationError)):
                await calls(caller, other)
        certify(0, new)
        renew(new.text)
        await calls(here, there)
        await calls(there, here)


@pytest.mark.parametrize(
    ("host", "names", "named"),
    [
        ("a.example.org", ["a.example.org"], True),
        ("A.example.org", ["a.Example.org"], True),
        ("a.example.org", ["*.example.org"], True),
        ("a.b.example.org", ["*.example.org"], False),
        ("example.org", ["*.example.org"], False),
        ("a", ["*."], False),
        ("a", ["*"], False),
        ("10.0.0.1", ["10.0.0.1"], True),
        ("10.0.0.1", ["*.0.0.1"], False),
        ("::1", ["0:0:0:0:0:0:0:1"], True),
        ("a", [], False),
    ],
)
def test_which_host_a_certificate_names(host: str, names: list[str], named: bool) -> None:
    assert is_named(host, names) is named


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster_tls_ca": "ca.pem"}, "cluster_tls_ca must be .*together with tls_cert"),
        ({"cluster_tls_cert": "c"}, "cluster_tls_cert must be .*together with cluster_tls_key"),
        ({"cluster_tls_key": "k"}, "cluster_tls_key must be .*together with cluster_tls_cert"),
        ({"cluster_token": "s3cret", "auth_token": "s3cret"}, "cluster_token must be another one than auth_token"),
        ({"cluster_token": "s3cret\n"}, "cluster_token must be text"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=words) as refused:
        BrokerConfig(**settings)
    assert "s3cret" not in str(refused.value)


def test_the_token_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{BROKERS}\n")
    assert BrokerConfig.load(cluster_token_file=str(tmp_path / "token")).cluster_token == BROKERS


async def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    settings = with_tls(authority) | {"cluster_tls_ca": str(tmp_path / "junk.pem")}
    with pytest.raises(InvalidConfigurationError, match=r"cluster_tls_ca .*junk\.pem must have certificates in PEM"):
        async with brokers(tmp_path / "data", 1, **settings):
            pass
