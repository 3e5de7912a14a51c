"""Topics of replies: a client has one in each namespace that it sends requests to, as long as it lives.

The name says what such a topic is, to brokers, which delete it when no client reads it any more, and to responders,
which send replies to no other topic.
"""

from __future__ import annotations

import re

from engine.model.names import TopicName

REPLY_TO = "reply_to"  # property of a request: the topic that its reply is sent to
CORRELATION_ID = "correlation_id"  # property of a request and its reply: the same
REPLY_KEY = "reply_key"  # property of an encrypted request and its reply: the public key that replies are for

_LOCAL = re.compile(r"replies-[0-9a-f]{32}")


def reply_topic(beside: TopicName, token: int) -> TopicName:
    """In the namespace of another topic. `token`: 128 random bits."""
    return TopicName(beside.tenant, beside.namespace, f"replies-{token:032x}")


def is_reply_topic(topic: TopicName) -> bool:
    """Whether it is one, by its name."""
    return _LOCAL.fullmatch(topic.local) is not None
