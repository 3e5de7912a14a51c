"""`Limits`: how much may be done on a resource; and which limits are in effect for a topic or a role.

A resource is that of a grant ("*", "tenant", "tenant/namespace", "tenant/namespace/topic"), or a role: "role:NAME",
and "role:*" for each role that says nothing itself. Three kinds of fields:

    of each topic   resolved field by field: the topic's, else the namespace's, else the tenant's, else the cluster's
    total_*         the sum over all that lies below the resource that says it; those of several levels hold together
    of a role       the role's, else that of "role:*"; rates and counts are of all that the role does

And one of what is said elsewhere as well: how long messages live and are kept, of a tenant or the cluster, for topics
whose policies (policies.py), and those of their namespaces, do not say it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from engine.errors import InvalidArgumentError
from engine.model.fields import Fields, dump
from engine.model.names import EACH_ROLE, ROLE, TopicName
from engine.model.policies import TopicPolicies, check_most
from engine.model.rights import CLUSTER, check_resource, check_role

NO_LIMIT = -1
Action = Literal["refuse", "evict"]
ACTIONS: tuple[Action, ...] = get_args(Action)
MOST = 2**53  # of any limit: exact in every JSON

OF_TOPIC = (
    "publish_messages_per_s", "publish_bytes_per_s", "dispatch_messages_per_s", "dispatch_bytes_per_s",
    "producers_max", "consumers_max", "subscriptions_max", "storage_bytes_max", "backlog_bytes_max", "backlog_age_s",
    "backlog_action", "message_bytes_max", "producer_names_max", "schemas_max",
    "checkpoint_groups_max",
)  # fmt: skip
_BOTH = (
    "total_publish_messages_per_s", "total_publish_bytes_per_s", "total_dispatch_messages_per_s",
    "total_dispatch_bytes_per_s", "total_producers", "total_consumers",
)  # fmt: skip
TOTALS = (*_BOTH, "total_topics", "total_subscriptions", "total_storage_bytes")
OF_ROLE = (*_BOTH, "connections_max", "open_transactions_max", "producer_names_max")
OF_MESSAGES = ("message_ttl_s", "retention_time_s", "retention_size_bytes")  # of TopicPolicies
RATES = (*OF_TOPIC[:4], *_BOTH[:4])
ATTENDED = ("producers_max", "consumers_max", *_BOTH[4:], "connections_max", "open_transactions_max")


@dataclass(frozen=True, slots=True)
class Limits:
    """None: not said here; NO_LIMIT: none, whatever is said above. Raises InvalidArgumentError naming the field."""

    publish_messages_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    dispatch_messages_per_s: int | None = None
    dispatch_bytes_per_s: int | None = None
    producers_max: int | None = None
    consumers_max: int | None = None
    subscriptions_max: int | None = None
    storage_bytes_max: int | None = None
    backlog_bytes_max: int | None = None  # of the slowest subscription
    backlog_age_s: int | None = None  # of its oldest message
    backlog_action: Action | None = None  # what happens above one of these two; "refuse" unless it is said
    message_bytes_max: int | None = None
    producer_names_max: int | None = None  # that a segment remembers, to recognise what is sent again
    schemas_max: int | None = None
    checkpoint_groups_max: int | None = None  # that have members
    total_publish_messages_per_s: int | None = None
    total_publish_bytes_per_s: int | None = None
    total_dispatch_messages_per_s: int | None = None
    total_dispatch_bytes_per_s: int | None = None
    total_producers: int | None = None
    total_consumers: int | None = None
    total_topics: int | None = None
    total_subscriptions: int | None = None
    total_storage_bytes: int | None = None
    connections_max: int | None = None
    open_transactions_max: int | None = None
    message_ttl_s: int | None = None  # of a tenant or the cluster, as the next two; as of TopicPolicies
    retention_time_s: int | None = None
    retention_size_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if value is None:
                continue
            if name == "backlog_action":
                if value not in ACTIONS:
                    raise InvalidArgumentError(f"backlog_action must be {' or '.join(ACTIONS)}, got {value!r:.80}")
            elif type(value) is not int or not (value == NO_LIMIT or _least(name) <= value <= MOST):
                number = f"an integer from {_least(name)} to {MOST}, or -1 for no limit"
                raise InvalidArgumentError(f"{name} must be {number}, got {value!r:.80}")
            if name in OF_MESSAGES:
                check_most(name, value)

    def __bool__(self) -> bool:
        return self != NOTHING_LIMITED

    def changed(self, values: Mapping[str, Any]) -> Limits:
        """With these fields; None: not said here any more. Others stay. Raises InvalidArgumentError."""
        if unknown := sorted(str(name) for name in values if name not in NAMES):
            raise InvalidArgumentError(f"a limit must be one of {', '.join(NAMES)}, got {unknown[0]!r:.80}: unknown")
        return replace(self, **values)

    def said(self) -> dict[str, Any]:
        """Only what is said here."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def to_json(self) -> bytes:
        """The value of its record; the resource is in the key."""
        return dump(self.said())

    @classmethod
    def of(cls, resource: str, value: bytes) -> Limits:
        """Undo to_json(). Fields of a later version are left out. Raises CorruptionError."""
        record = Fields.parse(f"the limits of {resource}", value)
        try:
            return cls(**{name: known for name, known in record.values.items() if name in NAMES})
        except InvalidArgumentError as e:
            record.wrong(str(e).split()[0], str(e))


