"""Exported columns that say where a message comes from, and fields of values that are called like these."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import engine as api


@dataclasses.dataclass
class Made:
    producer: str
    sequence_id: str


def test_fields_that_are_called_as_a_column_of_the_message(engine: Any, tmp_path: Path):
    data, file = tmp_path / "data", tmp_path / "made.parquet"
    with api.open(data) as e, e.producer("made", name="writer", schema=Made) as p:
        p.send(Made("a dairy", "s-1"), sequence_id=7)
    assert engine("export", "made", file, "--data", data).code == 0
    assert pq.read_table(file).select(["producer", "sequence_id"]).to_pylist() == [
        {"producer": "a dairy", "sequence_id": "s-1"}
    ]
    chosen = ("--columns", "producer,producer_name", "--overwrite")
    assert engine("export", "made", file, "--data", data, *chosen).code == 0
    assert pq.read_table(file).to_pylist() == [{"producer": "a dairy", "producer_name": "writer"}]


def test_the_producer_has_two_names(engine: Any, tmp_path: Path):
    data, file = tmp_path / "data", tmp_path / "t.parquet"
    with api.open(data) as e, e.producer("t", name="writer") as p:
        p.send(b"v", sequence_id=7)
    assert engine("export", "t", file, "--data", data, "--columns", "producer,sequence_id,producer_name").code == 0
    assert pq.read_table(file).to_pylist() == [{"producer": "writer", "sequence_id": 7, "producer_name": "writer"}]
