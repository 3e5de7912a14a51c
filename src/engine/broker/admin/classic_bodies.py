"""Bodies of requests of Apache Pulsar's admin REST. What is wrong in one raises InvalidArgumentError."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidArgumentError, UnsupportedError
from engine.model.partitions import checked_count

_LATEST = 2**63 - 1  # ledger and entry of the id that means it
_BY_CLIENT = "move it with a client's seek(), which takes any id, or by time"


def named_properties(body: Any) -> dict[str, str]:
    """Text by name; nothing is none."""
    if body is None:
        return {}
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise InvalidArgumentError(f"the body must be an object of text by name, got {body!r:.80}")
    return dict(body)


def partitions_and_properties(body: Any) -> tuple[int, dict[str, str]]:
    """Of a number, or of an object of both."""
    if not isinstance(body, dict):
        return checked_count(body), {}
    return checked_count(body.get("partitions")), named_properties(body.get("properties"))


def created_at(body: Any) -> str:
    """Where a new subscription begins: "earliest" or "latest"."""
    if body is None:
        return "latest"
    found = _end_of(body)
    if found is None:
        raise UnsupportedError(f"a subscription must be created at the earliest or the latest message: {_BY_CLIENT}")
    return found


def reset_to(body: Any) -> str:
    """Where a subscription goes: "earliest" or "latest"."""
    found = _end_of(body)
    if found is None:
        raise UnsupportedError(f"a subscription must be reset to the earliest or the latest message: {_BY_CLIENT}")
    return found


def _end_of(body: Any) -> str | None:
    """Of the id of a message; None: it is of one in between."""
    if not isinstance(body, dict):
        raise InvalidArgumentError(f"the body must be the id of a message, got {body!r:.80}")
    ledger, entry = body.get("ledgerId"), body.get("entryId")
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in (ledger, entry)):
        raise InvalidArgumentError(f"ledgerId and entryId must be whole numbers, got {ledger!r:.40} and {entry!r:.40}")
    if ledger == entry == -1:
        return "earliest"
    return "latest" if ledger == entry == _LATEST else None


def tenant_admins(body: Any) -> list[str] | None:
    """The roles that administer a new tenant; None: the body is not of Apache Pulsar's kind."""
    if not isinstance(body, dict) or not body.keys() & {"adminRoles", "allowedClusters"}:
        return None
    roles = body.get("adminRoles") or []
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise InvalidArgumentError(f"adminRoles must be an array of names, got {roles!r:.80}")
    return roles
