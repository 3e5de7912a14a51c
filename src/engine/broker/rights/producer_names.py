"""Which role a producer's name belongs to, in a topic.

What a producer has sent is known by its name: messages that are sent again count as sent. So where there are roles, a
name is the role's that used it first in the topic. This is a record below the topic, for it has to outlive connections,
brokers and files. Names that clients generate, of 64 random bits each, are never used again after their producer: they
are kept in memory alone, as long as the segment is open.
"""

from __future__ import annotations

import json
import re
from collections.abc import MutableMapping

from engine.errors import CorruptionError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore
from engine.model.names import TopicName

BOUND_MAX = 16_384  # names in memory, of one segment: as many as lanes
_GENERATED = re.compile(r"producer-[0-9a-f]{16}")


async def owner_of(metadata: MetadataStore, topic: TopicName, name: str, role: str) -> str:
    """The role that a name belongs to: this one, where it had none. Raises what the metadata store raises."""
    if _GENERATED.fullmatch(name):
        return role
    key = keys.producer(topic, name)
    while True:
        record = await metadata.newest.get(key)
        if record is not None:
            return _role(key, record.value)
        try:
            await metadata.put(key, _value(role), ABSENT)
        except ConflictError:
            continue
        return role


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
