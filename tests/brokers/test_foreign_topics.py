"""What a broker watches, hears and keeps of a cluster does not grow with what others have. On a real etcd."""

from __future__ import annotations

import asyncio
import gc
import random
import types
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from engine.broker.hosting.ownership import INDEX_OWNERS, Owner
from engine.broker.limits.elsewhere import Used
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.control.base.brokers import BrokerRecord
from engine.control.base.topic_records import INDEX_CONTROLLERS, INDEX_TOPICS, index_key
from engine.control.transactions.headers import INDEX_DEADLINE, _at
from engine.metadata import keys
from engine.metadata.etcd.known import Known
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.store import Put, Session
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.limits import Limits
from engine.model.names import SegmentName, TopicName
from engine.model.reply_topics import reply_topic
from engine.model.subscriptions import InitialPosition, SubscriptionMetadata
from engine.model.transactions import TransactionHeader, TransactionState, id_text, partition_of
from engine.storage.cursor.cursor import pack
from engine.wire.url import parse_url
from tests.brokers.test_tcp import TOKEN, free_url
from tests.kit.etcd import Etcd, new_prefix

MINE, OTHER_URL = "mine", "engine://127.0.0.1:1"
FEW = 20
AT_ONCE = 240
CHANGED = 200
OPEN_UNTIL_MS = 1 << 50  # milliseconds since 1970
WAIT_S_MAX = 300.0
BESIDE = TopicName.parse(MINE)
MARK = "0f0e16a0d1f4c277"  # in each name of a foreign topic, and in no other text that this process has
_SKIPPED = (types.ModuleType, type, types.FrameType, types.CoroutineType, asyncio.AbstractEventLoop, asyncio.Future)


def foreign_name(number: int) -> TopicName:
    """Each tenth is a topic of replies, which brokers delete when it is not used any more."""
    if number % 10 == 0:
        return reply_topic(BESIDE, int(MARK, 16) << 64 | number)
    return TopicName("public", "default", f"foreign-{MARK}-{number}")


def is_foreign(text: str) -> bool:
    return MARK in text or f"/txn/{MARK[:12]}" in text


class Other:
    """Another broker, as far as its records go: it is live, leads its topics, owns their segments, and takes none.

    Each of its topics has a subscription with a cursor, and a transaction is open for each. For each there are a tenant
    and a role with limits, and it shows what it uses of them.
    """

    def __init__(self, metadata: EtcdMetadataStore, session: Session) -> None:
        self._metadata = metadata
        self._session = session

    async def register(self) -> None:
        record = BrokerRecord(OTHER_URL, None, self._session.id, draining=True)
        await self._metadata.put(keys.broker(OTHER_URL), record.to_json(), session=self._session)

    async def own(self, numbers: range, term: int = 1) -> None:
        """Write the records of its topics, or write them again."""
        puts: list[Put] = []
        for number in numbers:
            puts += [*self._records(foreign_name(number), term), self._begin(number, term)]
        for start in range(0, len(puts), AT_ONCE):
            await self._metadata.write_all(puts[start : start + AT_ONCE])

    def _records(self, topic: TopicName, term: int) -> Iterator[Put]:
        layout = SegmentLayout.create(1, now_ms=term)
        yield Put(keys.topic(topic), layout.to_json(), indexes={INDEX_TOPICS: index_key(topic)})
        key = keys.segment(SegmentName(topic, HashRange.whole(), 0))
        yield Put(key, Owner(OTHER_URL, self._session.id, term).to_json(), indexes={INDEX_OWNERS: key})
        leads = {INDEX_CONTROLLERS: index_key(topic)}
        yield Put(keys.controller(topic), OTHER_URL.encode(), session=self._session, indexes=leads)
        subscription = SubscriptionMetadata("s", InitialPosition.EARLIEST, term)
        yield Put(keys.subscription(topic, "s"), subscription.to_json())
        yield Put(keys.cursor(SegmentName(topic, HashRange.whole(), 0), "s"), pack(0, BitMap64()))
        yield from self._limits(topic.local, term)

    def _limits(self, name: str, term: int) -> Iterator[Put]:
        """Of a tenant whose name begins as that of the client's topic does, and of a role."""
        tenant, role = f"{BESIDE.tenant}-{name}", f"role:{name}"
        limits = Limits(total_producers=term, total_publish_bytes_per_s=term).to_json()
        for resource in (tenant, f"{tenant}/ns", role):
            yield Put(keys.limits(resource), limits)
        used = Used(used={f"total {tenant}\npublish": term}, held=[f"total {tenant}\npublish"])
        for group in (tenant, role):
            yield Put(keys.shown(keys.SHARES, group, OTHER_URL), msgspec.json.encode(used), session=self._session)

    def _begin(self, number: int, term: int) -> Put:
        """Of a transaction that is open for long."""
        ident = int(MARK[:12], 16) << 16 | number
        header = TransactionHeader(TransactionState.OPEN, OPEN_UNTIL_MS, term)
        deadline = {INDEX_DEADLINE: _at(partition_of(ident), OPEN_UNTIL_MS)}
        return Put(keys.transaction(id_text(ident)), msgspec.json.encode(header), indexes=deadline)


