"""Conformance of a store in another process: the random writes of the state machine, over connections that are lost."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from tests.metadata.served import Served
from tests.metadata.test_state_machine import STEPS, Model

REMOTE_STEPS = STEPS | st.tuples(st.just("cut"))


class RemoteModel(Model):
    """`store` is a client of `served`. Sessions survive lost connections, and also a restart of the service."""

    def __init__(self, store, served, reopen):
        super().__init__(store, None)
        self.served, self.reopen_store, self.reopen = served, reopen, self.restart

    async def arrived(self):
        await self.store.get("/")

    async def cut(self):
        self.served.cut()
        await self.store.get("/")

    async def restart(self):
        await self.served.stop()
        await self.served.restart(await self.reopen_store(self.served.store))

    async def finish(self):
        expected = {key: record[0] for key, record in self.records.items()}
        await self.read_watch(self.watch.owed)
        while self.in_snapshot or dict(self.copy) != expected:
            self.take(await asyncio.wait_for(anext(aiter(self.watch)), 10))
        await self.arrived()
        assert self.watch.owed == 0


async def run(transport, store, directory, reopen, steps):
    async with Served(store, transport, directory) as served:
        model = RemoteModel(await served.client(), served, reopen)
        for step in steps:
            await model.step(*step)
        await model.finish()


async def same(store):
    return store


@given(st.lists(REMOTE_STEPS, max_size=30))
@example([("put", "/a", b"1", "any", None), ("read_watch", 1), ("cut",), ("read_watch", 1), ("delete", "/a", "any")])
@example([("ephemeral", "/a"), ("reopen",), ("ephemeral", "/b"), ("cut",), ("end_session",)])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_client_over_a_stream_in_memory_agrees_with_a_dict(steps):
    asyncio.run(run("memory", MemoryMetadataStore(SystemClock()), Path(), same, steps))


@given(st.lists(REMOTE_STEPS, max_size=20))
@example([("ephemeral", "/a"), ("read_watch", 2), ("reopen",), ("delete", "/a", "present"), ("reopen",)])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_client_over_a_unix_socket_agrees_also_where_the_service_restarts_on_its_file(steps):
    async def opened(path):
        return await SqliteMetadataStore.open(path, clock=SystemClock(), served=True)

    async def body(directory):
        async def reopen(store):
            await store.close()
            return await opened(directory / "m.db")

        await run("unix", await opened(directory / "m.db"), directory, reopen, steps)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(body(Path(directory)))


@pytest.mark.fuzz
@given(st.lists(REMOTE_STEPS, max_size=150))
@settings(max_examples=2_000, deadline=None)
def test_fuzz_a_client_over_a_stream_in_memory_agrees_with_a_dict(steps):
    asyncio.run(run("memory", MemoryMetadataStore(SystemClock()), Path(), same, steps))
