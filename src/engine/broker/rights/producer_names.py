"""Which role a producer's name belongs to, in a topic.

What a producer has sent is known by its name: messages that are sent again count as sent. So where there are roles, a
name is the role's that used it first in the topic. This is a record below the topic, for it has to outlive connections,
brokers and files. A name that a client has generated is proved by it (model/generated_names.py), and has no record.
Those of older clients, of 64 random bits each, are kept in memory alone, as long as the segment is open.

Entries have a hash of the name, of 64 bits and no secret one: it is easy to find another name with the same hash, and
what is sent under that one would make the first one's messages count as sent. So the first name with a hash keeps it. A
second record of each name that has one says so; for generated names, the segment's memory does.

A record stays until its topic is deleted, so it is written when nothing else refuses the producer, and a role has at
most NAMES_MAX of them in a topic, or as many as a limit of the role says.
"""

from __future__ import annotations

import json
import re
from collections.abc import MutableMapping
from typing import TypeVar

from engine.broker.rights.need import on_topic
from engine.errors import CorruptionError, LimitExceededError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore
from engine.model.generated_names import is_generated
from engine.model.limits import NO_LIMIT, Limit
from engine.model.names import TopicName

K = TypeVar("K")
BOUND_MAX = 16_384  # names in memory, of one segment: as many as lanes
NAMES_MAX = 10_000  # records of one role in one topic; producers that attach at the same moment may exceed it
_GENERATED = re.compile(r"producer-[0-9a-f]{16}")


async def owner_of(metadata: MetadataStore, topic: TopicName, name: str) -> str | None:
    """The role that a name belongs to by its record, None if it has none. Raises what the metadata store raises."""
    if _GENERATED.fullmatch(name):
        return None
    key = keys.producer(topic, name)
    record = await metadata.newest.get(key)
    return None if record is None else _text(key, record.value, "role")


async def take(metadata: MetadataStore, topic: TopicName, name: str, role: str, limit: Limit | None = None) -> str:
    """The role that a name which had no record belongs to now: this one, unless another was faster. `limit`: of the
    role's records in the topic; None: NAMES_MAX.

    Raises LimitExceededError, and what the metadata store raises.
    """
    if _GENERATED.fullmatch(name):
        return role
    await _check_count(metadata, topic, role, limit)
    while True:
        try:
            await metadata.put(keys.producer(topic, name), _value(role), ABSENT)
        except ConflictError:
            if (owner := await owner_of(metadata, topic, name)) is not None:
                return owner
        else:
            return role


async def _check_count(metadata: MetadataStore, topic: TopicName, role: str, limit: Limit | None) -> None:
    """Raise LimitExceededError unless the role may have one more record in the topic."""
    most = NAMES_MAX if limit is None else limit.value
    if most == NO_LIMIT:
        return
    start = keys.producer(topic, "")
    end = keys.prefix_end(start)
    if len(await metadata.newest.list_keys(start, end, max(most, 1))) < most:  # of all roles
        return
    own = _value(role)
    count = sum(record.value == own for record in await metadata.newest.list(start, end))
    if count >= most:
        asked = f"{count + 1} names of producers of the role {role!r:.200} in {on_topic(topic)}"
        if limit is not None:
            raise LimitExceededError.of("producer_names_max", limit.origin, most, asked)
        raise LimitExceededError.of("producer_names_of_role", on_topic(topic), most, asked)


async def give(metadata: MetadataStore, topic: TopicName, name: str, role: str) -> None:
    """The name belongs to this role from now on."""
    if not _GENERATED.fullmatch(name):
        await metadata.put(keys.producer(topic, name), _value(role))


async def named(metadata: MetadataStore, topic: TopicName, ident: int) -> str | None:
    """The name that has this id by its record, None if none has. Raises what the metadata store raises."""
    key = keys.producer_id(topic, ident)
    record = await metadata.newest.get(key)
    return None if record is None else _text(key, record.value, "name")


async def hold(metadata: MetadataStore, topic: TopicName, ident: int, name: str) -> str:
    """The name that has an id which had no record: this one, unless another was faster."""
    if _GENERATED.fullmatch(name) or is_generated(name):
        return name
    while True:
        try:
            await metadata.put(keys.producer_id(topic, ident), json.dumps({"name": name}).encode(), ABSENT)
        except ConflictError:
            if (holder := await named(metadata, topic, ident)) is not None:
                return holder
        else:
            return name


def keep(bound: MutableMapping[K, str], name: K, role: str) -> None:
    """Note in memory what a name, or an id, belongs to; the oldest of too many are forgotten."""
    bound.pop(name, None)
    bound[name] = role
    if len(bound) > BOUND_MAX:
        del bound[next(iter(bound))]


def _value(role: str) -> bytes:
    return json.dumps({"role": role}).encode()


def _text(key: str, value: bytes, what: str) -> str:
    try:
        found = json.loads(value)[what]
        if not isinstance(found, str):
            raise TypeError
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptionError(f"{key}: it must have a {what}") from e
    return found
