"""`ScalableTopicResources`: the control plane's records in the metadata store, read and written whole (PIP-468)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import AlreadyExistsError, InvalidArgumentError, UnknownOutcomeError
from engine.metadata import keys, unsure
from engine.metadata.store import (
    ABSENT,
    ConflictError,
    Expected,
    MetadataStore,
    OutcomeUnknownError,
    Record,
    Session,
)
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.fields import Fields, dump
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName, check_property_names
from engine.model.policies import AUTO_SCALE, CREATED, FIELDS, NamespacePolicies, TopicPolicies, policies_of_topic
from engine.model.redelivery import DEAD_LETTER_SUFFIX
from engine.model.subscriptions import ConsumerRegistration, SubscriptionMetadata

if TYPE_CHECKING:
    from engine.control.base.quotas import LimitsOf

# Secondary indexes, each by `index_key(topic)`.
INDEX_TOPICS = "topics"  # records of topics
INDEX_CHANGES = "topic-changes"  # those of them with a PendingChange
INDEX_CONTROLLERS = "topic-controllers"  # records of leaders

_READ_AT_ONCE = 256  # topics
_WRITE_ATTEMPTS_MAX = 3


def index_key(topic: TopicName) -> str:
    """A topic's key in the indexes, which sort by tenant, namespace, name."""
    return "/".join(keys.encode(part) for part in (topic.tenant, topic.namespace, topic.local))


def topic_of_key(key: str) -> TopicName:
    """The topic of a topic's or leader's record."""
    tenant, namespace, local = key.removeprefix(keys.TOPICS).split("/")[:3]
    return TopicName(keys.decode(tenant), keys.decode(namespace), keys.decode(local))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic's record in the store."""

    layout: SegmentLayout
    version: int


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The leader of a topic. The version of the record is the term: it rises with every election."""

    url: str
    term: int
    session: int | None


def check_new_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError for names that a topic's properties cannot have."""
    if all(isinstance(name, str) for name in properties):  # otherwise the layout's own check names the fault
        check_property_names(properties, "topic")


def classic_facts(
    name: TopicName, segments: int | None, key_hash: str | None, entry_buckets: int | None
) -> tuple[int, str, int, dict[str, Any]]:
    """The facts of a classic topic, whose messages have one order. Raises InvalidArgumentError for others."""
    for what, given, right in (("segments", segments, 1), ("entry_buckets", entry_buckets, 1)):
        if given not in (None, right):
            raise InvalidArgumentError(f"{what} of {name} must be {right}, as of any persistent:// topic, got {given}")
    return 1, key_hash or "murmur3", 1, {"enabled": False}


async def _unlimited(tenant: str) -> None:
    """No limits of any tenant."""


