"""What of a topic's statistics is shown to a principal: of its subscriptions those that it may look up.

A right to consume with a prefix is one to see the subscriptions that begin so. Sums over all subscriptions stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.broker.rights.principal import PRINCIPAL
from engine.broker.rights.rights import Rights
from engine.broker.rights.table import OPERATIONS as RULES
from engine.model.admin_operations import GET_SEGMENT_STATS, GET_STATS
from engine.model.admin_requests import Operation

_BY_SUBSCRIPTION = ("subscriptions", "checkpointGroups", "consumers", "backlog")  # in statistics, those of segments too


def shown(rights: Rights, operation: Operation[Any], arguments: Mapping[str, Any], found: Any) -> Any:
    """What an operation has found, as the principal of the request in this task may see it."""
    if operation not in (GET_STATS, GET_SEGMENT_STATS):
        return found
    prefixes = rights.subscriptions_shown(PRINCIPAL.get(), RULES[operation.name](arguments).resource)
    if prefixes is None:
        return found
    some = _some(found, prefixes)
    if "segments" in found:
        some["segments"] = {name: _some(segment, prefixes) for name, segment in found["segments"].items()}
    return some


def _some(found: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    some = dict(found)
    for key in _BY_SUBSCRIPTION:
        if key in found:
            some[key] = {name: one for name, one in found[key].items() if name.startswith(prefixes)}
    return some
