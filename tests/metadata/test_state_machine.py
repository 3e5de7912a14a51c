"""Conformance: random writes against a plain dict, with a reader of a watch that must end at the same state."""

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
from engine.metadata.store import ABSENT, ANY, Append, ConflictError, Delete, EventKind, Put

KEYS = st.sampled_from(["/a", "/a/b", "/a/c", "/b", "/c/d"])
KINDS = st.sampled_from(["any", "absent", "present"])
INDEXES = st.none() | st.fixed_dictionaries({"i": st.sampled_from("xyz")})
PUTS = st.none() | st.tuples(st.binary(max_size=3), INDEXES)  # None: a deletion
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3), KINDS, INDEXES),
    st.tuples(st.just("put_also"), KEYS, KEYS, KINDS),
    st.tuples(st.just("delete"), KEYS, KINDS),
    st.tuples(st.just("delete_range"), KEYS, KEYS),
    st.tuples(st.just("read_watch"), st.integers(1, 3)),
    st.tuples(st.just("resume_watch")),
    st.tuples(st.just("ephemeral"), KEYS),
    st.tuples(st.just("end_session")),
    st.tuples(st.just("sequence")),
    st.tuples(st.just("with_sequence"), KEYS, KINDS, INDEXES, INDEXES),
    st.tuples(st.just("write_all"), st.lists(st.tuples(KEYS, KINDS, PUTS), max_size=6)),
    st.tuples(st.just("reopen")),
)


class Model:
    """A dict of key -> (value, index key, ephemeral), and a watch whose reader keeps a copy."""

    others_write = False  # under other prefixes, in the same versions

    def __init__(self, store, reopen):
        self.store, self.reopen = store, reopen
        self.records = {}
        self.versions = {}
        self.session = None
        self.watch = store.watch("")
        self.copy, self.fresh, self.last = {}, {}, 0
        self.in_snapshot = True
        self.sequences = []

    def expected(self, key, kind):
        return {"any": ANY, "absent": ABSENT, "present": self.versions.get(key, 999_999)}[kind]

    def met(self, key, kind):
        return kind == "any" or (key in self.records) == (kind == "present")

    async def step(self, name, *arguments):
        await getattr(self, name)(*arguments)
        keys = sorted(self.records)
        assert await self.store.list_keys("", "\U0010ffff") == keys
        for record in await self.store.list("", "\U0010ffff"):
            assert record.value == self.records[record.key][0]
        by_index = sorted((index, key) for key, (_, index, _) in self.records.items() if index)
        assert [(i, r.key) for i, r in await self.store.list_index("i", "", "zz")] == by_index

    async def put(self, key, value, kind, indexes):
        try:
            stat = await self.store.put(key, value, self.expected(key, kind), indexes=indexes)
        except ConflictError:
            assert not self.met(key, kind)
            return
        assert self.met(key, kind)
        assert stat.version > max(self.versions.values(), default=0)
        self.versions[key] = stat.version
        self.records[key] = (value, (indexes or {}).get("i"), False)

    async def put_also(self, key, other, kind):
        try:
            stat = await self.store.put(key, b"a", also={other: self.expected(other, kind)})
        except ConflictError:
            assert not self.met(other, kind)
            return
        assert self.met(other, kind)
        self.versions[key] = stat.version
        self.records[key] = (b"a", None, False)

    async def delete(self, key, kind):
        try:
            existed = await self.store.delete(key, self.expected(key, kind))
        except ConflictError:
            assert not self.met(key, kind)
            return
        assert existed == (self.records.pop(key, None) is not None)

    async def delete_range(self, start, end):
        doomed = [key for key in self.records if start <= key < end]
        assert await self.store.delete_range(start, end) == len(doomed)
        for key in doomed:
            del self.records[key]

    async def ephemeral(self, key):
        self.session = self.session or await self.store.session()
        self.versions[key] = (await self.store.put(key, b"e", session=self.session)).version
        self.records[key] = (b"e", None, True)

    async def end_session(self):
        if self.session is not None:
            await self.session.close()
            self.session = None
        self.records = {key: record for key, record in self.records.items() if not record[2]}

    async def sequence(self):
        self.appended(await self.store.put_sequence("/s", b"s"), None)

    def appended(self, record, indexes):
        assert record.key > max(self.sequences, default="")
        self.sequences.append(record.key)
        self.versions[record.key] = record.stat.version
        self.records[record.key] = (b"s", (indexes or {}).get("i"), False)

    async def with_sequence(self, key, kind, indexes, appended_indexes):
        expected, last = self.expected(key, kind), self.store.version
        try:
            stat, record = await self.store.put_with_sequence(
                Put(key, b"w", expected, indexes=indexes), Append("/s", b"s", indexes=appended_indexes)
            )
        except ConflictError:
            assert not self.met(key, kind)
            assert not [found for found in await self.store.list("", "\U0010ffff") if found.stat.version > last]
            assert self.store.version == last or self.others_write
            return
        assert self.met(key, kind)
        assert last < record.stat.version < stat.version <= self.store.version
        assert self.store.version == stat.version or self.others_write
        self.appended(record, appended_indexes)
        self.versions[key] = stat.version
        self.records[key] = (b"w", (indexes or {}).get("i"), False)

    async def write_all(self, writes):
        """Like one after the other; a version that is demanded is the one of before."""
        before, keys = dict(self.versions), dict(self.records)
        demanded = [self.expected(key, kind) for key, kind, _ in writes]
        outcomes = await self.store.write_all(
            [
                Delete(key, expected) if put is None else Put(key, put[0], expected, indexes=put[1])
                for (key, _, put), expected in zip(writes, demanded, strict=True)
            ]
        )
        for (key, kind, put), outcome in zip(writes, outcomes, strict=True):
            untouched = self.versions.get(key) == before.get(key) and (key in self.records) == (key in keys)
            met = self.met(key, kind) and (kind != "present" or untouched)
            assert isinstance(outcome, ConflictError) == (not met)
            if not met:
                continue
            if put is None:
                assert outcome == (self.records.pop(key, None) is not None)
                continue
            assert outcome.version > max(self.versions.values(), default=0)
            self.versions[key] = outcome.version
            self.records[key] = (put[0], (put[1] or {}).get("i"), False)

    async def arrived(self):
        """What the store has to say to this process has come."""

    async def read_watch(self, count):
        await self.arrived()
        for _ in range(min(count, self.watch.owed)):
            self.take(await anext(aiter(self.watch)))

    def take(self, event):
        self.last = max(self.last, event.version)
        assert event.version >= self.last
        if event.kind is EventKind.SNAPSHOT_END:
            self.copy, self.in_snapshot = self.fresh, False
            return
        target = self.fresh if self.in_snapshot else self.copy
        if event.kind is EventKind.PUT:
            target[event.key] = event.record.value
        else:
            del target[event.key]

    async def resume_watch(self):
        if self.in_snapshot:
            return
        self.watch.close()
        self.watch = self.store.watch("", from_version=self.last)
        # A resumed watch may show the end of a key that was never shown.
        self.copy = Lenient(self.copy)

    async def reopen(self):
        raise NotImplementedError

    async def finish(self):
        await self.read_watch(self.watch.owed)
        assert dict(self.copy) == {key: record[0] for key, record in self.records.items()}


