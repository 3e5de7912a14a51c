"""Where a topic is: its one segment, and the broker that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.errors import NotFoundError
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.model.partitions import partition_count
from engine.pulsar.names import segment_in, topic_of
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session


class Place(NamedTuple):
    """A topic's segment, and the address of its broker for this client."""

    name: SegmentName
    url: str


async def segment_of(session: Session, topic: TopicName, *, create: bool) -> Place:
    """The topic's segment; the topic is created where it is missing and `create` is set, as the broker's rules allow.

    Raises NotFoundError, AuthorizationError, UnsupportedError: the topic stands for partitions.
    """
    ident = session.lookup_number()
    update = await session.ask(
        lambda number: commands.ScalableTopicLookup(
            request_id=number, session_id=ident, topic=str(topic), create=create
        )
    )
    session.native(commands.ScalableTopicClose(session_id=ident))
    found = next(segment for segment in update.dag.segments if segment.state == "ACTIVE")
    name = SegmentName(topic, HashRange(found.hashRange.start, found.hashRange.end), found.segmentId)
    return Place(name, (update.dag.segmentBrokers or {}).get(str(found.segmentId), ""))


async def place_of(session: Session, text: str, *, create: bool) -> Place:
    """The segment that producers and consumers of a name attach to: of a classic topic, or the one that it names."""
    name = segment_in(text)
    return await segment_of(session, topic_of(text), create=create) if name is None else Place(name, "")


async def owner_of(session: Session, name: SegmentName) -> str:
    """The address of a segment's broker for this client. Raises NotFoundError."""
    ident = session.lookup_number()
    update = await session.ask(
        lambda number: commands.ScalableTopicLookup(
            request_id=number, session_id=ident, topic=str(name.topic), create=False
        )
    )
    session.native(commands.ScalableTopicClose(session_id=ident))
    if all(segment.segmentId != name.segment_id for segment in update.dag.segments):
        raise NotFoundError(f"{name} is not in the layout of its topic")
    return str((update.dag.segmentBrokers or {}).get(str(name.segment_id), ""))


async def partitions_of(session: Session, topic: TopicName) -> int:
    """How many partitions a topic has, 0: it is a topic itself. Raises NotFoundError, UnsupportedError."""
    await segment_of(session, topic, create=False)  # which checks that the client may look it up
    record = await session.host.service.get_metadata(topic)
    return partition_count(topic, record.get("properties"))
