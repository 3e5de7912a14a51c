"""Record batches as lines of JSON, a column at a time, against what Python's json writes a cell at a time."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from engine.cli.transfer.json_text import json_lines

BEGUN = datetime(1970, 1, 1)
ODD = ["a", "é", "😀", '"', "\\", "\n", "\x00", "\x1f", "\x7f", " ", "long" * 9]
ALPHABETS = [ODD, ["a", "b"], ["a", '"'], ["\\", "a"], ["\t", "a"]]


def written(value: Any) -> str:
    """A cell, by the plain rules."""
    if isinstance(value, datetime):
        return f'"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"'
    if isinstance(value, list):
        value = dict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def made(chance: random.Random) -> dict[str, pa.Array]:
    """Columns of one length, from none to forty rows, of texts that need escapes or do not."""
    rows, alphabet, nulls = chance.choice([0, 1, 2, 7, 40]), chance.choice(ALPHABETS), chance.choice([0.0, 0.3])

    def text() -> str:
        return "".join(chance.choices(alphabet, k=chance.randrange(6)))

    def time() -> datetime:
        return (BEGUN + timedelta(milliseconds=chance.choice([0, 1, chance.randrange(10**13)]))).replace(tzinfo=UTC)

    def column(make: Any, kind: Any) -> pa.Array:
        return pa.array([None if chance.random() < nulls else make() for _ in range(rows)], kind)

    return {
        "text": column(text, pa.string()),
        'a "name"': column(text, pa.string()),
        "number": column(lambda: chance.randrange(-9, 9_999), pa.int64()),
        "time": column(time, pa.timestamp("ms", tz="UTC")),
        "properties": column(
            lambda: {text(): text()} if chance.random() < 0.5 else {}, pa.map_(pa.string(), pa.string())
        ),
        "yes": column(lambda: chance.random() < 0.5, pa.bool_()),
    }


@pytest.mark.parametrize("seed", range(60))
def test_lines_are_those_of_the_plain_rules(seed: int):
    chance = random.Random(seed)
    whole = pa.record_batch(made(chance))
    first = chance.randrange(whole.num_rows + 1)
    batch = whole.slice(first, chance.randrange(whole.num_rows - first + 1))
    rows = [
        dict(zip(batch.schema.names, cells, strict=True)) for cells in zip(*(c.to_pylist() for c in batch), strict=True)
    ]
    wanted = "".join(
        "{" + ",".join(f"{json.dumps(name)}:{written(value)}" for name, value in row.items()) + "}\n" for row in rows
    )
    assert bytes(json_lines(batch)).decode() == wanted
