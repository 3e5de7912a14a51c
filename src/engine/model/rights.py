"""Rights, the resources that they are granted on, and `Grant`, the record of one grant."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.errors import CorruptionError, InvalidArgumentError
from engine.model.names import check_name, check_new_name

CLUSTER = "*"  # the resource above all tenants
_PARTS = ("tenant", "namespace", "topic")


class Right(enum.IntEnum):
    """One bit each."""

    PRODUCE = 1
    CONSUME = 2
    LOOKUP = 4
    ADMIN = 8
    OPERATE = 16
    SUPERUSER = 32
    BROKER = 64  # that of the brokers themselves; it is never granted
    PROXY = 128  # to speak for clients

    def __str__(self) -> str:
        return self.name.lower()


GRANTABLE = tuple(str(right) for right in Right if right is not Right.BROKER)
ON_CLUSTER_ALONE = ("operate", "superuser", "proxy")

_IMPLIED = {
    Right.PRODUCE: Right.LOOKUP,
    Right.CONSUME: Right.LOOKUP,
    Right.ADMIN: Right.PRODUCE | Right.CONSUME | Right.LOOKUP,
    Right.SUPERUSER: Right.PRODUCE | Right.CONSUME | Right.LOOKUP | Right.ADMIN | Right.OPERATE | Right.PROXY,
}


def names_of(mask: int) -> str:
    """The rights of a mask, in a text."""
    return " or ".join(str(right) for right in Right if mask & right)


def check_resource(text: str) -> str:
    """`text` itself, if it is "*", "tenant", "tenant/namespace" or "tenant/namespace/topic". InvalidArgumentError."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"resource must be text, got {type(text).__name__}")
    parts = text.split("/")
    if len(parts) > len(_PARTS):
        raise InvalidArgumentError(
            f'resource must be "*", "tenant", "tenant/namespace" or "tenant/namespace/topic", got {text!r:.200}'
        )
    if text != CLUSTER:
        for part, what in zip(parts, _PARTS, strict=False):
            check_name(part, what)
    return text


def check_role(text: str) -> str:
    """`text` itself, if it may name a role. Raises InvalidArgumentError."""
    return check_new_name(text, "role")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a role may do on a resource and what lies below it.

    `subscription_prefix`: `consume` is of subscriptions whose names begin with it alone; None: of all.
    Raises InvalidArgumentError.
    """

    resource: str
    role: str
    rights: tuple[str, ...]
    subscription_prefix: str | None = None

    def __post_init__(self) -> None:
        check_resource(self.resource)
        check_role(self.role)
        if isinstance(self.rights, str) or not self.rights or any(one not in GRANTABLE for one in self.rights):
            raise InvalidArgumentError(f"rights must be some of {', '.join(GRANTABLE)}, got {self.rights!r:.200}")
        object.__setattr__(self, "rights", tuple(one for one in GRANTABLE if one in self.rights))
        if self.resource != CLUSTER and (wrong := [one for one in self.rights if one in ON_CLUSTER_ALONE]):
            raise InvalidArgumentError(f'{wrong[0]} must be granted on the resource "*", got {self.resource!r:.200}')
        if self.subscription_prefix is not None:
            check_name(self.subscription_prefix, "subscription prefix")
            if "consume" not in self.rights:
                raise InvalidArgumentError("subscription_prefix must be given with the right consume, got it without")

    @property
    def mask(self) -> int:
        """The rights with those that they imply, as bits."""
        found = 0
        for name in self.rights:
            right = Right[name.upper()]
            found |= right | _IMPLIED.get(right, 0)
        return found

    def to_mapping(self) -> dict[str, Any]:
        """As it is shown."""
        return {
            "resource": self.resource,
            "role": self.role,
            "rights": list(self.rights),
            "subscription_prefix": self.subscription_prefix,
        }

    def to_json(self) -> bytes:
        """The value of its record; resource and role are in the key. With the role it says that the record is in the
        index by roles, which builds that do not know the index do not say.
        """
        facts: dict[str, Any] = {"rights": list(self.rights), "role": self.role}
        if self.subscription_prefix is not None:
            facts["subscriptionPrefix"] = self.subscription_prefix
        return json.dumps(facts).encode()

    @classmethod
    def of(cls, resource: str, role: str, value: bytes) -> Grant:
        """Undo to_json(). Rights that only a newer broker knows are left out. Raises CorruptionError."""
        try:
            facts = json.loads(value)
            known = tuple(one for one in facts["rights"] if one in GRANTABLE)
            return cls(resource, role, known, facts.get("subscriptionPrefix"))
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptionError(f"grant record of {role!r:.80} on {resource!r:.80}: {e}") from e


def above(resource: str) -> str:
    """The resource of which this one is a part: of a topic its namespace, of a tenant the cluster."""
    return resource.rpartition("/")[0] or CLUSTER


def parents(resource: str) -> Iterable[str]:
    """The resource, and those above it, up to the cluster."""
    while resource != CLUSTER:
        yield resource
        resource = above(resource)
    yield CLUSTER
