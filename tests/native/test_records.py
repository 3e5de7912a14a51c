"""Commits of the metadata store's table against the plain model: what is visible, and what goes to the file."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from engine._native.records.rows import Row, checksum_of, fields_of, step_of
from engine.metadata.batch import Batch
from engine.metadata.store import ANY, Append, Put, Record, Stat
from engine.metadata.table import Table
from tests.reference.records_reference import ModelTable

ENCODE = msgspec.json.Encoder(order="sorted").encode
KEYS = st.sampled_from(["/a", "/b", "/b/00000000000000000003", "/c/ä", "/d"])
INDEXES = st.dictionaries(
    st.sampled_from(["i", "j"]), st.sampled_from(["1", "2", ("1", "3"), ("2",), ("3", "2", "1")]), max_size=2
)
VALUES = st.binary(max_size=9)
WRITES = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES, INDEXES),
    st.tuples(st.just("sequence"), st.sampled_from(["/b", "/e"]), VALUES, INDEXES),
    st.tuples(st.just("both"), KEYS, VALUES, INDEXES),
    st.tuples(st.just("delete"), KEYS),
)


def evaluate(batch: Batch, model: ModelTable, now_ms: int, name: str, key: str, *rest: Any) -> None:
    """One write, in both."""
    if name == "delete":
        assert batch.delete(key, ANY) == model.delete(key)
        return
    value, indexes = rest
    if name == "put":
        stat = batch.put(Put(key, value, indexes=indexes))
        model.put(key, value, now_ms, indexes)
        assert stat.version == model.version
    elif name == "sequence":
        record = batch.put_sequence(key, value, indexes)
        assert record.key == model.put_sequence(key, value, now_ms, indexes)
        assert (record.value, record.stat.version) == (value, model.version)
    else:
        stat, record = batch.put_with_sequence(Put(key, value, indexes=indexes), Append("/f", b"op", None, {"i": "9"}))
        assert record.key == model.put_sequence("/f", b"op", now_ms, {"i": "9"})
        model.put(key, value, now_ms, indexes)
        assert stat.version == model.version == record.stat.version + 1


@given(st.lists(st.lists(WRITES, max_size=6), max_size=8))
@settings(max_examples=300, deadline=None)
def test_commits_are_those_of_the_plain_model(commits: list[list[tuple[Any, ...]]]):
    table, model = Table(), ModelTable()
    count = digest = 0
    for now_ms, writes in enumerate(commits, 100):
        before = dict(model.rows)
        batch = Batch(table, now_ms)
        for write in writes:
            evaluate(batch, model, now_ms, *write)
        put, removed, count, digest = step_of(batch.changes, count, digest, ENCODE)
        wanted = [row.fields() for key, row in model.rows.items() if row is not before.get(key)]
        assert sorted(put) == sorted(wanted)
        assert sorted(removed) == sorted(before.keys() - model.rows.keys())
        assert count == len(model.rows)
        assert digest == sum(row.fields()[-1] for row in model.rows.values())
        assert {key: row.record.stat.version for key, row in table.rows.items()} == {
            key: row.version for key, row in before.items()
        }  # nothing is visible yet
        batch.apply()
        for key, row in model.rows.items():
            stat = Stat(row.version, row.created_ms, row.modified_ms)
            assert table.rows[key].record == Record(key, row.value, stat)
        assert table.keys("", "~") == sorted(model.rows)
        for index in ("i", "j"):
            assert table.index_keys(index, "", "~") == model.index(index)
        if batch.changes:
            assert table.version == model.version
    assert table.changed_since(0) is not None


@given(KEYS, VALUES, st.integers(0, 2**62), st.none() | st.integers(0, 2**62), INDEXES)
def test_a_row_keeps_the_checksum_of_its_fields(
    key: str, value: bytes, version: int, session: int | None, indexes: dict[str, Any]
):
    row = Row(Record(key, value, Stat(version, 1, 2, session)), indexes)
    assert row.checksum == -1
    fields = fields_of(row, ENCODE)
    assert fields[:6] == (key, value, version, 1, 2, session)
    assert row.checksum == fields[-1] == checksum_of(key, value, *fields[2:-1])
