"""Subscriptions of a topic, and what they have acknowledged, at the copy.

A cursor is a position in each segment, below which everything is acknowledged. At the copy the messages of a segment
are elsewhere and among others, but each says which offset it had: so what lies below the position at the source is
acknowledged at the copy, message by message, and nothing else is. Acknowledgements above a position have no such form:
queue consumers, and stream consumers that share a segment, leave such until the gaps are closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine._native.produce.hashing import xxh64
from engine.client import AsyncClient
from engine.client.base.options import Keys
from engine.errors import AlreadyExistsError, UnsupportedError
from engine.migration.copying import BATCH_MESSAGES, read_extent
from engine.migration.marker import Marker
from engine.migration.side import Side
from engine.model.hashrange import HashRange
from engine.model.names import TopicName


@dataclass(frozen=True, slots=True)
class Standing:
    """A subscription. `positions`: {segment: the first offset that it has not acknowledged}."""

    name: str
    kind: str | None
    positions: Mapping[int, int]


async def read_standings(client: AsyncClient, topic: str) -> list[Standing]:
    """All subscriptions of the source.

    Raises UnsupportedError for one that has acknowledged something above a position.
    """
    metadata: Any = await client.admin.get_metadata(topic)
    numbers: Any = await client.admin.get_stats(topic)
    positions: dict[str, dict[int, int]] = {name: {} for name in numbers["subscriptions"]}
    for segment in metadata["segments"].values():
        ring, segment_id = segment["hashRange"], segment["segmentId"]
        name = str(TopicName.parse(topic).segment(HashRange(ring["start"], ring["end"]), segment_id))
        details: Any = await client.admin.get_segment_stats(name)
        for subscription, part in details["subscriptions"].items():
            if part["acknowledgedAbove"]:
                raise UnsupportedError(
                    f"the subscription {subscription} of {topic} has acknowledged {part['acknowledgedAbove']} messages "
                    f"of segment {segment_id} behind offset {part['position']}, which it has not: let its consumers "
                    "acknowledge that first, or copy without subscriptions"
                )
            if subscription in positions:
                positions[subscription][segment_id] = part["position"]
    return [Standing(name, numbers["subscriptions"][name]["kind"], found) for name, found in positions.items()]


async def create(client: AsyncClient, target: str, standings: list[Standing]) -> None:
    """Make the subscriptions before messages come: so nothing that they have not acknowledged is deleted."""
    for standing in standings:
        kind: Any = standing.kind
        try:
            await client.admin.create_subscription(target, standing.name, initial_position="earliest", kind=kind)
        except AlreadyExistsError:
            continue  # of an earlier run


async def acknowledge(
    destination: Side, target: str, standings: list[Standing], marker: Marker, keys: Keys | None
) -> None:
    """Acknowledge at the copy what was acknowledged at the source."""
    segment_of = {xxh64(marker.producer(i).encode()): i for standing in standings for i in standing.positions}
    ranges = (await destination.run(read_extent(destination.client, target))).ranges
    runs: dict[tuple[str, int], list[list[int]]] = {}
    reader = await destination.run(_reader(destination.client, target, ranges, keys))
    try:
        while (batch := await destination.run(reader.next_batch(BATCH_MESSAGES))) is not None:
            for part in batch.slices:
                origin = segment_of.get(part.entry.producer_id)
                if origin is not None:
                    _extend(runs, part, origin, standings)
    finally:
        await destination.run(reader.close())
    for (subscription, segment_id), found in runs.items():
        for first, last in found:
            await destination.run(_skip(destination.client, target, subscription, segment_id, first, last))


def _extend(runs: dict[tuple[str, int], list[list[int]]], part: Any, origin: int, standings: list[Standing]) -> None:
    """Add the messages of a slice that are acknowledged, run by run."""
    entry, positions = part.entry, [(s.name, s.positions.get(origin, 0)) for s in standings]
    messages = entry.messages()[part.start : part.stop]
    for offset, message in enumerate(messages, entry.first_offset + part.start):
        for name, position in positions:
            if message.sequence_id >= position:
                continue
            found = runs.setdefault((name, entry.segment_id), [])
            if found and found[-1][1] == offset - 1:
                found[-1][1] = offset
            else:
                found.append([offset, offset])


async def _reader(client: AsyncClient, topic: str, ranges: Mapping[int, tuple[int, int]], keys: Keys | None) -> Any:
    return await client.range_reader(topic, ranges, decryption_keys=keys)


async def _skip(client: AsyncClient, topic: str, subscription: str, segment_id: int, first: int, last: int) -> None:
    await client.admin.skip_messages(topic, subscription, segment_id, first, last)
