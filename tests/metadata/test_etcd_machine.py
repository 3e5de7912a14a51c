"""Conformance of the store in etcd: the random writes of the state machine, over lost connections and compactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from engine.clock import SystemClock
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.store import EventKind
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.line import Line
from tests.metadata.test_state_machine import STEPS, Lenient, Model

BARRIER = "\U0010ffff"  # behind all keys that the model looks at
UNSHRUNK = (Phase.explicit, Phase.generate)  # an example takes long
ETCD_STEPS = STEPS | st.tuples(st.just("cut")) | st.tuples(st.just("compact"))


class EtcdModel(Model):
    """`store` is one client; a reopened one has other sessions."""

    others_write = True  # sessions of examples before this one end when their leases do

    def __init__(self, store, opened, lines):
        super().__init__(store, self.closed_and_opened)
        self.opened, self.lines = opened, lines
        self.again = False  # in another snapshot

    async def closed_and_opened(self, store):
        await store.close()
        return await self.opened()

    async def arrived(self):
        """A change behind all others is in the watch."""
        await self.store.put(BARRIER, b"")

    async def cut(self):
        for line in self.lines:
            line.cut()

    async def compact(self):
        await self.store.compact(await self.store.revision())

    def take(self, event):
        """A watch whose history was compacted starts over. What is not there any more was deleted: its reader asks, as
        follow() does, since nothing says where the second snapshot began.
        """
        if event.key.startswith(BARRIER):
            return
        if not self.in_snapshot and event.version < self.last:  # only another snapshot shows what is older
            assert event.kind is EventKind.PUT
            self.copy[event.key], self.again = event.record.value, True
            return
        if event.kind is EventKind.SNAPSHOT_END and not self.in_snapshot:
            self.again = False
            self.copy = Lenient({key: value for key, value in self.copy.items() if key in self.records})
            return
        super().take(event)

    async def finish(self):
        await self.read_until(f"{BARRIER}/end")
        await self.read_until(f"{BARRIER}/very end")  # the first may be part of another snapshot, whose end follows
        assert not self.in_snapshot
        assert not self.again
        assert dict(self.copy) == {key: record[0] for key, record in self.records.items()}

    async def read_until(self, key):
        await self.store.put(key, b"")
        event = None
        while event is None or event.key != key:
            event = await asyncio.wait_for(anext(aiter(self.watch)), 10)
            self.take(event)


async def run(server: Etcd, steps: list) -> None:
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(member.client)) for member in server.members]
        url = f"etcd://{','.join(line.endpoint for line in lines)}/{new_prefix()}"

        async def opened():
            return await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random(1))

        model = EtcdModel(await opened(), opened, lines)
        for step in steps:
            if step[0] == "reopen":
                await reopen(model)
            else:
                await model.step(*step)
        await model.finish()
        await model.store.close()


async def reopen(model: EtcdModel) -> None:
    """Another process goes on with the same records. Its watch resumes, or begins anew where that is forgotten."""
    model.store = await model.closed_and_opened(model.store)
    model.session = None
    model.records = {key: record for key, record in model.records.items() if not record[2]}
    model.watch = model.store.watch("")
    model.fresh, model.in_snapshot, model.last, model.again = {}, True, 0, False


@pytest.fixture(scope="module", params=["etcd", "etcd_of_three"])
def runs(request: pytest.FixtureRequest) -> Callable[[list], None]:
    server: Etcd = request.getfixturevalue(request.param)
    return lambda steps: asyncio.run(run(server, steps))


@given(steps=st.lists(ETCD_STEPS, max_size=20))
@example(
    steps=[("put", "/a", b"1", "any", None), ("read_watch", 1), ("cut",), ("read_watch", 1), ("delete", "/a", "any")]
)
@example(
    steps=[("put", "/a", b"1", "any", {"i": "x"}), ("cut",), ("compact",), ("delete", "/a", "present"), ("compact",)]
)
@example(steps=[("ephemeral", "/a"), ("reopen",), ("ephemeral", "/b"), ("cut",), ("end_session",)])
@settings(max_examples=25, deadline=None, phases=UNSHRUNK, suppress_health_check=[HealthCheck.too_slow])
def test_etcd_agrees_with_a_dict_also_over_lost_connections_and_compactions(runs, steps):
    runs(steps)


@pytest.mark.fuzz
@given(steps=st.lists(ETCD_STEPS, max_size=100))
@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fuzz_etcd_agrees_with_a_dict(runs, steps):
    runs(steps)
