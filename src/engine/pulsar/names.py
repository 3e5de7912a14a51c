"""Names of topics as Apache Pulsar's clients write them."""

from __future__ import annotations

from engine.errors import InvalidArgumentError, UnsupportedError
from engine.model.names import (
    CLASSIC_SCHEME,
    DEFAULT_NAMESPACE,
    DEFAULT_TENANT,
    SEGMENT_SCHEME,
    TOPIC_SCHEME,
    SegmentName,
    TopicName,
)


def topic_of(text: str) -> TopicName:
    """The topic of a name. Raises UnsupportedError for a kind that is not served, InvalidArgumentError."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        rest = text if "/" in text else f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}/{text}"
        return TopicName.parse(CLASSIC_SCHEME + rest)
    if scheme == "non-persistent":
        raise UnsupportedError(f"non-persistent topics are not served, got {text!r:.300}: use persistent://")
    if f"{scheme}://" != CLASSIC_SCHEME:
        raise InvalidArgumentError(f"a topic's name must begin with {CLASSIC_SCHEME}, got {text!r:.300}")
    return TopicName.parse(text)


def scalable_of(text: str) -> TopicName:
    """The scalable topic of a name. Raises InvalidArgumentError for another kind."""
    scheme, mark, _ = text.partition("://")
    if mark and f"{scheme}://" != TOPIC_SCHEME:
        raise InvalidArgumentError(f"a scalable topic's name must begin with {TOPIC_SCHEME}, got {text!r:.300}")
    return TopicName.parse(text)


def segment_in(text: str) -> SegmentName | None:
    """The segment of a scalable topic that a name is of; None: it is of a topic. Raises InvalidArgumentError."""
    return SegmentName.parse(text) if text.startswith(SEGMENT_SCHEME) else None


def producer_of(text: str) -> str:
    """The name here of a producer with a client's own name: `/` and `%` are escaped. Java's client has `/` in those of
    its producers of dead letters.
    """
    return text.replace("%", "%25").replace("/", "%2F")


def attached_to(text: str) -> TopicName:
    """The topic of what producers and consumers of a name attach to. Raises UnsupportedError, InvalidArgumentError."""
    name = segment_in(text)
    return topic_of(text) if name is None else name.topic


def service_url(url: str, *, tls: bool = False) -> str:
    """A broker's address, as a service URL of Apache Pulsar's clients."""
    return f"{'pulsar+ssl' if tls else 'pulsar'}://{url.partition('://')[2]}"
