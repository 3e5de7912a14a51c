"""Refuses to start on messages that no record explains: the metadata were lost, are older, or another directory's."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence

from engine.broker.hosting.remembered import check_identity
from engine.broker.upkeep.orphans import is_untouched
from engine.control.base.topic_records import ScalableTopicResources
from engine.errors import CorruptionError
from engine.metadata.identity import load_identity
from engine.metadata.store import MetadataStore
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.storage.store import SegmentStore

log = logging.getLogger(__name__)

_NAMED_MAX = 3  # of the segments in an error
_CHECKED_AT_ONCE = 256  # topics


def explains(layout: SegmentLayout | None, name: SegmentName) -> bool:
    """Whether a topic's record, None for none, accounts for messages in a store of this name.

    It does if the segment is in the layout, or its id was assigned by this layout: it left since (by retention or an
    undone change), or is about to enter. Ids rise and are never reused, so a larger id than the layout has assigned
    comes from a later version of the record. A topic's record exists from before its first message until after its
    last segment: without one nothing is explained.
    """
    if layout is None:
        return False
    info = layout.segments.get(name.segment_id)
    return name.segment_id < layout.next_segment_id if info is None else info.hash_range == name.hash_range


async def find_unexplained(
    store: SegmentStore, metadata: MetadataStore, stores: Mapping[TopicName, Sequence[SegmentName]]
) -> list[SegmentName]:
    """The stores with messages that no record explains.

    `stores`: the directories, listed before the records are read here. Nothing is written or opened. Raises what
    storage and metadata raise.
    """
    unknown = set(stores)
    resources = ScalableTopicResources(metadata)
    async for topics in resources.topic_pages():
        unknown.difference_update(topics)
    found: list[SegmentName] = []
    for i, (topic, names) in enumerate(stores.items()):
        if i % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # others are served
        if topic in unknown or not is_untouched(names):
            found += await _unexplained(store, resources, topic, names)
    return found


async def _unexplained(
    store: SegmentStore, resources: ScalableTopicResources, topic: TopicName, names: Sequence[SegmentName]
) -> list[SegmentName]:
    layout = await _layout(resources, topic)
    suspects = [name for name in names if not explains(layout, name) and await _holds_messages(store, name)]
    if not suspects:
        return []
    layout = await _layout(resources, topic)  # another broker may have made, or deleted, the topic meanwhile
    return [name for name in suspects if not explains(layout, name) and await _holds_messages(store, name)]


async def _layout(resources: ScalableTopicResources, topic: TopicName) -> SegmentLayout | None:
    record = await resources.load_topic(topic)
    return None if record is None else record.layout


async def _holds_messages(store: SegmentStore, name: SegmentName) -> bool:
    try:
        return await store.has_messages(name)
    except CorruptionError as e:
        log.warning("%s: %s", name, e)
        return True  # a damaged header was written once


async def check_explained(store: SegmentStore, metadata: MetadataStore, where: str, *, shared: bool = False) -> None:
    """Raise CorruptionError when messages are below the data directory `where` that the metadata cannot explain.

    `shared`: with other brokers, one of which may have crashed within a change and left such a store: it is logged
    only. No broker deletes it (`_check_lost` in open_segments.py).
    """
    stores, resources = await store.everything(), ScalableTopicResources(metadata)
    found: list[SegmentName | str] = [*await find_unexplained(store, metadata, stores)]
    found += await store.long_named(resources.topic_pages())
    if not found:
        if not shared:
            names = itertools.chain.from_iterable(stores.values())
            check_identity(await store.newest(names), await load_identity(metadata), where)
        return
    named = ", ".join(map(str, found[:_NAMED_MAX]))
    more = f" and {len(found) - _NAMED_MAX:,} more" if len(found) > _NAMED_MAX else ""
    why = "knows nothing of them: it is missing, or an older copy, or of another directory"
    what = f"{where} holds messages of segments ({named}{more}), and metadata.db {why}"
    if shared:
        log.error("%s", what)
        return
    raise CorruptionError(
        f"{what}; put back metadata.db with its -wal and metadata.mark, or run `engine inspect --repair {where}`, "
        f"which makes new records"
    )
