"""Key hashes and range look-ups: nanoseconds per key, by kind of column and against what could be used instead."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from engine._native.format.crc32c import crc32c, crc32c_portable
from engine._native.format.ranges import RangeTable
from engine._native.produce.hashing import MURMUR3, XXH64, hash_keys, key32

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
SIZES = {"keys": 1_000 if TINY else 1_000_000, "bytes": 10_000 if TINY else 128 * 1024, "rounds": 2 if TINY else 200}


def ns_each(run: Callable[[], Any], count: int) -> float:
    """Nanoseconds per item, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / count * 1e9


class Columns:
    """hash_keys over a column of eight-byte keys."""

    params: ClassVar = (["list", "str list", "numpy S", "numpy rows", "arrow", "arrow chunked"], ["xxh64", "murmur3"])
    param_names = ("column", "hash")
    unit = "ns/key"

    def setup(self, column: str, algorithm: str) -> None:
        keys = [b"k%07d" % i for i in range(SIZES["keys"])]
        self.algorithm = XXH64 if algorithm == "xxh64" else MURMUR3
        make: dict[str, Callable[[], Any]] = {
            "list": lambda: keys,
            "str list": lambda: [key.decode() for key in keys],
            "numpy S": lambda: np.array(keys),
            "numpy rows": lambda: np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 8),
            "arrow": lambda: pa.array(keys),
            "arrow chunked": lambda: pa.chunked_array([keys[: len(keys) // 2], keys[len(keys) // 2 :]]),
        }
        self.keys = make[column]()

    def track_hash_keys(self, *_: str) -> float:
        return ns_each(lambda: hash_keys(self.keys, self.algorithm), SIZES["keys"])


class OneKey:
    """A key at a time, from Python, beside the xxhash package."""

    params: ClassVar = (["key32", "xxhash package"], [8, 32, 256])
    param_names = ("function", "size")
    unit = "ns/key"

    def setup(self, function: str, size: int) -> None:
        self.keys = [os.urandom(size) for _ in range(min(SIZES["keys"], 100_000))]
        self.function = key32 if function == "key32" else xxhash.xxh64_intdigest

    def track_call(self, *_: Any) -> float:
        function, keys = self.function, self.keys

        def run() -> None:
            for key in keys:
                function(key, 0)

        return ns_each(run, len(keys))


class Ranges:
    """A range table against NumPy's binary search and a plain table of 65,536."""

    params: ClassVar = (["table", "searchsorted", "plain 65,536"], [4, 64, 1024])
    param_names = ("method", "ranges")
    unit = "ns/hash"

    def setup(self, method: str, ranges: int) -> None:
        starts = sorted({0, *np.random.default_rng(1).integers(1, 65_536, ranges - 1).tolist()})
        self.hashes = np.random.default_rng(2).integers(0, 65_536, SIZES["keys"]).astype(np.uint16)
        table, edges = RangeTable(starts, range(len(starts))), np.array(starts[1:], dtype=np.uint16)
        plain = table.lookup_many(np.arange(65_536, dtype=np.uint16))
        self.run: Callable[[], Any] = {
            "table": lambda: table.lookup_many(self.hashes),
            "searchsorted": lambda: np.searchsorted(edges, self.hashes, side="right"),
            "plain 65,536": lambda: plain[self.hashes],
        }[method]

    def track_lookup_many(self, *_: Any) -> float:
        return ns_each(self.run, SIZES["keys"])


class Checksum:
    """CRC32C of one entry's bytes."""

    params: ClassVar = ["instruction", "tables"]
    param_names = ("way",)
    unit = "GB/s"

    def setup(self, way: str) -> None:
        self.data = os.urandom(SIZES["bytes"])
        self.function = crc32c if way == "instruction" else crc32c_portable

    def track_crc32c(self, _: str) -> float:
        def run() -> None:
            for _ in range(SIZES["rounds"]):
                self.function(self.data)

        return 1 / ns_each(run, SIZES["rounds"] * SIZES["bytes"])
