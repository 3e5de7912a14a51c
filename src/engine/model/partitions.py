"""Topics that stand for partitions, as clients of Apache Pulsar know them: a property says how many there are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.errors import InvalidArgumentError, UnsupportedError
from engine.model.names import TopicName

PARTITIONS = "pulsar.partitions"  # a property of a topic that stands for so many partitions, and has no messages
PARTITIONS_MAX = 10_000

_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]{0,8})$")


def partition_of(topic: TopicName) -> int:
    """The index of a partition in its topic; -1 where it is none."""
    found = _PARTITION.search(topic.local)
    return int(found[1]) if found else -1


def partition_count(topic: TopicName, properties: Mapping[str, str] | None) -> int:
    """How many partitions a topic with these properties stands for; 0: none, it is a topic itself.

    Raises UnsupportedError.
    """
    text = (properties or {}).get(PARTITIONS, "0")
    if not (text.isascii() and text.isdecimal()) or int(text[:9]) > PARTITIONS_MAX or len(text) > 9:
        raise UnsupportedError(f"the property {PARTITIONS} of {topic} must be 0 to {PARTITIONS_MAX}, got {text!r:.50}")
    return int(text)


def partition_names(topic: TopicName, indexes: range) -> list[str]:
    """The names of these of its partitions."""
    return [f"{topic}-partition-{index}" for index in indexes]


def checked_count(value: object) -> int:
    """A number of partitions that a topic may be given. Raises InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PARTITIONS_MAX:
        raise InvalidArgumentError(f"the number of partitions must be 1 to {PARTITIONS_MAX}, got {value!r:.80}")
    return value
