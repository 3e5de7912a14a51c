"""What a user gives to be acknowledged, and the ids in it."""

from __future__ import annotations

from engine._native.message import Message
from engine.errors import InvalidArgumentError
from engine.model.positions import MessageId


def id_of(x: object, topic: str) -> MessageId:
    """The id of what is to be acknowledged. Raises InvalidArgumentError when it is none, or not of this topic."""
    ident = x.id if isinstance(x, Message) else x
    if not isinstance(ident, MessageId):
        raise InvalidArgumentError(
            f"cannot acknowledge {type(x).__name__}; a Message, MessageId or MessageBatch is right"
        )
    check_topic(ident, ident.topic, topic)
    if ident.segment_id < 0 or ident == MessageId.latest:
        raise InvalidArgumentError(f"{ident!r} names no message")
    return ident


def check_topic(x: object, of: str | None, topic: str) -> None:
    """Raise InvalidArgumentError when `x` is known to be of another topic."""
    if of is not None and of != topic:
        raise InvalidArgumentError(f"{x!r} cannot be acknowledged on {topic}")
