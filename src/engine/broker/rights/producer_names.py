"""Which role a producer's name belongs to, in a topic.

What a producer has sent is known by its name: messages that are sent again count as sent. So where there are roles, a
name is the role's that used it first in the topic. This is a record below the topic, for it has to outlive connections,
brokers and files. A name that a client has generated is proved by it (model/generated_names.py), and has no record.
Those of older clients, of 64 random bits each, are kept in memory alone, as long as the segment is open.

A record stays until its topic is deleted, so it is written when nothing else refuses the producer, and a role has at
most NAMES_MAX of them in a topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import MutableMapping

from engine.broker.rights.need import on_topic
from engine.errors import CorruptionError, LimitExceededError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore
from engine.model.names import TopicName

BOUND_MAX = 16_384  # names in memory, of one segment: as many as lanes
NAMES_MAX = 10_000  # records of one role in one topic; producers that attach at the same moment may exceed it
_GENERATED = re.compile(r"producer-[0-9a-f]{16}")


async def owner_of(metadata: MetadataStore, topic: TopicName, name: str) -> str | None:
    """The role that a name belongs to by its record, None if it has none. Raises what the metadata store raises."""
    if _GENERATED.fullmatch(name):
        return None
    key = keys.producer(topic, name)
    record = await metadata.newest.get(key)
    return None if record is None else _role(key, record.value)


async def take(metadata: MetadataStore, topic: TopicName, name: str, role: str) -> str:
    """The role that a name which had no record belongs to now: this one, unless another was faster.

    Raises LimitExceededError, and what the metadata store raises.
    """
    if _GENERATED.fullmatch(name):
        return role
    await _check_count(metadata, topic, role)
    while True:
        try:
            await metadata.put(keys.producer(topic, name), _value(role), ABSENT)
        except ConflictError:
            if (owner := await owner_of(metadata, topic, name)) is not None:
                return owner
        else:
            return role


async def _check_count(metadata: MetadataStore, topic: TopicName, role: str) -> None:
    """Raise LimitExceededError unless the role may have one more record in the topic."""
    start = keys.producer(topic, "")
    end = keys.prefix_end(start)
    if len(await metadata.newest.list_keys(start, end, NAMES_MAX)) < NAMES_MAX:  # of all roles
        return
    own = _value(role)
    count = sum(record.value == own for record in await metadata.newest.list(start, end))
    if count >= NAMES_MAX:
        asked = f"{count + 1} names of producers of the role {role!r:.200}"
        raise LimitExceededError.of("producer_names_of_role", on_topic(topic), NAMES_MAX, asked)


async def give(metadata: MetadataStore, topic: TopicName, name: str, role: str) -> None:
    """The name belongs to this role from now on."""
    if not _GENERATED.fullmatch(name):
        await metadata.put(keys.producer(topic, name), _value(role))


def keep(bound: MutableMapping[str, str], name: str, role: str) -> None:
    """Note in memory what a name belongs to; the oldest of too many are forgotten."""
    bound.pop(name, None)
    bound[name] = role
    if len(bound) > BOUND_MAX:
        del bound[next(iter(bound))]


def _value(role: str) -> bytes:
    return json.dumps({"role": role}).encode()


def _role(key: str, value: bytes) -> str:
    try:
        found = json.loads(value)["role"]
        if not isinstance(found, str):
            raise TypeError
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptionError(f"{key}: it must name a role") from e
    return found
