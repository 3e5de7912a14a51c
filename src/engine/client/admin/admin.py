"""`AsyncAdmin`: what operators do with topics, subscriptions and segments.

The same methods over HTTP (a served broker) and in process (an embedded one). Which of the two it is, is the
`AdminBackend`'s business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from engine.client.admin.admin_backend import AdminBackend
from engine.client.base.options import INITIAL_POSITIONS, check_choice, check_number
from engine.client.net.pool import CLOSED
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX, SEGMENTS_PER_TOPIC_MAX
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.names import SegmentName, TopicName, check_name, parse_namespace
from engine.model.transactions import parse_id

SEGMENT_ID_MAX = 2**63 - 1
KEY_HASHES = ("xxh64", "murmur3")
DURABILITIES = ("fsync", "interval", "os")


class AsyncAdmin:
    """Made by a client (`client.admin`) or an engine.

    Raises the typed errors of the broker, ConnectError, TimeoutError; UnknownOutcomeError when the connection was lost
    before a change was answered: look whether it is made, then repeat it.
    """

    def __init__(self, connect: Callable[[], Awaitable[AdminBackend]]) -> None:
        self._connect = connect
        self._backend: AdminBackend | None = None
        self._closed = False

    async def _get(self) -> AdminBackend:
        self._check_open()
        if self._backend is None:
            backend = await self._connect()
            if self._closed:
                await backend.close()
            self._check_open()
            self._backend = backend
        return self._backend

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError(CLOSED)

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = None,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = None,
        durability: str | None = None,
        entry_buckets: int | None = None,
    ) -> None:
        """Create a topic of `segments` equal hash ranges.

        `properties`: text to text. `key_hash`: "xxh64" or "murmur3", fixed for good. `durability`: what an
        acknowledgement means: "fsync", "interval" or "os". `entry_buckets`: over the whole topic. What is not given
        is as the namespace's policies and the broker's configuration say: out of the box 1 segment, "xxh64", "fsync"
        and 4 entry buckets. Raises AlreadyExistsError, InvalidArgumentError.
        """
        name = str(TopicName.parse(topic))
        if segments is not None:
            check_number("segments", segments, 1, SEGMENTS_PER_TOPIC_MAX, whole=True)
        if entry_buckets is not None:
            check_number("entry_buckets", entry_buckets, 1, BUCKETS_PER_SEGMENT_MAX, whole=True)
        check_choice("key_hash", key_hash, (*KEY_HASHES, None))
        check_choice("durability", durability, (*DURABILITIES, None))
        check_properties(properties)
        backend = await self._get()
        await backend.create_topic(
            name,
            segments=segments,
            properties=properties,
            key_hash=key_hash,
            durability=durability,
            entry_buckets=entry_buckets,
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        await (await self._get()).delete_topic(str(TopicName.parse(topic)))

    async def list_topics(
        self, namespace: str = "public/default", properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """The full names of a namespace's topics, sorted; only those that have all these properties, if any are
        given.
        """
        parse_namespace(namespace)
        check_properties(properties)
        return await (await self._get()).list_topics(namespace, properties)

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        """The topic's layout and properties: the specification's JSON as a dict. Raises NotFoundError."""
        return await (await self._get()).get_metadata(str(TopicName.parse(topic)))

    async def get_stats(self, topic: str) -> dict[str, Any]:
        """Segments, rates, subscriptions, consumers, auto-scale: the specification's JSON as a dict. NotFoundError."""
        return await (await self._get()).get_stats(str(TopicName.parse(topic)))

    # -- the shape of a topic ---------------------------------------------------------------------------------

    async def split_segment(self, topic: str, segment_id: int) -> dict[str, Any]:
        """Split an active segment's hash range in two halves, while the topic is in use; the new metadata.

        Producers and consumers follow by themselves. Raises NotFoundError (topic), and InvalidArgumentError when the
        segment is unknown, sealed or of one hash value: then nothing has changed.
        """
        name = str(TopicName.parse(topic))
        _check_id("segment_id", segment_id)
        return await (await self._get()).split_segment(name, segment_id)

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> dict[str, Any]:
        """Make one of two active segments whose hash ranges are neighbours; the new metadata.

        Raises NotFoundError (topic), and InvalidArgumentError when one is unknown or sealed, or they are no neighbours:
        then nothing has changed.
        """
        name = str(TopicName.parse(topic))
        _check_id("segment_id", segment_id)
        _check_id("other_id", other_id)
        return await (await self._get()).merge_segments(name, segment_id, other_id)

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> dict[str, Any]:
        """Replace an active segment by one of the same range with `buckets` entry buckets; the new metadata.

        Raises NotFoundError (topic), and InvalidArgumentError when it is unknown or sealed, or has that many already.
        """
        name = str(TopicName.parse(topic))
        _check_id("segment_id", segment_id)
        check_number("buckets", buckets, 1, BUCKETS_PER_SEGMENT_MAX, whole=True)
        return await (await self._get()).rebucket_segment(name, segment_id, buckets)

    # -- single segments, for repairs: what a layout does not call for is refused --------------------------------

    async def create_segment(self, segment: str, subscriptions: Sequence[str] = ()) -> None:
        """Make what is missing of an active segment: its store, and cursors for these subscriptions of the topic.

        `segment`: its whole name, "segment://tenant/namespace/topic/0000-7fff-1". Raises NotFoundError, and
        InvalidArgumentError unless the layout has it as active.
        """
        name = str(SegmentName.parse(segment))
        if isinstance(subscriptions, str):
            raise InvalidArgumentError(f"subscriptions is the text {subscriptions!r:.80}; a list of names is right")
        names = [check_name(s, "subscription name") for s in subscriptions]
        await (await self._get()).create_segment(name, names)

    async def terminate_segment(self, segment: str) -> None:
        """Seal a segment that a change under way seals; nothing for a sealed one.

        Raises NotFoundError, and InvalidArgumentError for any other: splits and merges seal segments.
        """
        name = str(SegmentName.parse(segment))
        await (await self._get()).terminate_segment(name)

    async def delete_segment(self, segment: str, force: bool = False) -> None:
        """Delete a segment that the layout does not name, or a sealed one that every subscription has drained.

        `force`: a sealed one also when it is not drained; its messages are lost to whoever has not read them. Raises
        NotFoundError (topic), InvalidArgumentError when it is active or has parents that are still there.
        """
        name = str(SegmentName.parse(segment))
        await (await self._get()).delete_segment(name, bool(force))

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def create_subscription(self, topic: str, subscription: str, *, initial_position: str = "latest") -> None:
        """Create it, at "earliest" or "latest". Raises AlreadyExistsError, NotFoundError."""
        check_choice("initial_position", initial_position, INITIAL_POSITIONS)
        name = str(TopicName.parse(topic))
        check_name(subscription, "subscription name")
        await (await self._get()).create_subscription(name, subscription, initial_position=initial_position)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete it in every segment, sealed ones too. Its consumers get NotFoundError. Raises NotFoundError."""
        name = str(TopicName.parse(topic))
        check_name(subscription, "subscription name")
        await (await self._get()).delete_subscription(name, subscription)

    async def seek_subscription(self, topic: str, subscription: str, when: str | datetime) -> None:
        """Move it to "earliest", "latest" or the first message published at or after an aware datetime (SEMANTICS
        38).
        """
        name = str(TopicName.parse(topic))
        check_name(subscription, "subscription name")
        await (await self._get()).seek_subscription(name, subscription, when_ms(when))

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything it has not. Raises NotFoundError."""
        name = str(TopicName.parse(topic))
        check_name(subscription, "subscription name")
        await (await self._get()).clear_backlog(name, subscription)

    async def skip_messages(
        self, topic: str, subscription: str, segment_id: int, first: int, last: int | None = None
    ) -> None:
        """Acknowledge the offsets `first` to `last` (None: that one alone) of one segment, as a bad entry's that
        consumers stop at. They go on behind it. Raises NotFoundError, InvalidArgumentError, TransactionConflictError.
        """
        name, until = str(TopicName.parse(topic)), first if last is None else last
        check_name(subscription, "subscription name")
        for what, number in (("segment", segment_id), ("first offset", first), ("last offset", until)):
            check_number(what, number, 0, 2**63 - 1, whole=True)
        await (await self._get()).skip_messages(name, subscription, segment_id, first, until)

    # -- transactions ----------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, open_longer_than: float | None = None, segment: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The open transactions, the oldest first: the oldest `limit`, out of the box 1,000.

        `open_longer_than`: only those that are at least so many seconds old. `segment`: "segment://…", only those with
        operations in it.
        """
        if segment is not None:
            segment = str(SegmentName.parse(segment))
        found = await self._get()
        return await found.list_transactions(open_longer_than=open_longer_than, segment=segment, limit=limit)

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """How a transaction stands, and where it has operations that did not take effect yet.

        Raises TransactionNotFoundError.
        """
        parse_id(ident)
        return await (await self._get()).get_transaction(ident)

    async def abort_transaction(self, ident: str) -> None:
        """Abort one that is open. Raises TransactionNotFoundError, TransactionConflictError when it was committed."""
        parse_id(ident)
        await (await self._get()).abort_transaction(ident)

    # -- namespaces ------------------------------------------------------------------------------------------

    async def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies in effect: retention_time_s, retention_size_bytes, durability."""
        parse_namespace(namespace)
        return await (await self._get()).get_namespace_policies(namespace)

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace the policies; what is not named has its default. Raises InvalidArgumentError."""
        parse_namespace(namespace)
        if not isinstance(policies, Mapping):
            raise InvalidArgumentError(f"policies are {type(policies).__name__}; a mapping of their names is right")
        await (await self._get()).set_namespace_policies(namespace, policies)

    async def remove_namespace_policies(self, namespace: str) -> None:
        """Go back to the broker's defaults."""
        parse_namespace(namespace)
        await (await self._get()).remove_namespace_policies(namespace)

    # -- auto-scale ------------------------------------------------------------------------------------------

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Replace what a topic says otherwise than its namespace and the broker of how it changes its own shape.

        `policy`: any of `enabled`, `max_segments`, `split_cooldown` and so on: the configuration's keys without
        `scalable_topic_`; times in seconds. It counts at once. Raises NotFoundError, InvalidArgumentError.
        """
        name, override = str(TopicName.parse(topic)), AutoScalePolicyOverride.of(policy)
        await (await self._get()).set_auto_scale_policy(name, override.to_mapping())

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """What the topic itself says; {} for nothing. What is in effect is in get_stats. Raises NotFoundError."""
        return await (await self._get()).get_auto_scale_policy(str(TopicName.parse(topic)))

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """Let the namespace and the broker decide. Raises NotFoundError."""
        await (await self._get()).remove_auto_scale_policy(str(TopicName.parse(topic)))

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """The same for all topics of a namespace, where they say nothing themselves."""
        parse_namespace(namespace)
        override = AutoScalePolicyOverride.of(policy)
        await (await self._get()).set_namespace_auto_scale_policy(namespace, override.to_mapping())

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """What the namespace itself says; {} for nothing."""
        parse_namespace(namespace)
        return await (await self._get()).get_namespace_auto_scale_policy(namespace)

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        """Let the broker decide."""
        parse_namespace(namespace)
        await (await self._get()).remove_namespace_auto_scale_policy(namespace)

    # -- brokers ---------------------------------------------------------------------------------------------

    async def get_metrics(self) -> str:
        """The metrics of the broker that answers, as Prometheus text."""
        return await (await self._get()).get_metrics()

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        """What was set at run time, by the keys of the configuration."""
        return await (await self._get()).get_dynamic_configuration()

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """What is in effect on the broker that answers, of all that may be set at run time."""
        return await (await self._get()).get_runtime_configuration()

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        """Set a limit for all brokers, at once and over restarts, whatever they were started with.

        `name`: a key of the configuration, or the specification's name, with the value in the unit it has there; text
        may have a unit. Raises InvalidArgumentError (it cannot be set at run time), InvalidConfigurationError (value).
        """
        await (await self._get()).set_dynamic_configuration(_check_text("name", name), _check_value(value))

    async def remove_dynamic_configuration(self, name: str) -> None:
        """Go back to what each broker was started with. Raises InvalidArgumentError (it cannot be set at run time)."""
        await (await self._get()).remove_dynamic_configuration(_check_text("name", name))

    async def close(self) -> None:
        """Release what it holds. Idempotent."""
        self._closed = True
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()


def check_properties(properties: Mapping[str, str] | None) -> None:
    """Raise InvalidArgumentError unless it is None or maps text to text."""
    if properties is None:
        return
    if not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties are {type(properties).__name__}; a mapping of text to text is right")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"property {name!r}: {value!r} is not text to text")


def when_ms(when: str | datetime) -> str | int:
    """ "earliest", "latest", or the milliseconds of an aware datetime. Raises InvalidArgumentError."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError(f"{when!r} has no time zone; an aware datetime is right, as datetime.now(UTC)")
        return int(when.timestamp() * 1000)
    if when not in INITIAL_POSITIONS:
        raise InvalidArgumentError(f"when is {when!r}; earliest, latest or an aware datetime is right")
    return when


def _check_id(name: str, value: object) -> None:
    check_number(name, value, 0, SEGMENT_ID_MAX, whole=True)


def _check_text(what: str, text: str) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"{what} is {text!r:.80}; text is right")
    return text


def _check_value(value: str | float) -> str | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise InvalidArgumentError(f"value is {value!r:.80}; a number, or text with a unit, is right")
    return value