NAMES = tuple(field.name for field in fields(Limits))
NOTHING_LIMITED = Limits()


def _least(name: str) -> int:
    """Nothing can be done at a rate of 0, or with messages of 0 bytes; what is counted may be forbidden."""
    if name == "retention_time_s":
        return 0
    return 1 if name.endswith(("_per_s", "_s")) or name == "message_bytes_max" else 0


def check_limited(resource: str) -> str:
    """`resource` itself, if it may have limits. Raises InvalidArgumentError."""
    if isinstance(resource, str) and resource.startswith(ROLE):
        if resource != EACH_ROLE:
            check_role(resource.removeprefix(ROLE))
        return resource
    return check_resource(resource)


def names_on(resource: str) -> tuple[str, ...]:
    """The fields that a resource may have."""
    if resource.startswith(ROLE):
        return OF_ROLE
    if "/" not in resource:
        return (*OF_TOPIC, *TOTALS, *OF_MESSAGES)
    return OF_TOPIC if resource.count("/") == 2 else (*OF_TOPIC, *TOTALS)


def check_fields(resource: str, limits: Limits) -> Limits:
    """`limits` themselves, if the resource may have each of them. Raises InvalidArgumentError."""
    allowed = names_on(resource)
    for name in limits.said():
        if name in OF_MESSAGES and "/" in resource and not resource.startswith(ROLE):
            raise InvalidArgumentError(
                f"{name} of {resource} must be set as its policy: limits have it of tenants and *"
            )
        if name not in allowed:
            raise InvalidArgumentError(f"a limit of {resource} must be one of {', '.join(allowed)}, got {name!r}")
    return limits


# -- what is in effect ---------------------------------------------------------------------------------------------

Known = Callable[[str], "Limits | None"]  # the limits that a resource says


class Limit(NamedTuple):
    """A value, and the resource that says it."""

    value: Any
    origin: str


def levels_of(topic: TopicName) -> tuple[str, ...]:
    """The resources of a topic, from itself up to the cluster."""
    namespace = f"{topic.tenant}/{topic.namespace}"
    return f"{namespace}/{topic.local}", namespace, topic.tenant, CLUSTER


def of_topic(topic: TopicName, known: Known) -> dict[str, Limit]:
    """Of each topic's fields those that are in effect for this one, by name; without those that are NO_LIMIT."""
    return _resolved(levels_of(topic), OF_TOPIC, known)


def of_role(role: str, known: Known) -> dict[str, Limit]:
    """Likewise for a role."""
    return _resolved((ROLE + role, EACH_ROLE), OF_ROLE, known)


def of_messages(tenant: str, known: Known) -> dict[str, Limit]:
    """How long messages live and are kept, as a tenant says, or else the cluster; NO_LIMIT: without end."""
    return _resolved((tenant, CLUSTER), OF_MESSAGES, known, endless=True)


def names_of_role(role: str, known: Known) -> Limit | None:
    """How many names of producers a role may have in a topic; NO_LIMIT: any number. None: that is not said."""
    return _resolved((ROLE + role, EACH_ROLE), ("producer_names_max",), known, endless=True).get("producer_names_max")


def with_policies(topic: TopicName, own: TopicPolicies, namespace: TopicPolicies, known: Known) -> dict[str, Limit]:
    """of_messages() of a topic, with what its policies and those of its namespace say, which go before."""
    levels = levels_of(topic)
    found = of_messages(topic.tenant, known)
    for origin, policies in ((levels[1], namespace), (levels[0], own)):
        found |= {name: Limit(value, origin) for name, value in policies.said().items() if name in OF_MESSAGES}
    return found


def totals_of(topic: TopicName, name: str, known: Known) -> list[Limit]:
    """The limits of one of TOTALS that this topic counts for."""
    found = []
    for resource in levels_of(topic)[1:]:
        limits = known(resource)
        value = None if limits is None else getattr(limits, name)
        if value is not None and value != NO_LIMIT:
            found.append(Limit(value, resource))
    return found


def _resolved(
    levels: tuple[str, ...], names: tuple[str, ...], known: Known, *, endless: bool = False
) -> dict[str, Limit]:
    """Each of these as the first level says it. `endless`: also where that is NO_LIMIT."""
    said = [(level, limits) for level in levels if (limits := known(level)) is not None]
    found: dict[str, Limit] = {}
    for name in names:
        for level, limits in said:
            if (value := getattr(limits, name)) is not None:
                if endless or value != NO_LIMIT:
                    found[name] = Limit(value, level)
                break
    return found
