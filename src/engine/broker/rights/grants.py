"""`Grants`: the grants of all roles, as a mirror of their records in the metadata store that a watch keeps current."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from engine.aio.tasks import Supervisor
from engine.errors import EngineError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, MetadataStore
from engine.model.rights import Grant, Right, parents

log = logging.getLogger(__name__)

_BETWEEN = "\n"  # of a resource and a role, which have no control characters
_ANSWERS = 10_000  # remembered of holds(), about 300 bytes each


class Grants:
    """One dictionary: "resource\\nrole" -> the bits of its rights, or these and a subscription prefix.

    `changed` is called with a role after its grants have changed. Beside it, for lists: "tenant/namespace\\nrole" ->
    the own names of the topics on which the role has a grant of their own.
    """

    def __init__(self, metadata: MetadataStore, changed: Callable[[str], None]) -> None:
        self._metadata = metadata
        self._changed = changed
        self._known: dict[str, int | tuple[int, str]] = {}
        self._topics: dict[str, set[str]] = {}
        self._answers: dict[tuple[str, int, str, str | None], bool] = {}  # of holds(), as long as no grant changes
        self._tasks = Supervisor("grants")

    def __len__(self) -> int:
        return len(self._known)

    async def start(self) -> None:
        """Read all grants, and follow them. Raises what the metadata store raises."""
        for record in await self._metadata.newest.list(keys.GRANTS, keys.prefix_end(keys.GRANTS)):
            self.note(record.key, record.value)
        watch = partial(self._metadata.watch, keys.GRANTS)
        following = follow(self._metadata, watch, self._heard, self._keys, what="the grants")
        self._tasks.spawn(following, "watch of the grants")

    async def close(self) -> None:
        """Stop following."""
        await self._tasks.close()

    def holds(self, role: str, rights: int, resource: str, subscription: str | None = None) -> bool:
        """Whether the role has one of these rights (bits) on the resource, or on one above it.

        `subscription`: whose messages it wants to consume, or to acknowledge; None: no particular one's.
        """
        asked = (role, rights, resource, subscription)
        answer = self._answers.get(asked)
        if answer is None:
            if len(self._answers) >= _ANSWERS:
                self._answers.clear()
            behind = _BETWEEN + role
            found = (self._known.get(one + behind) for one in parents(resource))
            answer = any(one is not None and _allows(one, rights, subscription) for one in found)
            self._answers[asked] = answer
        return answer

    def topics(self, role: str, namespace: str) -> frozenset[str]:
        """The own names of the topics of "tenant/namespace" on which the role has a grant of their own."""
        return frozenset(self._topics.get(namespace + _BETWEEN + role, ()))

    def some_below(self, role: str, resource: str) -> bool:
        """Whether it has a grant on a topic of the namespace."""
        return resource + _BETWEEN + role in self._topics

    def held(self, role: str, resource: str) -> tuple[int, list[str] | None]:
        """(the bits of all its rights on the resource, how names of subscriptions begin that it may consume; None:
        as they like).
        """
        held, prefixes, every = 0, [], False
        for one in parents(resource):
            found = self._known.get(one + _BETWEEN + role, 0)
            mask, prefix = (found, None) if isinstance(found, int) else found
            held |= mask
            if prefix is not None:
                prefixes.append(prefix)
            every = every or bool(mask & Right.ADMIN) or (prefix is None and bool(mask & Right.CONSUME))
        return held, None if every or not prefixes else sorted(prefixes)

    def shown(self, role: str, resource: str) -> tuple[str, ...] | None:
        """How the names of the subscriptions begin that the role may look up on a topic; None: all of them. Of a grant
        with a prefix it is that one.
        """
        prefixes = []
        for one in parents(resource):
            found = self._known.get(one + _BETWEEN + role, 0)
            mask, prefix = (found, None) if isinstance(found, int) else found
            if mask & Right.LOOKUP and (prefix is None or mask & Right.ADMIN):
                return None
            if prefix is not None:
                prefixes.append(prefix)
        return tuple(prefixes)

    def note(self, key: str, value: bytes | None) -> str | None:
        """Take a record over, None where it was deleted; the role that it is about. A damaged one grants nothing."""
        try:
            resource, role = keys.grant_of(key)
        except ValueError:
            log.warning("the grant %s in the metadata store is ignored: its key is malformed", key)
            return None
        self._answers.clear()
        self._known.pop(resource + _BETWEEN + role, None)
        self._list(resource, role, listed=False)
        if value is not None:
            try:
                grant = Grant.of(resource, role, value)
            except EngineError as e:
                log.warning("the grant %s in the metadata store is ignored: %s", key, e)
            else:
                prefix = grant.subscription_prefix
                self._known[resource + _BETWEEN + role] = grant.mask if prefix is None else (grant.mask, prefix)
                self._list(resource, role, listed=bool(grant.mask & Right.LOOKUP))
        return role

    def _list(self, resource: str, role: str, *, listed: bool) -> None:
        """Whether lists show a topic to a role by a grant on it."""
        namespace, _, local = resource.rpartition("/")
        if "/" not in namespace:
            return
        key = namespace + _BETWEEN + role
        if listed:
            self._topics.setdefault(key, set()).add(local)
        elif key in self._topics:
            self._topics[key].discard(local)
            if not self._topics[key]:
                del self._topics[key]

    def _keys(self) -> list[str]:
        return [keys.grant(*known.split(_BETWEEN)) for known in self._known]

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            return
        role = self.note(event.key, None if event.record is None else event.record.value)
        if role is not None:
            self._changed(role)


def _allows(found: int | tuple[int, str], rights: int, subscription: str | None) -> bool:
    if isinstance(found, int):
        return bool(found & rights)
    mask, prefix = found
    if subscription is not None and not mask & Right.ADMIN and not subscription.startswith(prefix):
        mask &= ~Right.CONSUME
    return bool(mask & rights)
