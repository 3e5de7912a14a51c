"""What a topic is besides its messages: read at the source, made and completed at the destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.client import AsyncClient
from engine.client.net.pool import persist
from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnsupportedError
from engine.limits import BUCKETS_PER_SEGMENT_MAX
from engine.migration.marker import PROPERTY, Marker
from engine.wire import commands

# While messages come, nothing may be deleted: what the source keeps for a subscription has none at the destination yet.
KEEP_ALL = {"retention_time_s": -1, "retention_size_bytes": -1, "message_ttl_s": -1}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """`policies`: what the topic says itself. `schemas`: the versions, in order. `marker`: of a copy of it."""

    name: str
    segments: int
    entry_buckets: int
    key_hash: str
    durability: str
    properties: Mapping[str, str]
    policies: Mapping[str, Any]
    auto_scale: Mapping[str, Any] | None
    schemas: tuple[Mapping[str, str], ...]
    marker: Marker


async def read_facts(client: AsyncClient, topic: str) -> TopicFacts:
    """Those of the source. Raises NotFoundError."""
    metadata: Any = await client.admin.get_metadata(topic)
    active = [s for s in metadata["segments"].values() if s["state"] == "ACTIVE"]
    buckets = sum(len(s["bucketBoundaries"]) for s in active)
    return TopicFacts(
        name=topic,
        segments=len(active),
        entry_buckets=min(max(buckets, metadata["entryBuckets"]), BUCKETS_PER_SEGMENT_MAX),
        key_hash=metadata["keyHash"],
        durability=metadata["durability"],
        properties={name: text for name, text in metadata["properties"].items() if name != PROPERTY},
        policies=await client.admin.get_topic_policies(topic, own=True) or {},
        auto_scale=await client.admin.get_auto_scale_policy(topic) or None,
        schemas=tuple(await _schemas(client, topic, None)),
        marker=Marker(topic, metadata["createdAtMs"]),
    )


async def prepare(client: AsyncClient, target: str, source: TopicFacts) -> Marker:
    """Make the destination, or find what an earlier run has made; how far that has come.

    Raises AlreadyExistsError for a topic that is no copy of this source.
    """
    try:
        metadata: Any = await client.admin.get_metadata(target)
    except NotFoundError:
        await _create(client, target, source)
        found = source.marker
    else:
        said = metadata["properties"].get(PROPERTY)
        earlier = None if said is None else Marker.parse(said)
        if earlier is None or not earlier.same_source(source.marker):
            raise AlreadyExistsError(
                f"the destination has a topic {target} that is no copy of this {source.name}: delete it, or copy under "
                "another name"
            )
        found = earlier
    await client.admin.set_topic_policies(target, KEEP_ALL)
    for version in source.schemas:
        await declare(client, target, version)
    return found


async def _create(client: AsyncClient, target: str, source: TopicFacts) -> None:
    """With the source's durability; where the destination has no such, with its own default."""
    more: dict[str, Any] = {
        "segments": source.segments,
        "entry_buckets": source.entry_buckets,
        "key_hash": source.key_hash,
        "properties": {**source.properties, PROPERTY: source.marker.text()},
        "auto_scale": source.auto_scale,
    }
    durability: Any = source.durability
    try:
        await client.admin.create_topic(target, durability=durability, **more)
    except (InvalidArgumentError, UnsupportedError) as e:
        if "durability" not in str(e) and durability not in str(e):
            raise
        await client.admin.create_topic(target, **more)


async def save_marker(client: AsyncClient, target: str, source: TopicFacts, marker: Marker) -> None:
    """Record how far the copy has come."""
    await client.admin.set_topic_properties(target, {**source.properties, PROPERTY: marker.text()})


async def complete(client: AsyncClient, target: str, source: TopicFacts) -> None:
    """The source's own policies hold from now on."""
    own = {name: source.policies.get(name) for name in KEEP_ALL}
    await client.admin.set_topic_policies(target, own)


async def declare(client: AsyncClient, topic: str, schema: Mapping[str, str]) -> list[dict[str, str]]:
    """Make a schema one of the topic's versions, which are returned. Raises SchemaError."""
    return await _schemas(client, topic, schema)


async def _schemas(client: AsyncClient, topic: str, declared: Mapping[str, str] | None) -> list[dict[str, str]]:
    """The versions of a topic, after `declared` has become one of them."""
    schema = None if declared is None else dict(declared)
    request = commands.TopicSchema(topic=topic, schema=schema, producer=declared is not None)
    pool = client.pool

    async def once() -> list[dict[str, str]]:
        answer = await pool.ask_any(request)
        return [{"type": one.type, "definition": one.definition} for one in answer.versions]

    return await persist(pool, once, pool.options.operation_timeout, f"the schemas of {topic}")


def moved(marker: Marker, segment_id: int, end: int) -> Marker:
    """The marker after a segment was copied up to `end`."""
    return replace(marker, positions={**marker.positions, segment_id: end})
