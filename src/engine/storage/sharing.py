"""Small rolled files of several segments become one object (R18 of docs/formats/objects.md).

    upload   all that are small and to be named next, of the segments that one session has open: one PUT
    name     each segment's record names its own part, as it would name an object of its own (R13, R14)
    settle   when the outcome of every naming is known, the object's number is: from then on only retention and the end
             of topics change which records name it, so that the sweep may delete it when none does

A file that cannot be read, or whose record is another's by now, is left out, and stops no other. A naming whose outcome
is not known leaves its number unsettled: the object is swept when its session has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import EngineError, NotOwnerError
from engine.limits import OBJECT_SHARED_SIZE_MAX
from engine.storage.consolidation import Consolidation, Rolled
from engine.storage.file.upload import upload_together
from engine.storage.objects.names import FileNames
from engine.storage.objects.references import RolledFile

if TYPE_CHECKING:
    from engine.storage.segment import Segment

_log = logging.getLogger("engine.storage")


class _Part(NamedTuple):
    segment: Segment
    consolidation: Consolidation
    rolled: Rolled


async def share(segments: Iterable[Segment], names: FileNames) -> int:
    """Upload and name small files, one of each segment, where at least two go together; how many were named.

    `names`: of the session; segments of other sessions are left out. No Consolidation.run() for these meanwhile.
    Raises UnknownOutcomeError and what the store raises of an upload: nothing of that is named, take another name.
    """
    count = 0
    for batch in _batches(_parts(segments, names)):
        if len(batch) > 1:
            count += await _share(batch, names)
    return count


def _parts(segments: Iterable[Segment], names: FileNames) -> Iterator[_Part]:
    for segment in segments:
        consolidation = segment.consolidation
        if consolidation is None or consolidation.names is not names or segment.failed is not None:
            continue
        rolled = consolidation.small(segment)
        if rolled is not None:
            yield _Part(segment, consolidation, rolled)


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    batch: list[_Part] = []
    size = 0
    for part in parts:
        more = part.rolled[0].end_position
        if size + more > OBJECT_SHARED_SIZE_MAX:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += more
    yield batch


async def _share(batch: list[_Part], names: FileNames) -> int:
    context, store = batch[0].consolidation.context, batch[0].consolidation.named.cache.store
    name, count, known = names.next_shared(), 0, True
    try:
        files = await upload_together(
            store, name, context.handles.disk, context.workers, [part.rolled for part in batch]
        )
    except EngineError:
        names.settle(name)  # nothing will name it; it may arrive
        raise
    for part, file in zip(batch, files, strict=True):
        try:
            count += await _name(part, file)
        except NotOwnerError as e:  # nothing was written
            _log.debug("%s: %s", part.segment.name, e)
        except EngineError as e:
            known = False
            _log.warning("%s: its part of %s was not named, retrying: %s", part.segment.name, name, e)
    if known:
        names.settle(name)
    return count


async def _name(part: _Part, file: RolledFile | EngineError) -> int:
    if isinstance(file, EngineError):
        return 0  # run() meets the same, and reports it
    await part.consolidation.name_shared(part.segment, *part.rolled, file)
    return 1
