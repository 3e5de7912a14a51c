"""What a broker watches, hears and keeps of grants does not grow with the roles of the others. On a real etcd."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.broker.rights.records import indexes_of
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.errors import AuthorizationError
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.store import Put
from engine.model.rights import Grant
from engine.wire.url import parse_url
from tests.brokers.test_foreign_topics import AT_ONCE, CHANGED, FEW, MARK, MINE, Seen, is_foreign, texts_of
from tests.brokers.test_tcp import free_url
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.peer import until

ANN = "token-of-ann"
NEAR = ("a", "an", "ann2", "ann%2F", "ann-b", "bob")  # roles whose names are near to hers


def foreign(number: int, right: str) -> Put:
    """A grant of a role that is not here: each tenth on what the role that is here has grants on, too."""
    role, resource = f"foreign-{MARK}-{number}", f"{MARK}/default/{number}"
    if number % 10 == 0:
        resource = "public/default"
    if number < len(NEAR):
        role = NEAR[number]
    value = Grant(resource, role, (right,)).to_json()
    return Put(keys.grant(resource, role), value, indexes=indexes_of(resource, role))


async def write(store: EtcdMetadataStore, numbers: range, right: str) -> None:
    for start in range(numbers.start, numbers.stop, AT_ONCE):
        await store.write_all([foreign(i, right) for i in range(start, min(start + AT_ONCE, numbers.stop))])


def roles_of(path: Path) -> str:
    """A file with her token."""
    path.mkdir()
    (path / "roles").write_text(line_of("ann", ANN) + "\n")
    return str(path / "roles")


async def seen(etcd: Etcd, path: Path, count: int) -> tuple[Seen, int]:
    """By a broker with one role, beside so many grants of others; and how many grants it knows."""
    url, clock, address, heard = etcd.url(new_prefix()), SystemClock(), free_url(), list[str]()
    mine, other = [await EtcdMetadataStore.open(url, clock=clock, rng=random.Random(i)) for i in range(2)]
    config = BrokerConfig(roles_file=roles_of(path), session_timeout=60.0, retention_interval=3600.0,
                          service_url=address, cluster_token="of-brokers")  # fmt: skip
    await write(other, range(count // 2), "consume")  # before it starts
    real = mine._hub._pass

    def counted(feed: Any, events: Any, *, anew: bool) -> None:
        heard.extend(event.key for event in events if "/grants/" in event.key and not event.key.endswith("/ann"))
        real(feed, events, anew=anew)

    mine._hub._pass = counted  # type: ignore[method-assign]
    broker = Broker(path / "data", config=config, metadata=mine, clock=clock)
    await broker.start()
    try:
        await broker.serve(*parse_url(address))
        await broker.admin.create_topic(MINE, segments=1)
        await broker.admin.grant("public/default", "ann", ["produce"])
        await broker.admin.grant(f"public/default/{MINE}", "ann", ["consume"])
        await write(other, range(count // 2, count), "consume")
        async with AsyncClient(address, token=ANN) as client:
            producer = await client.producer(MINE)
            await producer.send(b"x")
            await write(other, range(min(count, CHANGED)), "lookup")
            await other.delete(foreign(3, "lookup").key)
            await other.delete(keys.grant("public/default", "ann"))
            await until(lambda: not any(c.producers for c in broker.connections))
            with pytest.raises(AuthorizationError):
                await producer.send(b"y")
            grants = broker.rights._grants
            assert grants is not None
            texts = list(texts_of(broker))
            assert MINE in texts, "what the broker has of its own topic was not found"
            found = Seen(mine.statistics().watches, len(heard), sum(map(is_foreign, texts)))
            return found, len(grants)
    finally:
        await broker.close()
        for store in (mine, other):
            await store.close()


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.fuzz)])
async def test_what_a_broker_knows_and_hears_of_grants_does_not_grow_with_other_roles(
    etcd: Etcd, tmp_path: Path, count: int
) -> None:
    few, known = await seen(etcd, tmp_path / "few", FEW)
    many, beside_many = await seen(etcd, tmp_path / "many", count)
    assert many == few
    assert (many.heard, many.kept) == (0, 0)
    assert known == beside_many == 1