@dataclass
class Seen:
    """Of one broker: its watches, the events of foreign topics that it has heard, and what it keeps of them."""

    watches: int
    heard: int
    kept: int


@asynccontextmanager
async def cluster(etcd: Etcd, path: Path) -> AsyncIterator[tuple[Broker, EtcdMetadataStore, Other]]:
    """A broker with a client's topic, its store, and another broker."""
    url, clock, address = etcd.url(new_prefix()), SystemClock(), free_url()
    stores = [await EtcdMetadataStore.open(url, clock=clock, rng=random.Random(i)) for i in range(2)]
    session = await stores[1].session(600)
    other = Other(stores[1], session)
    await other.register()
    config = BrokerConfig(service_url=address, auth_token=TOKEN, session_timeout=60.0, retention_interval=3600.0)
    broker = Broker(path, config=config, metadata=stores[0], clock=clock)
    await broker.start()
    await broker.serve(*parse_url(address))
    try:
        yield broker, stores[0], other
    finally:
        await broker.close()
        await session.close()
        for store in stores:
            await store.close()


async def seen(etcd: Etcd, path: Path, count: int) -> Seen:
    """By a broker with clients of one topic, in a cluster with so many others."""
    heard: list[str] = []
    async with cluster(etcd, path) as (broker, store, other):
        real = store._hub._pass

        def counted(feed: Any, events: Any, *, anew: bool) -> None:
            heard.extend(event.key for event in events if is_foreign(event.key))
            real(feed, events, anew=anew)

        store._hub._pass = counted  # type: ignore[method-assign]
        await other.own(range(count))
        async with AsyncClient(broker.service_url, token=TOKEN) as client:
            await broker.admin.set_limits(BESIDE.tenant, {"total_publish_bytes_per_s": 1 << 40, "total_producers": 9})
            await broker.admin.create_topic(MINE, segments=1)
            producer = await client.producer(MINE)
            consumer = await client.queue_consumer(MINE, "s", initial_position="earliest")
            await producer.send(b"x")
            assert (await consumer.receive(timeout=WAIT_S_MAX)).value == b"x"
            broker.stocktaking._brokers_changed()  # look at all topics, as ten minutes later
            async with asyncio.timeout(WAIT_S_MAX):
                while broker.stocktaking.waiting:  # noqa: ASYNC110 - it waits for etcd, many times
                    await asyncio.sleep(0.05)
            await broker.parts.retention.sweep()
            await other.own(range(min(count, CHANGED)), term=2)
            await producer.send(b"y")  # behind which this broker's watches have all that came before
            assert (await consumer.receive(timeout=WAIT_S_MAX)).value == b"y"
            texts = list(texts_of(broker))
            assert MINE in texts, "what the broker has of its own topic was not found"
            return Seen(store.statistics().watches, len(heard), sum(map(is_foreign, texts)))


def texts_of(root: object) -> Iterator[str]:
    """All texts that are reached from an object, but for what was read of etcd last, which is bounded."""
    found, todo = {id(root)}, deque([root])
    while todo:
        one = todo.popleft()
        if isinstance(one, (str, bytes)):
            yield one if isinstance(one, str) else one.decode(errors="replace")
            continue
        inner = one.__closure__ or () if isinstance(one, types.FunctionType) else gc.get_referents(one)
        for each in inner:
            if id(each) not in found and not isinstance(each, (*_SKIPPED, Known)):
                found.add(id(each))
                todo.append(each)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.fuzz)])
async def test_what_a_broker_watches_and_keeps_does_not_grow_with_the_cluster(
    etcd: Etcd, tmp_path: Path, count: int
) -> None:
    few = await seen(etcd, tmp_path / "few", FEW)
    many = await seen(etcd, tmp_path / "many", count)
    assert many == few
    assert (many.heard, many.kept) == (0, 0)
    assert 0 < many.watches < 20
