"""A topic is deleted, and there is another of its name: an owner of the old one that was stopped goes on later (L1)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from engine.broker.hosting.ownership import OwnerLease, Ownership
from engine.errors import EngineError
from engine.storage import store
from engine.testing.checker import check
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from engine.testing.workload import Sender, read_all
from tests.simulation.broker_faults import TOPIC, Spy

SEEDS = range(4)
CONFIG = dataclasses.replace(DEFAULT_CONFIG, keep_alive=60.0)
LATE = ("roll", "delete")


async def roll(cluster: SimCluster, owner: SimBroker) -> None:
    """It is about to make a file."""
    producer = await cluster.client("c-old", owner).producer(TOPIC)
    await producer.send(b"old" * 2_000)
    owner.workers.stall()
    with contextlib.suppress(EngineError):
        await producer.send(b"late" * 2_000)


async def delete(cluster: SimCluster, owner: SimBroker) -> None:
    """It is about to delete the files."""
    owner.workers.stall()
    await owner.process.do(lambda: owner.broker.admin.delete_topic(TOPIC))


async def again(broker: SimBroker) -> None:
    """The topic is deleted through that broker, as soon as that can be, and made anew."""
    admin = broker.broker.admin
    for act in (lambda: admin.delete_topic(TOPIC), lambda: admin.create_topic(TOPIC, segments=1)):
        for _ in range(50):
            with contextlib.suppress(EngineError):
                await broker.process.do(act)
                break
            await asyncio.sleep(0.5)


async def namesakes(cluster: SimCluster, late: str) -> set[str]:
    """The rules that are broken for the second topic."""
    for name in ("b1", "b2"):
        await cluster.start(name)
    admin = cluster.brokers["b1"].broker.admin
    await cluster.brokers["b1"].process.do(lambda: admin.create_topic(TOPIC, segments=1))
    await (await cluster.client("c-first").producer(TOPIC)).send(b"first")
    owner = await Spy(cluster).owner()
    other = next(b for b in cluster.brokers.values() if b is not owner)
    asyncio.ensure_future({"roll": roll, "delete": delete}[late](cluster, owner)).add_done_callback(_look)
    await asyncio.sleep(1)
    owner.suspend()
    await asyncio.sleep(CONFIG.session_timeout + 1)
    await again(other)
    client = cluster.client("c-new", other)
    await Sender(cluster.history, client, "p1", TOPIC, cluster.rng("p1")).run(20)
    owner.workers.resume()  # what the system was asked to do before the stop
    await asyncio.sleep(1)
    owner.resume()
    await asyncio.sleep(1)
    await Sender(cluster.history, client, "p2", TOPIC, cluster.rng("p2")).run(20)
    await other.kill()
    await other.start()
    for reading in (1, 2):
        await read_all(cluster.history, cluster.client("c-r", other), TOPIC, reading)
    await owner.kill()
    return {violation.rule for violation in check(cluster.history.events)}


def _look(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()


def broken(late: str) -> set[str]:
    """The rules that are broken under any of the seeds."""
    rules: set[str] = set()
    for seed in SEEDS:
        try:
            rules |= simulate(seed, lambda cluster: namesakes(cluster, late), config=CONFIG, shared=True)
        except EngineError as e:  # a reader was told of damage
            rules.add(type(e).__name__)
    return rules


@pytest.fixture(autouse=True)
def stopped_behind_its_last_look(monkeypatch: pytest.MonkeyPatch, log_file_size) -> None:
    """It has asked whether it may, and was told so, right before it was stopped."""
    log_file_size(8192)
    monkeypatch.setattr(OwnerLease, "check", lambda lease: None)


@pytest.mark.parametrize("late", LATE)
def test_l1_what_an_owner_of_the_old_topic_does_late_harms_nothing(late: str) -> None:
    assert broken(late) == set()


@pytest.mark.parametrize("late", LATE)
def test_planted_terms_begin_anew_with_the_topic(monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """And deletions end nowhere."""
    put_of, lease_of, remove = Ownership._put, Ownership._lease, store.remove

    async def counted(ownership, key, owner, record, also=None):
        await put_of(ownership, key, owner, record, also)
        return owner.term

    def lease(ownership, name, term, born, session, *, always):
        return lease_of(ownership, name, term, 0, session, always=always)

    monkeypatch.setattr(Ownership, "_put", counted)
    monkeypatch.setattr(Ownership, "_lease", lease)
    monkeypatch.setattr(store, "remove", lambda disk, directory, term=None: remove(disk, directory))
    assert broken(late)
