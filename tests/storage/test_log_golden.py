"""Log directories written by the first release of the format: never regenerate them; new code opens them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.entry_images import entry, values_of
from tests.kit.stores import make_store, name, read_blocks

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "logs" / "v1"


async def test_logs_of_version_1_are_read(tmp_path: Path) -> None:
    """Two rolled files and an unclosed one with zeros behind its end; quarters of the ring as buckets."""
    store = make_store(tmp_path)
    shutil.copytree(GOLDEN, store.directory(name(5)))
    segment = await store.open(name(5))
    found = [m for b in await read_blocks(segment) for m in values_of(b.data)]
    assert found == [(i, f"message {i}".encode() * 20) for i in range(30)]
    assert segment.term == 2
    assert segment.last_sequence("golden") == 29
    assert (await segment.append(entry(29, (b"message 29" * 20,), producer="golden")))[0].first_offset == 29
    assert (await segment.append(entry(30, producer="golden")))[0].first_offset == 30
    await store.close()


async def test_sealed_logs_of_version_1_are_read(tmp_path: Path) -> None:
    """One sealed file."""
    store = make_store(tmp_path)
    shutil.copytree(GOLDEN.parent / "v1-sealed", store.directory(name(6)))
    segment = await store.open(name(6))
    assert segment.sealed
    assert [m for b in await read_blocks(segment) for m in values_of(b.data)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    await store.close()
