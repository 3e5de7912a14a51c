"""Reads of ranges, in pages of one revision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from engine.metadata.etcd import messages as m
from engine.metadata.etcd.cluster import Cluster, CompactedError

PAGE = 500


async def pages(
    cluster: Cluster,
    start: bytes,
    end: bytes,
    *,
    limit: int | None = None,
    keys_only: bool = False,
    due: float | None = None,
) -> AsyncIterator[tuple[list[Any], int]]:
    """(key-value pairs in order, the revision that all pages show). There is one page at least, perhaps empty.

    Raises CompactedError when that revision is forgotten meanwhile.
    """
    revision, left = 0, limit
    while True:
        count = PAGE if left is None else min(PAGE, left)
        request = m.RangeRequest(key=start, range_end=end, limit=count, revision=revision, keys_only=keys_only)
        answer = await cluster.call("Range", request, due=due)
        revision = revision or answer.header.revision
        yield list(answer.kvs), revision
        left = None if left is None else left - len(answer.kvs)
        if not answer.more or left == 0:
            return
        start = answer.kvs[-1].key + b"\0"


async def read(
    cluster: Cluster, start: bytes, end: bytes, *, limit: int | None = None, keys_only: bool = False
) -> tuple[list[Any], int]:
    """(the key-value pairs of a range in order, the revision at which it was so), as of now or later."""
    while True:
        found: list[Any] = []
        revision = 0
        try:
            async for some, at in pages(cluster, start, end, limit=limit, keys_only=keys_only):
                found += some
                revision = at
        except CompactedError:
            continue  # it took longer than the history is kept
        return found, revision
