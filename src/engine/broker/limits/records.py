"""`LimitRecords`: the limits of resources and roles as records in the metadata store, as operators change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import EngineError, InvalidArgumentError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.limits import (
    NOTHING_LIMITED,
    Limits,
    check_fields,
    check_limited,
    names_on,
)
from engine.model.names import ROLE

RECORDS_MAX = 10_000  # below one tenant: a broker with something of it knows all; its administrators name any topic
_ATTEMPTS_MAX = 10  # several may change the limits of a resource at the same time
Noted = Callable[[str, bytes | None], object]


class LimitRecords:
    """`noted`: told of each record that is written or deleted here, before the watch tells of it."""

    def __init__(self, metadata: MetadataStore, noted: Noted) -> None:
        self._metadata = metadata
        self._noted = noted

    async def list(self) -> dict[str, dict[str, Any]]:
        """What each resource and role says, by its name."""
        found = {}
        for record in await self._metadata.newest.list(keys.LIMITS, keys.prefix_end(keys.LIMITS)):
            resource = keys.limited(record.key)
            found[resource] = Limits.of(resource, record.value).said()
        return dict(sorted(found.items()))

    async def get(self, resource: str) -> dict[str, Any]:
        """What it says itself; None where it says nothing. Raises CorruptionError."""
        limits = (await self._load(check_limited(resource)))[0]
        return {name: getattr(limits, name) for name in names_on(resource)}

    async def change(self, resource: str, values: Mapping[str, Any]) -> None:
        """Merge; None takes one back. Raises InvalidArgumentError."""
        check_fields(check_limited(resource), NOTHING_LIMITED.changed(values))
        await self._put(resource, lambda now: now.changed(values))

    async def replace(self, resource: str, values: Mapping[str, Any]) -> None:
        """In place of all that it says. Raises InvalidArgumentError."""
        limits = check_fields(check_limited(resource), NOTHING_LIMITED.changed(values))
        await self._put(resource, lambda _: limits)

    async def remove(self, resource: str) -> None:
        """It says nothing any more. Idempotent."""
        key = keys.limits(check_limited(resource))
        await self._metadata.delete(key)
        self._noted(key, None)

    async def _load(self, resource: str) -> tuple[Limits, int | None]:
        record = await self._metadata.newest.get(keys.limits(resource))
        return (NOTHING_LIMITED, None) if record is None else (Limits.of(resource, record.value), record.stat.version)

    async def _check_room(self, resource: str) -> None:
        """Raise InvalidArgumentError where as many topics and namespaces of the tenant have limits as may have some."""
        tenant, below, _ = resource.partition("/")
        if not below or resource.startswith(ROLE):
            return
        start = keys.limits(f"{tenant}/")
        found = await self._metadata.newest.list_keys(start, keys.prefix_end(start), RECORDS_MAX)
        if len(found) >= RECORDS_MAX:
            most = f"at most {RECORDS_MAX} namespaces and topics of the tenant {tenant} must have limits of their own"
            raise InvalidArgumentError(f"{most}, got one more: {resource:.300}")

    async def _put(self, resource: str, change: Callable[[Limits], Limits]) -> None:
        key = keys.limits(resource)
        for _ in range(_ATTEMPTS_MAX):
            now, version = await self._load(resource)
            wanted = change(now)
            try:
                if wanted:
                    if version is None:
                        await self._check_room(resource)
                    await self._metadata.put(key, wanted.to_json(), ABSENT if version is None else version)
                elif version is not None:
                    await self._metadata.delete(key, version)
            except ConflictError:
                continue
            except OutcomeUnknownError as e:
                raise UnknownOutcomeError(f"the limits of {resource} may have been changed: {e}") from e
            self._noted(key, wanted.to_json() if wanted else None)
            return
        raise EngineError(f"the limits of {resource} keep changing; try again")
