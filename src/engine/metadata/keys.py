"""Every path in the metadata store, spelled once (PIP-468 "Metadata Store Paths", docs/formats/metadata.md)."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import AnyStr
from urllib.parse import quote, unquote

from engine.model.names import ROLE, SegmentName, TopicName

_ENCODED_KEPT = 1024  # components: those of one topic and of live brokers are asked for again and again

TOPICS = "/topics/"
NAMESPACES = "/namespaces/"
BROKERS = "/brokers/"
WALS = "/wal/"
CONFIGURATION = "/configuration/"
GRANTS = "/grants/"
LIMITS = "/limits/"
TENANTS = "/tenants/"
USAGE = "/usage/"  # holds what each broker stores of a tenant, a role or "*" that has limits, see shown(); ephemeral
PRESENT = "/present/"  # likewise what is at each broker; ephemeral
SHARES = "/shares/"  # likewise which parts of rates each broker uses; ephemeral
BALANCER = "/balancer"  # holds the URL of the broker that balances the others; ephemeral
SWEEPER = "/sweeper"  # holds the URL of the broker that sweeps the object store; ephemeral
STORE = "/store"  # holds the store's Identity: its number, and the generation of the last start
DIRECTORY = "/directory"  # holds the number of the data directory that brokers share
CLAIMS = "/claims"  # holds the key of the seals of claims to exclusive access
LEVEL = "/level"  # holds the level at which a cluster is: what its brokers may write
LOAD = "load"  # last path component of a segment's load report
BELOW = "%2F"  # "/" in a component
LAST = "\U0010ffff"  # sorts behind every key


def prefix_end(prefix: str) -> str:
    """The smallest text above every key that starts with `prefix`, which may not be empty."""
    last = ord(prefix[-1])
    return prefix[:-1] + chr(last + 1) if last < sys.maxunicode else prefix_end(prefix[:-1])


def common_start(first: AnyStr, last: AnyStr) -> AnyStr:
    """What two texts begin with alike, and with them all that sorts between them."""
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return min(first, last, key=len)


@lru_cache(maxsize=_ENCODED_KEPT)
def encode(part: str) -> str:
    """One path component; "/" and other reserved characters are percent-encoded."""
    return quote(part, safe="")


def decode(part: str) -> str:
    """Undo encode()."""
    return unquote(part) if "%" in part else part


def broker(url: str) -> str:
    """Holds a live broker's addresses; ephemeral."""
    return f"{BROKERS}{encode(url)}"


def setting(name: str) -> str:
    """Holds a setting that an operator has changed at run time, for all brokers."""
    return f"{CONFIGURATION}{encode(name)}"


def tenant(name: str) -> str:
    """Holds the tenant's facts."""
    return f"{TENANTS}{encode(name)}"


def grant(resource: str, role: str) -> str:
    """Holds what a role may do on a resource."""
    return f"{grants_on(resource)}{encode(role)}"


def grants_on(resource: str) -> str:
    """The prefix of the grants on a resource, and not on what lies below it."""
    return f"{GRANTS}{encode(resource)}/"


def grant_of(key: str) -> tuple[str, str]:
    """Undo grant(): (resource, role). Raises ValueError."""
    resource, role = key.removeprefix(GRANTS).split("/")
    return decode(resource), decode(role)


def grant_by_role(resource: str, role: str) -> str:
    """The index key of grant() among the grants by role."""
    return f"{grants_of(role)}{encode(resource)}"


def grants_of(role: str) -> str:
    """The prefix of the index keys of a role's grants, and of no other role's: encode() leaves no "/" in a name."""
    return f"{encode(role)}/"


def limits(resource: str) -> str:
    """Holds the limits of a resource, or of a role."""
    return f"{LIMITS}{encode(resource)}"


def limited(key: str) -> str:
    """Undo limits()."""
    return decode(key.removeprefix(LIMITS))


def limit_group(resource: str) -> str:
    """Of what has limits: the tenant, "*", or the role itself, whose limits are followed together."""
    return resource.partition("/")[0]


def limit_parts(group: str) -> tuple[str, ...]:
    """What holds the limits of a group: its own key and, of what is no role, the prefix of all others, which ends in
    BELOW. They are no single range: "a+b" sorts between "a" and "a/".
    """
    own = limits(group)
    return (own,) if group.startswith(ROLE) else (own, own + BELOW)


def limit_part(key: str) -> str:
    """Which of limit_parts() holds a key as of limits()."""
    resource = limited(key)
    group = limit_group(resource)
    return key if resource == group else limits(group) + BELOW


