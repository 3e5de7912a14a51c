"""`Grants`: the grants of the roles that are here, each role followed by a watch of its own.

A role is here while a connection or an HTTP request of it is, and of those that are not any more the last IDLE_MAX are
kept. So what a broker hears and keeps of grants does not grow with the cluster. A role's grants are a range of an index
of their records; they are *known* when all of that range has come, and then a check waits for nothing. What is asked
of a role whose grants are not known is an error, and never answered as if it had none.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import Counter
from collections.abc import Callable, Collection

from engine.aio.tasks import Supervisor
from engine.broker.rights.indexing import index_grants
from engine.broker.rights.records import INDEX_GRANTS
from engine.errors import EngineError, TimeoutError, TooManyRequestsError
from engine.metadata import keys
from engine.metadata.selection import Selection
from engine.metadata.store import Event, EventKind, MetadataStore
from engine.model.rights import Grant, Right, parents

log = logging.getLogger(__name__)

_ANSWERS = 10_000  # remembered of holds(), about 300 bytes each
IDLE_MAX = 256  # roles that are followed although nothing of them is here
WAITING_MAX = 1_000  # roles whose grants are waited for


class _Role:
    """What is followed of one role. `users`: connections and requests. `known`: whether all its grants have come."""

    __slots__ = ("known", "resources", "topics", "users")

    def __init__(self) -> None:
        self.users = 0
        self.known = False
        self.resources: dict[str, int | tuple[int, str]] = {}  # bits of rights, or these and a subscription prefix
        self.topics: dict[str, set[str]] = {}  # for lists: by namespace, own names of topics with a grant of their own


class Grants:
    """Loop thread only. `changed` is called with a role after its grants, once they were known, have changed; `began`
    and `ended` when they are known from now on, and when they are followed no more.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        changed: Callable[[str], object],
        began: Callable[[str], object] = lambda role: None,
        ended: Callable[[str], object] = lambda role: None,
    ) -> None:
        self._metadata = metadata
        self._changed = changed
        self._began = began
        self._ended = ended
        self._roles: dict[str, _Role] = {}
        self._idle: dict[str, None] = {}  # without users, the one that had some last at the end
        self._waiting: Counter[str] = Counter()  # how many wait, by role
        self._answers: dict[tuple[str, int, str, str | None], bool] = {}  # of holds(), as long as no grant changes
        self._tasks = Supervisor("grants")
        self._followed = Selection(metadata, INDEX_GRANTS, _of_role, self._heard, self._keys, self._tasks, self._shown)

    def __len__(self) -> int:
        return sum(len(role.resources) for role in self._roles.values())

    async def start(self) -> None:
        """Put those into the index that an older build has written. Raises what the metadata store raises."""
        await index_grants(self._metadata)

    async def close(self) -> None:
        """Stop following. What is known can still be asked."""
        await self._tasks.close()

    # -- which roles are followed ------------------------------------------------------------------------------------

    def use(self, role: str) -> None:
        """Follow a role until leave() was called as often, and longer."""
        found = self._roles.get(role)
        if found is None:
            found = self._roles[role] = _Role()
            self._followed.add(role)
        self._idle.pop(role, None)
        found.users += 1

    def leave(self, role: str) -> None:
        """Undo one use()."""
        found = self._roles[role]
        found.users -= 1
        if not found.users:
            self._idle[role] = None
            if len(self._idle) > IDLE_MAX:
                self._drop(next(iter(self._idle)))

    def _drop(self, role: str) -> None:
        del self._idle[role], self._roles[role]
        self._answers.clear()
        self._followed.drop(role)
        self._ended(role)

    def knows(self, role: str) -> bool:
        """Whether the grants of the role can be asked for."""
        found = self._roles.get(role)
        return found is not None and found.known

    async def known(self, role: str, seconds: float) -> None:
        """Wait until the grants of a role in use are known. Raises TimeoutError, after so many seconds;
        TooManyRequestsError: those of WAITING_MAX other roles are waited for.
        """
        if self.knows(role):
            return
        if role not in self._waiting and len(self._waiting) >= WAITING_MAX:
            raise TooManyRequestsError(
                f"limit of roles whose grants are waited for reached ({WAITING_MAX}); try again later"
            )
        self._waiting[role] += 1
        try:
            async with asyncio.timeout(seconds):
                await self._followed.shown(role)
        except builtins.TimeoutError:
            raise TimeoutError(
                f"the metadata store did not tell the grants of {role!r:.200} within {seconds:.3g} s; try again"
            ) from None
        finally:
            self._waiting[role] -= 1
            if not self._waiting[role]:
                del self._waiting[role]

    # -- what they may do: each raises TimeoutError where the role's grants are not known ---------------------------

    def holds(self, role: str, rights: int, resource: str, subscription: str | None = None) -> bool:
        """Whether the role has one of these rights (bits) on the resource, or on one above it.

        `subscription`: whose messages it wants to consume, or to acknowledge; None: no particular one's.
        """
        asked = (role, rights, resource, subscription)
        answer = self._answers.get(asked)
        if answer is None:
            known = self._of(role).resources
            if len(self._answers) >= _ANSWERS:
                self._answers.clear()
            found = (known.get(one) for one in parents(resource))
            answer = any(one is not None and _allows(one, rights, subscription) for one in found)
            self._answers[asked] = answer
        return answer

    def topics(self, role: str, namespace: str) -> frozenset[str]:
        """The own names of the topics of "tenant/namespace" on which the role has a grant of their own."""
        return frozenset(self._of(role).topics.get(namespace, ()))

    def some_below(self, role: str, resource: str) -> bool:
        """Whether it has a grant on a topic of the namespace."""
        return resource in self._of(role).topics

    def held(self, role: str, resource: str) -> tuple[int, list[str] | None]:
        """(the bits of all its rights on the resource, how names of subscriptions begin that it may consume; None:
        as they like).
        """
        known = self._of(role).resources
        held, prefixes, every = 0, [], False
        for one in parents(resource):
            found = known.get(one, 0)
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
        known = self._of(role).resources
        prefixes = []
        for one in parents(resource):
            found = known.get(one, 0)
            mask, prefix = (found, None) if isinstance(found, int) else found
            if mask & Right.LOOKUP and (prefix is None or mask & Right.ADMIN):
                return None
            if prefix is not None:
                prefixes.append(prefix)
        return tuple(prefixes)

    def _of(self, role: str) -> _Role:
        found = self._roles.get(role)
        if found is None or not found.known:
            raise TimeoutError(f"the grants of {role!r:.200} are not known here; try again")
        return found

    # -- what is heard -----------------------------------------------------------------------------------------------

    def note(self, key: str, value: bytes | None) -> str | None:
        """Take a record over, None where it was deleted; the role that it is about, None where that is not followed.
        A damaged one grants nothing.
        """
        try:
            resource, role = keys.grant_of(key)
        except ValueError:
            log.warning("the grant %s in the metadata store is ignored: its key is malformed", key)
            return None
        found = self._roles.get(role)
        if found is None:
            return None
        if found.known:
            self._answers.clear()
        found.resources.pop(resource, None)
        _list(found.topics, resource, listed=False)
        if value is not None:
            try:
                grant = Grant.of(resource, role, value)
            except EngineError as e:
                log.warning("the grant %s in the metadata store is ignored: %s", key, e)
            else:
                prefix = grant.subscription_prefix
                found.resources[resource] = grant.mask if prefix is None else (grant.mask, prefix)
                _list(found.topics, resource, listed=bool(grant.mask & Right.LOOKUP))
        return role

    def _keys(self, role: str) -> Collection[str]:
        found = self._roles.get(role)
        return [] if found is None else [keys.grant(resource, role) for resource in found.resources]

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            return
        role = self.note(event.key, None if event.record is None else event.record.value)
        if role is not None and self._roles[role].known:
            self._changed(role)

    def _shown(self, role: str) -> None:
        self._roles[role].known = True
        self._began(role)


def _of_role(role: str) -> tuple[str, str]:
    """The range of INDEX_GRANTS that holds this role's grants."""
    start = keys.grants_of(role)
    return start, keys.prefix_end(start)


def _list(topics: dict[str, set[str]], resource: str, *, listed: bool) -> None:
    """Whether lists show a topic to a role by a grant on it."""
    namespace, _, local = resource.rpartition("/")
    if "/" not in namespace:
        return
    if listed:
        topics.setdefault(namespace, set()).add(local)
    elif namespace in topics:
        topics[namespace].discard(local)
        if not topics[namespace]:
            del topics[namespace]


def _allows(found: int | tuple[int, str], rights: int, subscription: str | None) -> bool:
    if isinstance(found, int):
        return bool(found & rights)
    mask, prefix = found
    if subscription is not None and not mask & Right.ADMIN and not subscription.startswith(prefix):
        mask &= ~Right.CONSUME
    return bool(mask & rights)
