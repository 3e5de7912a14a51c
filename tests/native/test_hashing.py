"""The key hashes against their golden vectors, the xxhash package and the readable model, over every kind of column."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from engine._native.produce.columns import Column, instants_ms
from engine._native.produce.hashing import MURMUR3, XXH64, hash_keys, key32, murmur3_32, xxh64
from engine.errors import InvalidArgumentError
from tests.reference.batcher_reference import key32 as model_key32
from tests.reference.batcher_reference import murmur3 as model_murmur3

MURMUR3_VECTORS = {
    "": 0x00000000,
    "a": 0x3C2569B2,
    "order-42": 0x4B11A18E,
    "key-0": 0xE337F8BF,
    "ünïcödé": 0x7B5AF2C4,
    "日本": 0xC4D9F942,
}
TEXTS = ["", "a", "order-42", "ünïcödé", "日本", "x" * 200, *(f"key-{i}" for i in range(5000))]
KEYS = [text.encode() for text in TEXTS]
ROWS = np.random.default_rng(5).integers(0, 256, (700, 8), dtype=np.uint8)


@pytest.mark.parametrize(("text", "expected"), MURMUR3_VECTORS.items())
def test_murmur3_golden_vectors(text: str, expected: int) -> None:
    assert key32(text, MURMUR3) == key32(text.encode(), MURMUR3) == murmur3_32(text.encode()) == expected


def test_xxh64_agrees_with_the_xxhash_package_at_every_length() -> None:
    data = random.Random(1).randbytes(400)
    for size in range(201):
        for start in (0, 1, 3):
            part = memoryview(data)[start : start + size]
            assert xxh64(part) == xxh64(part, 42) == xxhash.xxh64_intdigest(part, 42), (start, size)
            assert xxh64(part, 2**64 - 1) == xxhash.xxh64_intdigest(part, 2**64 - 1)
            assert key32(part) == xxh64(part) >> 32


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_murmur3_agrees_with_the_model(data: bytes, seed: int) -> None:
    assert murmur3_32(data, seed) == model_murmur3(data, seed)


@given(st.lists(st.binary(max_size=50)), st.sampled_from([XXH64, MURMUR3]))
def test_columns_agree_with_single_keys(keys: list[bytes], algorithm: int) -> None:
    expected = [model_key32(key, algorithm) for key in keys]
    assert [key32(key, algorithm) for key in keys] == expected
    hashes = hash_keys(keys, algorithm)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected


COLUMNS = {
    "list of bytes": KEYS,
    "list of str": TEXTS,
    "list of buffers": [bytearray(key) if i % 2 else memoryview(key) for i, key in enumerate(KEYS)],
    "tuple": tuple(KEYS),
    "numpy S": np.array(KEYS),
    "numpy U": np.array(TEXTS),
    "numpy object": np.array(KEYS, dtype=object),
    "numpy object of str": np.array(TEXTS, dtype=object),
    "arrow binary": pa.array(KEYS, pa.binary()),
    "arrow string": pa.array(TEXTS, pa.string()),
    "arrow large_binary": pa.array(KEYS, pa.large_binary()),
    "arrow large_string": pa.array(TEXTS, pa.large_string()),
    "arrow binary_view": pa.array(KEYS, pa.binary_view()),
    "arrow dictionary": pa.array(KEYS, pa.binary()).dictionary_encode(),
    "arrow dictionaries, sliced": pa.chunked_array(
        [
            pa.DictionaryArray.from_arrays(
                pa.array([9, 9, *range(len(part)), 9], pa.int32()).slice(2, len(part)), pa.array([b"x", *part]).slice(1)
            )
            for part in (KEYS[:3], KEYS[3:])
        ]
    ),
    "arrow string_view": pa.array(TEXTS, pa.string_view()),
    "arrow sliced": pa.concat_arrays([pa.array([b"no"] * 13), pa.array(KEYS)])[13:],
    "arrow chunked": pa.chunked_array([KEYS[:1], [], KEYS[1:100], KEYS[100:]], pa.binary()),
    "arrow chunked, sliced": pa.chunked_array([[b"no"] * 9, KEYS[:50], KEYS[50:]], pa.binary())[9:],
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
@pytest.mark.parametrize("algorithm", [XXH64, MURMUR3])
def test_every_kind_of_column(column: object, algorithm: int) -> None:
    expected = [model_key32(key, algorithm) for key in KEYS]
    assert hash_keys(column, algorithm).tolist() == expected
    assert [Column(column, text=True)[i] for i in range(10)] == KEYS[:10]


FIXED = {
    "numpy rows": ROWS,
    "numpy rows, Fortran order": np.asfortranarray(ROWS),
    "numpy every other row": np.repeat(ROWS, 2, axis=0)[::2],
    "numpy V": ROWS.view("V8").ravel(),
    "arrow fixed_size_binary": pa.array([row.tobytes() for row in ROWS], pa.binary(8)),
}


@pytest.mark.parametrize("column", FIXED.values(), ids=FIXED.keys())
def test_columns_of_fixed_width(column: object) -> None:
    assert hash_keys(column).tolist() == [model_key32(row.tobytes(), 0) for row in ROWS]


EMPTY = [[], np.array([], dtype="S4"), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())]


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_columns(empty: object) -> None:
    assert hash_keys(empty).tolist() == []


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([b"a", None], r"keys\[1\] must be str or bytes or a buffer, got NoneType"),
        ([1], r"keys\[0\] .* got int"),
        (pa.array([b"a", None]), r"keys\[1\] is null"),
        (pa.chunked_array([[b"a"], [b"b", None]]), r"keys\[2\] is null"),
        (pa.array([b"a", None], pa.binary_view()), r"keys\[1\] is null"),
        ("text", "got str"),
        (b"bytes", "got bytes"),
        (5, "got int"),
        (np.zeros(3), "float64"),
        (np.zeros((2, 2), dtype="S1"), "2-dimensional"),
        (pa.array([1, 2]), "cast it to binary"),
        (pa.array(["a", None]).dictionary_encode(), r"keys\[1\] is null"),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["a"]), "with a dictionary"),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a", None])), "with a dictionary"),
        (
            pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a"], pa.large_string())),
            "with a dictionary",
        ),
        (pa.array([1]).dictionary_encode(), "cast it to binary"),
        (["\ud800"], "not valid Unicode"),
    ],
)
def test_what_cannot_be_a_key_is_refused(column: object, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        hash_keys(column)


def test_an_unknown_hash_is_refused() -> None:
    for algorithm in (-1, 3):
        with pytest.raises(InvalidArgumentError, match="key hash"):
            key32(b"a", algorithm)


def test_semantics_1_segment_and_bucket_hash_are_disjoint_halves() -> None:
    """With the same bits for both, the keys of one of 64 segments would fall into few of its 64 buckets."""
    hashes = hash_keys([b"key-%d" % i for i in range(100_000)])
    for segment in (0, 17, 63):
        inside = hashes[hashes >> 26 == segment]
        filled = np.bincount((inside & 0xFFFF) >> 10, minlength=64)
        assert filled.min() > 0
        assert filled.max() < 3 * filled.mean()


INSTANTS = [0, 1, -1, 1_700_000_000_123]
STAMPS = np.array(INSTANTS).astype("datetime64[ms]")


@pytest.mark.parametrize(
    "column",
    [
        INSTANTS,
        np.array(INSTANTS),
        np.array([*INSTANTS, 0])[:4],
        STAMPS,
        STAMPS.astype("datetime64[us]"),
        STAMPS.astype("datetime64[ns]"),
        pa.array(STAMPS, pa.timestamp("ms", "UTC")),
        pa.array(STAMPS, pa.timestamp("ns")),
        pa.chunked_array([pa.array(STAMPS[:1]), pa.array(STAMPS[1:])]),
        pa.array(INSTANTS),
    ],
    ids=str,
)
def test_columns_of_instants(column: object) -> None:
    assert instants_ms(column).tolist() == INSTANTS


def test_instants_may_be_missing() -> None:
    none = -(2**63)
    assert instants_ms([None, 5]).tolist() == [none, 5]
    assert instants_ms(np.array(["NaT", "1970-01-01T00:00:01"], dtype="datetime64[s]")).tolist() == [none, 1000]
    assert instants_ms(pa.array([None, 5], pa.timestamp("ms"))).tolist() == [none, 5]
    assert instants_ms(pa.array([None, 5])).tolist() == [none, 5]


@pytest.mark.parametrize("column", [["x"], np.zeros(2), pa.array(["x"]), 5, [2**63], [True]])
def test_what_cannot_be_instants_is_refused(column: object) -> None:
    with pytest.raises(InvalidArgumentError):
        instants_ms(column)
