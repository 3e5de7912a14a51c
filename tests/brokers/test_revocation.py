"""What is revoked ends at all brokers: grants by their records, tokens and keys by the files that each reads."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.cli.reloading import reload_broker
from engine.clock import SystemClock
from engine.errors import AuthenticationError, AuthorizationError, InvalidConfigurationError
from engine.metadata.memory import MemoryMetadataStore
from tests.brokers.test_identity import BROKERS, addresses, brokers
from tests.kit.peer import Peer, until

FIRST, SECOND = (f"{i}" * 32 for i in (1, 2))
ANN, ROOT = "token-of-ann", "token-of-root"


def keys(*secrets: str) -> str:
    found = [{"kty": "oct", "k": jwt.utils.base64url_encode(s.encode()).decode()} for s in secrets]
    return json.dumps({"keys": found})


def signed(secret: str, role: str = "ann") -> str:
    return jwt.encode({"sub": role, "exp": time.time() + 600}, secret, "HS256")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "roles").write_text(line_of("ann", ANN) + "\n" + line_of("root", ROOT) + "\n")
    (tmp_path / "keys").write_text(keys(FIRST, SECOND))
    return {"roles_file": str(tmp_path / "roles"), "jwt_keys": str(tmp_path / "keys"), "cluster_token": BROKERS}


@pytest.fixture(autouse=True)
async def _ended() -> AsyncIterator[None]:
    yield
    await Peer.end_all()


async def test_a_revoked_grant_ends_producers_and_consumers_at_all_brokers(tmp_path: Path, settings) -> None:
    async with brokers(tmp_path / "data", 2, **settings) as found:
        await found[0].admin.grant("public", "ann", ["produce", "consume"])
        async with engine.AsyncClient(addresses(found, "engine"), token=ANN) as ann:
            producer = await ann.producer("orders")
            consumer = await ann.queue_consumer("orders", "s", initial_position="earliest")
            for i in range(30):
                await producer.send(b"x", key=f"key-{i}")
                await consumer.receive()
            for attached in ("producers", "consumers"):
                assert all(any(getattr(c, attached) for c in b.connections) for b in found)
            await found[0].admin.revoke("public", "ann")
            await until(lambda: not any(c.producers or c.consumers for b in found for c in b.connections))
            with pytest.raises(AuthorizationError):
                await consumer.receive()
            with pytest.raises(AuthorizationError):
                await producer.send(b"x", key="key-1")


async def test_a_key_that_is_withdrawn_ends_what_it_proved_at_all_brokers(tmp_path: Path, settings) -> None:
    async with brokers(tmp_path / "data", 2, **settings) as found:
        peers = {}
        for broker in found:
            for secret in (FIRST, SECOND):
                peer = peers[broker, secret] = await Peer.connect(broker, broker.service_url, hello=False)
                await peer.hello(token=signed(secret))
        (tmp_path / "keys").write_text(keys(SECOND))
        for broker in found:
            await peers[broker, FIRST].lost
            assert not peers[broker, SECOND].lost.done()
            again = await Peer.connect(broker, broker.service_url, hello=False)
            with pytest.raises(AuthenticationError):
                await again.hello(token=signed(FIRST))


async def test_who_is_no_superuser_any_more_keeps_nothing_by_it(tmp_path: Path, settings) -> None:
    async with brokers(tmp_path / "data", 1, **settings, superusers="root") as (broker,):
        root = engine.AsyncClient(broker.service_url, token=ROOT)
        producer = await root.producer("orders")
        await producer.send(b"x")
        own = {"service_url": broker.service_url, "session_timeout": 5.0, "segments": 6}
        reload_broker(broker, BrokerConfig(**settings, **own))
        await until(lambda: not any(c.producers for c in broker.connections))
        with pytest.raises(AuthorizationError):
            await producer.send(b"y")
        await root.close()


async def test_brokers_with_roles_need_a_proof_of_their_own(tmp_path: Path, settings) -> None:
    clock = SystemClock()
    without = {name: value for name, value in settings.items() if name != "cluster_token"}
    for more in ({}, {"auth_token": "of all clients"}):
        broker = Broker(
            tmp_path / "data",
            config=BrokerConfig(service_url="engine://127.0.0.1:6650", **without, **more),
            metadata=MemoryMetadataStore(clock),
            clock=clock,
        )
        with pytest.raises(InvalidConfigurationError, match="cluster_token or cluster_tls_ca must be set"):
            await broker.start()
        await broker.close()
