"""`Need`: the rights, of which a request needs one, and the resource that it needs them on."""

from __future__ import annotations

from typing import NamedTuple

from engine.model.names import SegmentName, TopicName
from engine.model.rights import CLUSTER


class Need(NamedTuple):
    """`rights`: bits of Right, of which one is enough; 0: any role. `subscription`: what `consume` is to be of.

    `in_part`: a right on a topic below the resource is enough; the answer shows what the principal may look up.
    """

    rights: int
    resource: str = CLUSTER
    subscription: str | None = None
    in_part: bool = False


def on_topic(text: str | TopicName) -> str:
    """The resource of a topic's name, or of that of one of its segments. Raises InvalidArgumentError."""
    if isinstance(text, str) and text.startswith("segment://"):
        name = SegmentName.parse(text).topic
    else:
        name = TopicName.parse(text)
    return f"{name.tenant}/{name.namespace}/{name.local}"
