"""Deletes the records below a topic's record, fenced by the leader's term (L1).

A leader that was suspended in the middle may resume when the topic is deleted and another topic has its name. So each
round first reads the records, then confirms the leader's record, then deletes each record at the version that was
read: records written by a later leader have later versions and stay.
"""

from __future__ import annotations

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.changes import together
from engine.errors import FencedError, StorageError
from engine.metadata import keys, unsure
from engine.metadata.store import ConflictError, Record
from engine.model.names import TopicName

_AT_ONCE = 256
_ROUNDS_MAX = 8


async def erase_children(resources: ScalableTopicResources, topic: TopicName, term: int) -> None:
    """Delete all below the topic but its leader's record. Raises FencedError, UnknownOutcomeError, StorageError."""
    await _erase(resources, topic, term, f"{keys.topic(topic)}/")


async def erase_subscription(resources: ScalableTopicResources, topic: TopicName, name: str, term: int) -> None:
    """Delete a subscription's consumers and cursors, then its own record. Raises as erase_children() does."""
    own = keys.subscription(topic, name)
    await _erase(resources, topic, term, f"{own}/")
    record = await resources.metadata.newest.get(own)
    await _check(resources, topic, term)
    if record is not None:
        await unsure.delete(resources.metadata, own, record.stat.version)


async def _erase(resources: ScalableTopicResources, topic: TopicName, term: int, prefix: str) -> None:
    for _ in range(_ROUNDS_MAX):
        found = await resources.metadata.newest.list(prefix, keys.prefix_end(prefix))
        await _check(resources, topic, term)
        doomed = [record for record in found if record.key != keys.controller(topic)]
        if not doomed:
            return
        for start in range(0, len(doomed), _AT_ONCE):
            await together(_delete(resources, record) for record in doomed[start : start + _AT_ONCE])
    raise StorageError(f"records below {prefix} keep being written; try again")


async def _check(resources: ScalableTopicResources, topic: TopicName, term: int) -> None:
    leader = await resources.load_leader(topic)
    if leader is None or leader.term != term:
        raise FencedError(f"the leader of {topic} with term {term} has been replaced")


async def _delete(resources: ScalableTopicResources, record: Record) -> None:
    try:
        await unsure.delete(resources.metadata, record.key, record.stat.version)
    except ConflictError:
        return  # written or deleted in the meantime: the next round decides
