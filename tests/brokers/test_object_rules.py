"""Rules of the log of objects that a broker keeps itself, each in the moment in which it counts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.broker.hosting import object_backing
from engine.broker.hosting.object_backing import ObjectBacking
from engine.broker.hosting.ownership import INDEX_LOGS, Owned, Owner
from engine.broker.upkeep.objects import ObjectUpkeep
from engine.errors import CorruptionError, NotOwnerError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import IndexedRecords
from engine.model.names import SegmentName
from engine.storage.objects.footers import HoleError
from engine.storage.objects.references import Reference, SegmentObjects
from engine.testing.clock import FakeClock

NAME = SegmentName.parse("segment://public/default/orders/0000-ffff-0")
SESSION = "a"


class Log:
    """The log of the own session, as far as the trim is about it."""

    session = SESSION

    def __init__(self) -> None:
        self.unneeded = 5
        self.trimmed: list[int] = []

    async def trim(self, session: str, upto: int) -> None:
        self.trimmed.append(upto)

    async def delete_trimmed(self) -> int:
        return 0


class ServedMeanwhile:
    """Records, of which one is written as soon as they are read: a segment begins with the next object."""

    def __init__(self, log: Log) -> None:
        self.inner = MemoryMetadataStore(FakeClock())
        self._log = log

    @property
    def newest(self) -> ServedMeanwhile:
        return self

    async def list_index(self, index: str, start: str, end: str) -> IndexedRecords:
        found = await self.inner.list_index(index, start, end)
        objects = SegmentObjects((Reference(SESSION, self._log.unneeded, None, 1),))
        await self.inner.put("/s", msgspec.json.encode(objects), indexes={INDEX_LOGS: SESSION})
        self._log.unneeded += 4
        return found


class Segments(list[Any]):
    """None is open."""

    damaged = ()


async def test_r15_the_trim_goes_by_what_was_unneeded_before_the_records_were_read() -> None:
    """A reference that they do not have yet begins there, and not below; by now more may be unneeded than that."""
    log = Log()
    metadata = ServedMeanwhile(log)
    brokers: Any = SimpleNamespace(url="engine://a")
    unused: Any = None
    logs: Any = SimpleNamespace()
    segments: Any = Segments()
    upkeep = ObjectUpkeep(
        logs, segments, metadata, brokers, lambda: True, FakeClock(), 600.0, unused, unused  # type: ignore[arg-type]
    )  # fmt: skip
    await upkeep.trim(log)  # type: ignore[arg-type]
    assert log.trimmed == [5]
    ((_, record),) = await metadata.inner.list_index(INDEX_LOGS, SESSION, "b")
    assert msgspec.json.decode(record.value, type=SegmentObjects).starts() == {SESSION: 5}


@pytest.mark.parametrize(
    ("owner", "term", "error"),
    [("engine://a", 7, CorruptionError), ("engine://a", 8, NotOwnerError), ("engine://b", 8, NotOwnerError)],
)
async def test_r12_a_hole_is_damage_only_while_the_segment_is_still_this_brokers(
    owner: str, term: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner may have trimmed the log since: the record is read again before an alarm."""

    async def restore(*arguments: Any) -> list[str]:
        raise HoleError("no object lies at wal/c/a/000000000001")

    async def read(name: SegmentName) -> Owner:
        return Owner(owner, 1, term)

    monkeypatch.setattr(object_backing, "restore", restore)
    wal: Any = SimpleNamespace(session=SESSION, writer=SimpleNamespace(holds=lambda path: False))
    ownership: Any = SimpleNamespace(read=read, is_mine=lambda found: found.url == "engine://a")
    lease: Any = SimpleNamespace(term=7, check=lambda: None)
    unused: Any = None
    metadata = MemoryMetadataStore(FakeClock())
    backing = ObjectBacking(unused, wal, metadata, ownership, NAME, Owned(7, lease), random.Random(1))
    with pytest.raises(error):
        await backing.restore(unused, unused, "segment")