class Lenient(dict):
    def __delitem__(self, key):
        self.pop(key, None)


async def run(model, steps):
    for step in steps:
        if step[0] == "reopen":
            if model.reopen is None:
                continue
            model.store = await model.reopen(model.store)
            model.session = None
            model.records = {key: record for key, record in model.records.items() if not record[2]}
            model.watch = model.store.watch("", from_version=None if model.in_snapshot else model.last)
            model.fresh, model.in_snapshot = {}, model.in_snapshot or model.watch.owed > 0
            if model.in_snapshot:
                model.last = 0
        else:
            await model.step(*step)
    await model.finish()
    await model.store.close()


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=150, deadline=None)
def test_memory_agrees_with_a_dict(steps):
    async def body():
        await run(Model(MemoryMetadataStore(SystemClock()), None), steps)

    asyncio.run(body())


@given(st.lists(STEPS, max_size=25))
@example([("sequence",), ("read_watch", 2), ("reopen",), ("resume_watch",)])
@example([("with_sequence", "/a", "absent", {"i": "x"}, {"i": "y"}), ("with_sequence", "/a", "present", None, None),
          ("with_sequence", "/a", "absent", None, None), ("reopen",), ("delete", "/a", "present")])  # fmt: skip
@example([("put", "/a", b"", "any", None), ("write_all", [("/a", "present", (b"1", {"i": "x"})),
          ("/a", "present", None), ("/b", "absent", (b"", None)), ("/b", "any", None)]), ("reopen",)])  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_agrees_with_a_dict_also_over_restarts(tmp_path_factory, steps):
    async def body(directory):
        async def reopen(store):
            await store.close()
            return await SqliteMetadataStore.open(Path(directory) / "m.db", clock=SystemClock())

        store = await SqliteMetadataStore.open(Path(directory) / "m.db", clock=SystemClock())
        await run(Model(store, reopen), steps)

    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as directory:
        asyncio.run(body(directory))


@pytest.mark.fuzz
@given(st.lists(STEPS, max_size=200))
@settings(max_examples=5_000, deadline=None)
def test_fuzz_memory_agrees_with_a_dict(steps):
    async def body():
        await run(Model(MemoryMetadataStore(SystemClock()), None), steps)

    asyncio.run(body())
