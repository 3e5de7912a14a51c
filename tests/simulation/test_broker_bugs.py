"""The suite can fail also where brokers follow each other: each of these bugs, planted, is flagged."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import OwnerLease
from engine.storage.commit.committer import Committer
from engine.testing.checker import check
from engine.testing.cluster import DEFAULT_CONFIG, simulate
from engine.testing.metadata import _FarSession
from engine.testing.workload import Sender, read_all
from tests.simulation.broker_faults import TOPIC, Spy

SEEDS = range(8)
CONFIG = dataclasses.replace(DEFAULT_CONFIG, keep_alive=60.0)  # clients wait patiently for a broker that is stopped


async def zombie(cluster):
    """The owner of a segment is stopped until another owns it, and goes on with what was sent to it meanwhile."""
    for name in ("b1", "b2"):
        await cluster.start(name)
    admin = cluster.brokers["b1"].broker.admin
    await cluster.brokers["b1"].process.do(lambda: admin.create_topic(TOPIC, segments=1))
    await _sender(cluster, "p0", None).run(5)
    owner = await Spy(cluster).owner()
    other = next(b for b in cluster.brokers.values() if b is not owner)
    sender = _sender(cluster, "p1", owner)
    sender.pause_s_max = 0.01
    sending = asyncio.create_task(sender.run(2_000))
    await asyncio.sleep(1)
    owner.suspend()
    await asyncio.sleep(CONFIG.session_timeout + 1)
    await _sender(cluster, "p2", other).run(20)
    owner.metadata.delay_s_max = 1.0
    owner.resume()
    await asyncio.sleep(5)
    owner.metadata.delay_s_max = 0.0
    await sending
    for reading in (1, 2):
        await read_all(cluster.history, cluster.client("c-r", other), TOPIC, reading)
    return {violation.rule for violation in check(cluster.history.events)}


def _sender(cluster, name, broker):
    return Sender(cluster.history, cluster.client(f"c-{name}", broker), name, TOPIC, cluster.rng(name))


def flagged():
    """The rules that are broken under any of the seeds."""
    return {rule for seed in SEEDS for rule in simulate(seed, zombie, config=CONFIG, shared=True)}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_that_was_stopped_confirms_nothing_more(seed):
    assert simulate(seed, zombie, config=CONFIG, shared=True) == set()


def test_assume_a_lease_after_a_stop(monkeypatch):
    """As if the session had just been refreshed, however long the process was stopped."""
    lives = property(lambda session: asyncio.get_running_loop().time() + CONFIG.session_timeout)
    monkeypatch.setattr(_FarSession, "deadline", lives)
    assert "D1" in flagged()


def keep_everything(monkeypatch):
    """At the end of a session nothing is let go, so that nothing but the comparison of terms stands in the way."""
    monkeypatch.setattr(OpenSegments, "session_lost", lambda segments: None)


def test_the_comparison_of_terms_is_enough(monkeypatch):
    keep_everything(monkeypatch)
    assert flagged() == set()


def test_do_not_compare_the_term_on_append(monkeypatch):
    keep_everything(monkeypatch)
    monkeypatch.setattr(OwnerLease, "check", lambda lease: None)
    monkeypatch.setattr(Committer, "lapses", lambda committer: False)
    assert "D1" in flagged()