def shown_by_all(prefix: str, group: str) -> str:
    """The prefix of what brokers show each other of a group, below USAGE, PRESENT or SHARES."""
    return f"{prefix}{encode(group)}/"


def shown(prefix: str, group: str, url: str) -> str:
    """Holds what one broker shows there; ephemeral."""
    return shown_by_all(prefix, group) + encode(url)


def shown_of(key: str) -> tuple[str, str]:
    """Undo shown(): (group, url). Raises ValueError."""
    _, _, group, url = key.split("/")
    return decode(group), decode(url)


def namespace(tenant: str, name: str) -> str:
    """Holds the namespace's policies."""
    return f"{NAMESPACES}{encode(tenant)}/{encode(name)}"


def namespace_of(key: str) -> tuple[str, str]:
    """Undo namespace()."""
    tenant, name = key.removeprefix(NAMESPACES).split("/")
    return decode(tenant), decode(name)


def topics_of(tenant: str, name: str) -> str:
    """The prefix of all topics of a namespace, with the records below them."""
    return f"{TOPICS}{encode(tenant)}/{encode(name)}/"


def topic(name: TopicName) -> str:
    """Holds the topic's ScalableTopicMetadata."""
    return f"{topics_of(name.tenant, name.namespace)}{encode(name.local)}"


def schema(name: TopicName) -> str:
    """Holds the schemas of the topic's values."""
    return f"{topic(name)}/schema"


def producer(name: TopicName, producer: str) -> str:
    """Holds the role that a producer's name belongs to."""
    return f"{topic(name)}/producers/{encode(producer)}"


def producer_id(name: TopicName, ident: int) -> str:
    """Holds which name of a producer has this id in entries."""
    return f"{topic(name)}/producer-ids/{ident:016x}"


def controller(name: TopicName) -> str:
    """Holds the leader's broker URL and term; ephemeral."""
    return f"{topic(name)}/controller"


def subscriptions(name: TopicName) -> str:
    """The prefix of a topic's subscriptions, with the records below them."""
    return f"{topic(name)}/subscriptions/"


def subscription(name: TopicName, subscription: str) -> str:
    """Holds SubscriptionMetadata."""
    return f"{subscriptions(name)}{encode(subscription)}"


def consumer(name: TopicName, subscription_name: str, consumer: str) -> str:
    """Holds a ConsumerRegistration."""
    return f"{subscription(name, subscription_name)}/consumers/{encode(consumer)}"


def cursor(segment: SegmentName, subscription_name: str) -> str:
    """Holds the acknowledgements of a subscription in one segment."""
    return f"{subscription(segment.topic, subscription_name)}/cursors/{segment.segment_id}"


def segment(segment: SegmentName) -> str:
    """Holds the segment's ownership (owner's URL and session, term)."""
    return f"{segments(segment.topic)}{segment.segment_id}"


def segments(name: TopicName) -> str:
    """The prefix of the records of a topic's segments, with the records below them."""
    return f"{topic(name)}/segments/"


def load(segment_name: SegmentName) -> str:
    """Holds the segment's last load report."""
    return f"{segment(segment_name)}/{LOAD}"


def stored(segment_name: SegmentName) -> str:
    """Exists from the creation of the segment's store until its deletion."""
    return f"{segment(segment_name)}/store"


def is_stored(key: str) -> bool:
    """Whether it is a key as of stored()."""
    parts = key.split("/")
    return key.startswith(TOPICS) and len(parts) == 8 and parts[5] == "segments" and parts[7] == "store"


def visibility(segment_name: SegmentName) -> str:
    """Holds the aborted ranges that transactions left in a segment, and what is undecided."""
    return f"{segment(segment_name)}/visibility"


def wal(session: str) -> str:
    """Holds up to where the log of a broker session is trimmed, and where it was fenced."""
    return f"{WALS}{encode(session)}"


def transaction(txn_id: str) -> str:
    """Holds a transaction's header."""
    return f"/txn/{txn_id}"


def transaction_name(name: str, owner: str | None) -> str:
    """Holds the id of the transaction of this name. `owner`: the role whose name it is; None: where roles have none."""
    return f"/txn-name/{encode(name)}" if owner is None else f"/txn-name/{encode(owner)}/{encode(name)}"


def transaction_ops(txn_id: str) -> str:
    """The prefix under which a transaction's operation records get their sequence."""
    return f"/txn-op/{txn_id}"