class ScalableTopicResources:
    """Reads raise CorruptionError; writes ConflictError when the record is not as expected, UnknownOutcomeError."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata
        self.limits_of: LimitsOf = _unlimited

    async def load_topic(self, topic: TopicName) -> TopicRecord | None:
        """The topic's record, also while the topic is being deleted."""
        return _topic_record(await self.metadata.newest.get(keys.topic(topic)))

    async def known_topic(self, topic: TopicName) -> TopicRecord | None:
        """load_topic() as this process knows it: a change by another broker may show a moment later."""
        return _topic_record(await self.metadata.mirror.get(keys.topic(topic)))

    async def save_topic(self, topic: TopicName, layout: SegmentLayout, expected: Expected | int) -> TopicRecord:
        """Create (ABSENT) or replace (a version) the record."""
        indexes = {INDEX_TOPICS: index_key(topic)}
        if layout.change is not None:
            indexes[INDEX_CHANGES] = index_key(topic)
        version = await self._put(keys.topic(topic), layout.to_json(), expected, indexes=indexes)
        return TopicRecord(layout, version)

    async def check_new_topic(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Raise InvalidArgumentError unless a topic with this name and these properties may be created.

        The dead-letter topic of an existing topic may have a name that a newer rule forbids.
        """
        check_new_properties(properties)
        try:
            topic.check_new()
        except InvalidArgumentError:
            source = topic.local.removesuffix(DEAD_LETTER_SUFFIX)
            if source in ("", topic.local):
                raise
            if await self.load_topic(TopicName(topic.tenant, topic.namespace, source)) is None:
                raise

    async def topics_below(self, resource: str) -> list[TopicName]:
        """The topics of a namespace, of a tenant, or all of them: "*"."""
        from engine.model.rights import CLUSTER

        prefix = "" if resource == CLUSTER else "/".join(map(keys.encode, resource.split("/"))) + "/"
        end = keys.prefix_end(prefix) if prefix else keys.LAST
        found = await self.metadata.newest.list_index(INDEX_TOPICS, prefix, end)
        return [topic_of_key(record.key) for _, record in found]

    async def delete_topic(self, topic: TopicName, version: int) -> None:
        """Delete the topic's own record; see `erasure` for the records below it."""
        await self._delete(keys.topic(topic), version)

    async def list_topics(self, tenant: str, namespace: str) -> list[tuple[TopicName, bytes]]:
        """The topics of a namespace by name, each with its record's value."""
        prefix = f"{keys.encode(tenant)}/{keys.encode(namespace)}/"
        found = await self.metadata.mirror.list_index(INDEX_TOPICS, prefix, keys.prefix_end(prefix))
        return sorted((topic_of_key(record.key), record.value) for _, record in found)

    async def topic_pages(self) -> AsyncIterator[list[TopicName]]:
        """The topics of all namespaces, in pages. Topics created or deleted in the meantime may be missing."""
        start = ""
        while found := await self.metadata.newest.list_index(INDEX_TOPICS, start, keys.LAST, _READ_AT_ONCE):
            yield [topic_of_key(record.key) for _, record in found]
            start = found[-1][0] + "\0"
            await asyncio.sleep(0)  # let the loop serve other work

    async def list_namespaces(self) -> list[str]:
        """Every "tenant/namespace" with a topic or a record that says something, sorted. One look-up for each."""
        found: set[tuple[str, str]] = set()
        start = ""
        while first := await self.metadata.newest.list_index(INDEX_TOPICS, start, keys.LAST, 1):
            topic = topic_of_key(first[0][1].key)
            found.add((topic.tenant, topic.namespace))
            start = keys.prefix_end(f"{keys.encode(topic.tenant)}/{keys.encode(topic.namespace)}/")
            await asyncio.sleep(0)  # let the loop serve other work
        for record in await self.metadata.newest.list(keys.NAMESPACES, keys.prefix_end(keys.NAMESPACES)):
            if _namespace(record).values:
                found.add(keys.namespace_of(record.key))
        return sorted("/".join(name) for name in found)

    async def leaving(self, tenant: str, namespace: str) -> set[TopicName]:
        """The topics of a namespace that are being deleted."""
        prefix = f"{keys.encode(tenant)}/{keys.encode(namespace)}/"
        found = await self.metadata.mirror.list_index(INDEX_CHANGES, prefix, keys.prefix_end(prefix))
        changes = ((topic_of_key(record.key), SegmentLayout.change_in(record.value)) for _, record in found)
        return {topic for topic, change in changes if change is not None and change.deletes}

    async def unfinished(self) -> list[TopicName]:
        """The topics with a pending change."""
        found = await self.metadata.newest.list_index(INDEX_CHANGES, "", keys.LAST)
        return [topic_of_key(record.key) for _, record in found]

    # Leaders.

    async def load_leader(self, topic: TopicName) -> LeaderRecord | None:
        return _leader_record(await self.metadata.newest.get(keys.controller(topic)))

    async def known_leader(self, topic: TopicName) -> LeaderRecord | None:
        """load_leader() as this process knows it."""
        return _leader_record(await self.metadata.mirror.get(keys.controller(topic)))

    async def elect(self, topic: TopicName, url: str, session: Session) -> int:
        """Become leader for as long as the session lives; returns the term."""
        indexes = {INDEX_CONTROLLERS: index_key(topic)}
        return await self._put(keys.controller(topic), url.encode(), ABSENT, session=session, indexes=indexes)

    async def resign(self, topic: TopicName, term: int) -> None:
        """Give the leadership up. Does nothing when another broker leads."""
        try:
            await self._delete(keys.controller(topic), term)
        except ConflictError:
            return

    # Subscriptions.

    async def load_subscription(self, topic: TopicName, name: str) -> tuple[SubscriptionMetadata, int] | None:
        """The record and its version."""
        record = await self.metadata.newest.get(keys.subscription(topic, name))
        return None if record is None else (SubscriptionMetadata.from_json(record.value), record.stat.version)

    async def save_subscription(self, topic: TopicName, facts: SubscriptionMetadata, expected: Expected | int) -> int:
        """Create (ABSENT) or replace the record; its new version."""
        return await self._put(keys.subscription(topic, facts.name), facts.to_json(), expected)

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionMetadata]:
        """All subscriptions by name, also those being created or deleted."""
        found = [await self.metadata.newest.get(key) for key in await self.subscription_keys(topic)]
        return sorted((SubscriptionMetadata.from_json(r.value) for r in found if r), key=lambda s: s.name)

    async def subscription_keys(self, topic: TopicName) -> list[str]:
        """The keys of its subscriptions' records, also of those being created or deleted."""
        return [key for key in await self._below(topic) if key.count("/") == _DEPTH]

    # Consumers' sessions.

    async def save_consumer(
        self, topic: TopicName, subscription: str, facts: ConsumerRegistration, expected: Expected | int
    ) -> int:
        """Create (ABSENT) or replace the record; its new version."""
        key = keys.consumer(topic, subscription, facts.consumer_name)
        return await self._put(key, facts.to_json(), expected)

    async def load_consumer(self, topic: TopicName, subscription: str, name: str) -> ConsumerRegistration | None:
        """A session's record; None without one."""
        record = await self.metadata.newest.get(keys.consumer(topic, subscription, name))
        return None if record is None else ConsumerRegistration.from_json(record.value)

    async def consumer_version(self, topic: TopicName, subscription: str, name: str) -> int | None:
        """The version of a session's record; None without a record."""
        record = await self.metadata.newest.get(keys.consumer(topic, subscription, name))
        return None if record is None else record.stat.version

    async def delete_consumer(self, topic: TopicName, subscription: str, name: str, expected: Expected | int) -> None:
        await self._delete(keys.consumer(topic, subscription, name), expected)

    async def list_consumers(self, topic: TopicName) -> list[tuple[str, ConsumerRegistration, int]]:
        """(subscription, registration, version) of every session of the topic."""
        prefix, sessions = keys.subscriptions(topic), []
        for key in await self._below(topic):
            parts = key[len(prefix) :].split("/")
            if len(parts) == 3 and parts[1] == "consumers" and (record := await self.metadata.newest.get(key)):
                facts = ConsumerRegistration.from_json(record.value)
                sessions.append((keys.decode(parts[0]), facts, record.stat.version))
        return sessions

    async def _below(self, topic: TopicName) -> list[str]:
        prefix = keys.subscriptions(topic)
        return await self.metadata.newest.list_keys(prefix, keys.prefix_end(prefix))

    # Namespaces.

    async def load_topic_policies(self, topic: TopicName) -> TopicPolicies | None:
        """What the topic says itself; None: it does not exist."""
        record = await self.metadata.mirror.get(keys.topic(topic))
        return None if record is None else policies_of_topic(record.value)

    async def load_policies(self, tenant: str, namespace: str) -> NamespacePolicies | None:
        """The namespace's policies; None when it has none."""
        record = await self.metadata.mirror.get(keys.namespace(tenant, namespace))
        known = record is not None and not FIELDS.isdisjoint(_namespace(record).values)
        return NamespacePolicies.from_json(record.value) if record is not None and known else None

    async def change_policies(
        self, tenant: str, namespace: str, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> None:
        """Change the policies by compare-and-set. Other fields of the namespace's record stay."""

        def changed(record: Fields) -> dict[str, Any]:
            kept = {name: value for name, value in record.values.items() if name not in FIELDS}
            return {**kept, **change(NamespacePolicies.read(record)).to_fields()}

        await self._change_namespace(tenant, namespace, changed)

    async def create_namespace(self, tenant: str, namespace: str, now_ms: int) -> None:
        """A record of its own. Raises AlreadyExistsError."""
        key = keys.namespace(tenant, namespace)
        try:
            await self._put(key, dump({CREATED: now_ms}), ABSENT)
        except ConflictError:
            raise AlreadyExistsError(f"the namespace {tenant}/{namespace} exists") from None

    async def delete_namespace(self, tenant: str, namespace: str) -> None:
        """Its record; nothing where it has none."""
        await self._change_namespace(tenant, namespace, lambda _: {})

    async def load_namespace_auto_scale_policy(self, tenant: str, namespace: str) -> AutoScalePolicyOverride | None:
        """The auto-scale override of the namespace's topics."""
        record = await self.metadata.mirror.get(keys.namespace(tenant, namespace))
        value = None if record is None else _namespace(record).values.get(AUTO_SCALE)
        return None if value is None else AutoScalePolicyOverride.read(f"namespace record: field {AUTO_SCALE!r}", value)

    async def save_namespace_auto_scale_policy(
        self, tenant: str, namespace: str, override: AutoScalePolicyOverride | None
    ) -> None:
        """Replace the override, or delete it (None). Other fields of the namespace's record stay."""

        def changed(record: Fields) -> dict[str, Any]:
            kept = {name: value for name, value in record.values.items() if name != AUTO_SCALE}
            return {**kept, AUTO_SCALE: override.to_json()} if override else kept

        await self._change_namespace(tenant, namespace, changed)

    async def _change_namespace(self, tenant: str, namespace: str, change: Callable[[Fields], dict[str, Any]]) -> None:
        key = keys.namespace(tenant, namespace)
        for attempt in itertools.count(1):
            record = await self.metadata.newest.get(key)
            try:
                if fields := change(Fields("namespace record", {}) if record is None else _namespace(record)):
                    await self._put(key, dump(fields), ABSENT if record is None else record.stat.version)
                elif record is not None:
                    await self._delete(key, record.stat.version)
                return
            except ConflictError:
                if attempt == _WRITE_ATTEMPTS_MAX:
                    raise UnknownOutcomeError(f"{key} keeps changing; read it back, and try again") from None

    # Unknown outcomes are resolved by reading back (docs/formats/metadata.md).

    async def _put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int,
        *,
        session: Session | None = None,
        indexes: Mapping[str, str] | None = None,
    ) -> int:
        for _ in range(_WRITE_ATTEMPTS_MAX):
            try:
                return (await self.metadata.put(key, value, expected, session=session, indexes=indexes)).version
            except OutcomeUnknownError:
                record = await self.metadata.newest.get(key)
            ours = record is not None and record.value == value and record.stat.version != expected
            if record is not None and ours and (session is None or record.stat.session == session.id):
                return record.stat.version
        raise UnknownOutcomeError(f"the metadata store did not say whether {key} was written; read it back")

    async def _delete(self, key: str, expected: Expected | int) -> None:
        await unsure.delete(self.metadata, key, expected)


def _topic_record(record: Record | None) -> TopicRecord | None:
    return None if record is None else TopicRecord(SegmentLayout.from_json(record.value), record.stat.version)


def _leader_record(record: Record | None) -> LeaderRecord | None:
    return None if record is None else LeaderRecord(record.value.decode(), record.stat.version, record.stat.session)


def _namespace(record: Record) -> Fields:
    return Fields.parse("namespace record", record.value)


_DEPTH = keys.subscription(TopicName("t", "n", "l"), "s").count("/")
