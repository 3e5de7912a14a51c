"""`BrokerLimits`: the limits of the tenants and roles that are here, and what this broker counts for them.

It is made when there is the first limit of one of them: a broker without limits has none of this. All limits are those
of the cluster: brokers tell each other what they use of rates (elsewhere.py), what is there (present.py), and what they
store (upkeep/quotas.py); topics, subscriptions and schemas are counted in the metadata store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from engine.broker.limits.attendance import Attendance, Crowd
from engine.broker.limits.bucket import Bucket
from engine.broker.limits.debts import Debts
from engine.broker.limits.elsewhere import Elsewhere
from engine.broker.limits.open_transactions import RoleTransactions
from engine.broker.limits.present import NONE_ELSEWHERE, Attended, Others, Present, by_group, digest
from engine.errors import EngineError, LimitExceededError, TimeoutError
from engine.metadata import keys
from engine.model import limits as model
from engine.model.limits import Limit, Limits
from engine.model.names import EACH_ROLE, ROLE, SegmentName, TopicName
from engine.model.policies import TopicPolicies
from engine.model.rights import CLUSTER

if TYPE_CHECKING:
    from engine.broker.limits.throttle import Throttle

log = logging.getLogger(__name__)

_PRUNED_FIRST = 256  # buckets
_TOPICS_MAX = 10_000  # whose limits are kept resolved
PUBLISH, DISPATCH = "publish", "dispatch"


class Remembering(Protocol):
    """A segment that recognises what producers send again."""

    @property
    def remembered_producers(self) -> int:
        """How many producers' sequences it remembers."""

    def remembers(self, producer: str) -> bool:
        """Whether it remembers sequences of the producer of this name."""


class BrokerLimits:
    """Loop thread only. `changed` is called once after records have changed, with their groups, in a later turn of the
    loop. `told`: the groups whose limits are known; questions about others raise TimeoutError. A group is "*", a
    tenant, or "role:NAME".
    """

    def __init__(self, changed: Callable[[set[str]], None], told: Collection[str]) -> None:
        self._changed = changed
        self._told = told
        self._changes: set[str] = set()  # groups, since the records were applied
        self._again: set[str] = set()  # groups that something here has not followed the change of
        self._of: dict[tuple[str, ...], set[str]] = {}  # groups by names of limits, see groups()
        self._resources: dict[str, set[str]] = {}  # that have a record, by group
        self._said: dict[str, Counter[str]] = {}  # by group, in how many of its records a limit is
        self._said_of_all: Counter[str] = Counter()  # likewise in all records
        self.meet_others: Callable[[str], Awaitable[None]] = _alone  # learns what other brokers show of a group by now
        self._time = asyncio.get_running_loop().time
        self._records: dict[str, Limits] = {}
        self._topics: dict[TopicName, dict[str, Limit]] = {}
        self._roles: dict[str, dict[str, Limit]] = {}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._elsewhere = Elsewhere()
        self._prune_at = _PRUNED_FIRST
        self._scheduled = False
        self._open_transactions: dict[str, RoleTransactions] = {}  # by role
        self._others: dict[str, Others] = {}  # by "what\nscope", what is there at other brokers
        self._attached: tuple[object, list[Attended]] | None = None  # what it is of, and producers and consumers
        self._applied = 0  # so often were records
        self.producers = Crowd("producers")
        self.consumers = Crowd("consumers")
        self.connections: dict[str, int] = {}  # by role
        self.debts = Debts(lambda topic, role: self.buckets(topic, role, PUBLISH))
        self.full: dict[TopicName, LimitExceededError] = {}  # topics that take no messages for now
        self.full_sums: dict[str, LimitExceededError] = {}  # and namespaces, tenants, the cluster: of all their topics
        self.refused: Counter[str] = Counter()  # operations, by the name of the limit

    # -- records ---------------------------------------------------------------------------------------------------

    def note(self, key: str, value: bytes | None) -> None:
        """Take a record over, None where it was deleted. A damaged one limits nothing."""
        resource = keys.limited(key)
        found = None
        if value is not None:
            try:
                found = Limits.of(resource, value)
            except EngineError as e:
                log.warning("the record %s in the metadata store is ignored: %s", key, e)
        before = self._records.get(resource)
        if found == before:
            return
        group = keys.limit_group(resource)
        if found is None:
            del self._records[resource]
        else:
            self._records[resource] = found
        self._index(group, resource, before, found)
        self._change(group)

    def _index(self, group: str, resource: str, before: Limits | None, now: Limits | None) -> None:
        resources, said = self._resources.setdefault(group, set()), self._said.setdefault(group, Counter())
        for limits, more in ((before, -1), (now, 1)):
            for name in () if limits is None else limits.said():
                for count in (said, self._said_of_all):
                    count[name] += more
                    if not count[name]:
                        del count[name]
        if now is not None:
            resources.add(resource)
        else:
            resources.discard(resource)
            if not resources:
                del self._resources[group], self._said[group]

    def _change(self, group: str) -> None:
        self._changes.add(group)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._apply)

    def change_again(self, group: str) -> None:
        """Something here could not follow the change of a group that is not known: it does once it is known."""
        self._again.add(group)

    def says(self, names: Iterable[str]) -> bool:
        """Whether any resource says one of these."""
        return any(name in self._said_of_all for name in names)

    def groups(self, names: Iterable[str]) -> Set[str]:
        """The groups, of those that are known, for which one of these limits is said, also by what is above them.

        It is kept: a group that becomes known, or whose records change, is looked at alone.
        """
        wanted = tuple(names)
        found = self._of.get(wanted)
        if found is None:
            found = self._of[wanted] = {group for group in self._told if self._is_limited(group, wanted)}
        return found

    def _is_limited(self, group: str, names: tuple[str, ...]) -> bool:
        if group == EACH_ROLE:
            return False
        said = self._said.get(group)
        if said is not None and any(name in said for name in names):
            return True
        if group.startswith(ROLE):
            above = self._records.get(EACH_ROLE)
            return above is not None and any(getattr(above, name) is not None for name in names)
        above = self._records.get(CLUSTER)
        return above is not None and any(getattr(above, name) is not None for name in names if name in model.OF_TOPIC)

    def settle(self) -> None:
        """Go by the records as they are now."""
        if self._scheduled:
            self._apply()

    def known(self, group: str) -> None:
        """A group is known from now on."""
        if group in (CLUSTER, EACH_ROLE):
            self._of.clear()
        self._look_at(group)
        if group in self._again or (group in (CLUSTER, EACH_ROLE) and group in self._records):
            self._again.discard(group)
            self._change(group)

    def forget(self, groups: Iterable[str]) -> None:
        """These are not known any more."""
        for group in groups:
            self._look_at(group)
        self._topics.clear()
        self._roles.clear()

    def _look_at(self, group: str) -> None:
        """Whether a group is one of groups()."""
        for names, found in self._of.items():
            if group in self._told and self._is_limited(group, names):
                found.add(group)
            else:
                found.discard(group)

    def knows(self, group: str) -> bool:
        """Whether its limits are known."""
        return group in self._told

    def _check_known(self, group: str) -> None:
        if group not in self._told:
            raise TimeoutError(f"the limits of {group} are not known at this broker yet; try again")

    def _apply(self) -> None:
        if not self._scheduled:
            return  # done by settle()
        self._scheduled = False
        changes, self._changes = {group for group in self._changes if group in self._told}, set()
        if changes:  # nothing is here of a group that is not known yet
            self._applied += 1
            if CLUSTER in changes or EACH_ROLE in changes:
                self._of.clear()
            self.forget(changes)
            self._follow_debts()
        self._changed(changes)

    def _follow_debts(self) -> None:
        for topic, role in self.debts.change():
            for group in (topic.tenant, ROLE + role):
                if not self.knows(group):
                    self.change_again(group)

    def here(self) -> Iterator[str]:
        """The groups that something counts for."""
        for crowd in (self.producers, self.consumers):
            yield from {keys.limit_group(scope) for scope, _ in crowd}
        for topic, role in self.debts:
            yield from (topic.tenant, ROLE + role)
        now = self._time()
        for role, known in list(self._open_transactions.items()):
            known.count(now)  # forgets those that are over
            self._forget(role)
        yield from (ROLE + role for role in (*self.connections, *self._open_transactions))

    # -- what is in effect -----------------------------------------------------------------------------------------

    def of_topic(self, topic: TopicName) -> dict[str, Limit]:
        """Those of a topic that are in effect, by name."""
        found = self._topics.get(topic)
        if found is None:
            self._check_known(topic.tenant)
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            found = self._topics[topic] = model.of_topic(topic, self._records.get)
        return found

    def of_role(self, role: str) -> dict[str, Limit]:
        """Those of a role; none of the empty one."""
        found = self._roles.get(role)
        if found is None:
            if role:
                self._check_known(ROLE + role)
            found = self._roles[role] = model.of_role(role, self._records.get) if role else {}
        return found

    def totals(self, topic: TopicName, name: str) -> list[Limit]:
        """The limits of a sum that this topic counts for."""
        self._check_known(topic.tenant)
        return model.totals_of(topic, name, self._records.get)

    def sums(self, name: str, group: str | None = None) -> list[Limit]:
        """All limits of a sum; or those of a group."""
        resources = self._records if group is None else self._resources.get(group, ())
        said = ((getattr(self._records[resource], name), resource) for resource in resources)
        return [Limit(value, resource) for value, resource in said if value is not None and value != model.NO_LIMIT]

    def of_messages(self, tenant: str) -> TopicPolicies:
        """What the tenant, or else the cluster, says of how long messages live and are kept."""
        self._check_known(tenant)
        found = model.of_messages(tenant, self._records.get)
        return TopicPolicies(**{name: limit.value for name, limit in found.items()})

    def with_policies(self, topic: TopicName, own: TopicPolicies, namespace: TopicPolicies) -> dict[str, Limit]:
        """Likewise of a topic, where the policies of the topic or its namespace say nothing; with the origin."""
        self._check_known(topic.tenant)
        return model.with_policies(topic, own, namespace, self._records.get)

    def names_of_role(self, role: str) -> Limit | None:
        """How many names of producers a role may have in a topic; NO_LIMIT: any number. None: that is not said."""
        if role:
            self._check_known(ROLE + role)
        return model.names_of_role(role, self._records.get)

    # -- rates -----------------------------------------------------------------------------------------------------

    def buckets(self, topic: TopicName, role: str, direction: str) -> tuple[Bucket, ...]:
        """Those that hold for what a role publishes to a topic, or is sent of it, with their rates of now."""
        messages, size = f"{direction}_messages_per_s", f"{direction}_bytes_per_s"
        found: list[Bucket] = []
        own = self.of_topic(topic)
        if messages in own or size in own:
            found.append(self._bucket(model.levels_of(topic)[0], direction, own.get(messages), own.get(size)))
        sums: dict[str, list[Limit | None]] = {}
        for at, name in enumerate((messages, size)):
            for limit in self.totals(topic, f"total_{name}"):
                sums.setdefault(limit.origin, [None, None])[at] = limit
        found += [self._bucket(f"total {origin}", direction, *pair) for origin, pair in sums.items()]
        of_role = self.of_role(role)
        if f"total_{messages}" in of_role or f"total_{size}" in of_role:
            pair = of_role.get(f"total_{messages}"), of_role.get(f"total_{size}")
            found.append(self._bucket(ROLE + role, direction, *pair))
        return tuple(found)

    def _bucket(self, scope: str, direction: str, messages: Limit | None, size: Limit | None) -> Bucket:
        bucket = self._buckets.get((scope, direction))
        if bucket is None:
            if len(self._buckets) >= self._prune_at:
                self._prune()
            bucket = self._buckets[scope, direction] = Bucket(self._time)
            bucket.share(self._elsewhere.share((scope, direction)))
        bucket.configure(None if messages is None else messages.value, None if size is None else size.value)
        return bucket

    def share(self, elsewhere: Elsewhere) -> None:
        """Go by what the other brokers use from now on."""
        before, self._elsewhere = self._elsewhere, elsewhere
        if not before and not elsewhere:
            return
        for scope, bucket in self._buckets.items():
            bucket.share(elsewhere.share(scope))

    def share_of(self, elsewhere: Elsewhere) -> None:
        """Likewise by what they use of one group, which is new here."""
        for scope in self._elsewhere.replace(elsewhere):
            if (bucket := self._buckets.get(scope)) is not None:
                bucket.share(self._elsewhere.share(scope))

    def buckets_in_use(self) -> list[tuple[tuple[str, str], Bucket]]:
        """((scope, direction), bucket) of what has a rate now."""
        return [(key, b) for key, b in self._buckets.items() if (b.messages_per_s, b.bytes_per_s) != (None, None)]

    def beyond(self, limit: str, resource: str, value: object, asked: str) -> LimitExceededError:
        """The error of an operation that is refused, which is counted."""
        self.refused[limit] += 1
        return LimitExceededError.of(limit, resource, value, asked)

    def note_refused(self, error: LimitExceededError) -> None:
        """Count an operation that was refused with this error."""
        self.refused[error.limit or "storage_bytes_max"] += 1

    def _prune(self) -> None:
        """Forget buckets that nothing uses and that owe nothing: a new one would be the same."""
        self._buckets = {key: b for key, b in self._buckets.items() if b.users or b.wait_s > 0}
        self._prune_at = max(_PRUNED_FIRST, 2 * len(self._buckets))

    def attend(self, crowd: Crowd, topic: TopicName, role: str, name: str, throttle: Throttle | None) -> Attendance:
        """Count one of the attached, until it is closed."""
        scopes = (*model.levels_of(topic), ROLE + role) if role else model.levels_of(topic)
        return Attendance(crowd, scopes, digest(f"{topic}\n{name}"), throttle)

    def attend_consumer(self, segment: SegmentName, role: str, name: str, peer: Any, *, several: bool) -> Attendance:
        """Likewise a consumer. `peer`: its connection. `several`: others may have its name at the same segment."""
        where = f"{segment}\n{name}"
        number = self.consumers.copy(where) if several else 0
        counted = _copied(name, number)
        attendance = self.attend(self.consumers, segment.topic, role, counted, None)
        if several:
            attendance.is_copy(where, number, peer)
        return attendance

    # -- counts ----------------------------------------------------------------------------------------------------

    def check_attach(self, crowd: Crowd, topic: TopicName, role: str, name: str) -> None:
        """Raise LimitExceededError unless one more may attach. One that is attached to a segment counts once."""
        own = self.of_topic(topic).get(f"{crowd.what}_max")
        total = f"total_{crowd.what}"
        limits = [] if own is None else [(f"{crowd.what}_max", own, model.levels_of(topic)[0])]
        limits += [(total, limit, limit.origin) for limit in self.totals(topic, total)]
        if (of_role := self.of_role(role).get(total)) is not None:
            limits.append((total, of_role, ROLE + role))
        beside = digest(f"{topic}\n{name}") if limits else b""
        for limit_name, limit, scope in limits:
            count = crowd.count(scope, beside)
            if count >= limit.value:
                raise self.beyond(limit_name, limit.origin, limit.value, f"{count + 1} {crowd.what} of {scope}")

    def check_consumer(self, segment: SegmentName, role: str, name: str, *, several: bool) -> None:
        """Raise LimitExceededError unless one more consumer may attach. `several`: as of attend_consumer()."""
        number = self.consumers.copy(f"{segment}\n{name}") if several else 0
        self.check_attach(self.consumers, segment.topic, role, _copied(name, number))

    def alike(self, segment: SegmentName, name: str) -> list[Any]:
        """The connections of the consumers that have this name at the segment."""
        return self.consumers.alike(f"{segment}\n{name}")

    def check_topic(self, topic: TopicName) -> None:
        """Raise LimitExceededError while the topic takes no messages: too much is stored, or not acknowledged."""
        error = self.full.get(topic)
        if error is None and self.full_sums:  # a topic that no broker has stored anything of as well
            levels = model.levels_of(topic)[1:]
            error = next((self.full_sums[level] for level in levels if level in self.full_sums), None)
        if error is not None:
            self.note_refused(error)
            raise LimitExceededError(str(error))

    def check_name(self, topic: TopicName, segment: Remembering, name: str) -> None:
        """Raise LimitExceededError unless a segment may remember a producer of this name."""
        limit = self.of_topic(topic).get("producer_names_max")
        if limit is None or segment.remembers(name) or (remembered := segment.remembered_producers) < limit.value:
            return
        asked = f"{remembered + 1} names that a segment of {model.levels_of(topic)[0]} remembers"
        raise self.beyond("producer_names_max", limit.origin, limit.value, asked)

    def connect(self, role: str) -> LimitExceededError | None:
        """Count a connection of the role, or say why it may have none more."""
        here, limit = self.connections.get(role, 0), self.of_role(role).get("connections_max")
        count = here + self._others.get(_of("connections", role), NONE_ELSEWHERE).most
        if limit is not None and count >= limit.value:
            return self.beyond("connections_max", limit.origin, limit.value, f"connection {count + 1} of the role")
        self.connections[role] = here + 1
        return None

    def disconnect(self, role: str) -> None:
        """A connection of the role is closed."""
        left = self.connections.get(role, 0) - 1
        if left > 0:
            self.connections[role] = left
        else:
            self.connections.pop(role, None)

    @contextmanager
    def beginning(self, role: str, more: int, name: str | None) -> Iterator[None]:
        """While the role begins so many more transactions: they count already. Call transaction_begun() inside.

        One of a name that counts already is not counted once more, and never refused. Raises LimitExceededError.
        """
        limit = self.of_role(role).get("open_transactions_max")
        if limit is None:
            yield
            return
        known = self._transactions_of(role)
        try:
            count = known.count(self._time()) + more
            if count > limit.value and (name is None or not known.has(name)):
                asked = f"{count} open transactions of the role"
                raise self.beyond("open_transactions_max", limit.origin, limit.value, asked)
            known.begin(more, name)
            try:
                yield
            finally:
                known.finished(more, name)
        finally:
            self._forget(role)

    def transactions_to_look_at(self, role: str, more: int, name: str | None) -> list[int]:
        """The oldest of those that count, where so many more would be refused: another broker may have ended them.

        Now and then only, so that a role at its limit costs little.
        """
        limit, known = self.of_role(role).get("open_transactions_max"), self._open_transactions.get(role)
        if limit is None or known is None:
            return []
        now = self._time()
        if (name is not None and known.has(name)) or known.count(now) + more <= limit.value:
            return []
        return known.oldest(now)

    def transaction_begun(self, role: str, number: int, timeout_s: float, name: str | None = None) -> None:
        """Count it until it ends, or is over by its timeout; where there is a limit."""
        if "open_transactions_max" in self.of_role(role):
            known = self._transactions_of(role)
            known.begun(number, self._time() + timeout_s, name)

    def transaction_ended(self, role: str, number: int) -> None:
        """It is committed or aborted."""
        if (known := self._open_transactions.get(role)) is not None:
            known.ended(number)
            self._forget(role)

    def _transactions_of(self, role: str) -> RoleTransactions:
        known = self._open_transactions.get(role)
        if known is None:
            known = self._open_transactions[role] = RoleTransactions()
            known.others = self._others.get(_of("transactions", role), NONE_ELSEWHERE)
        return known

    def _forget(self, role: str) -> None:
        """Of a role without transactions nothing is kept."""
        if not self._open_transactions.get(role, True):
            del self._open_transactions[role]

    # -- with other brokers ----------------------------------------------------------------------------------------

    def present(self, shown: Collection[str] = ()) -> dict[str, Present]:
        """What is here, of what has a limit, by group. `shown`: the groups that the others are shown already."""
        of = self._applied, self.producers.version, self.consumers.version
        if self._attached is None or self._attached[0] != of:
            self._attached = of, [*self._attended(self.producers), *self._attended(self.consumers)]
        found = list(self._attached[1])
        for role, count in self.connections.items():
            if (limit := self.of_role(role).get("connections_max")) is not None:
                found.append((count / max(limit.value, 1), _of("connections", role), (), count))
        for role, known in self._open_transactions.items():
            if (limit := self.of_role(role).get("open_transactions_max")) is not None:
                known.count(self._time())  # forgets those that are over
                names = known.shown()
                found.append((len(names) / max(limit.value, 1), _of("transactions", role), names, 0))
        return by_group(found, shown)

    def _attended(self, crowd: Crowd) -> Iterator[Attended]:
        for scope, names in crowd:
            if scope.startswith(ROLE):
                limit = self.of_role(scope.removeprefix(ROLE)).get(f"total_{crowd.what}")
                most = None if limit is None else limit.value
            elif scope.count("/") == 2:
                limit = self.of_topic(TopicName(*scope.split("/"))).get(f"{crowd.what}_max")
                most = None if limit is None else limit.value
            else:
                said = self._records.get(scope)
                most = None if said is None else getattr(said, f"total_{crowd.what}")
            if most is not None and most != model.NO_LIMIT:
                yield len(names) / max(most, 1), f"{crowd.what}\n{scope}", frozenset(names), 0

    def meet(self, others: dict[str, Others]) -> None:
        """Count those that are at other brokers as well from now on, by "what\nscope"."""
        self._others = self.producers.others = self.consumers.others = others
        for role, known in self._open_transactions.items():
            known.others = others.get(_of("transactions", role), NONE_ELSEWHERE)

    def meet_one(self, group: str, others: Mapping[str, Others]) -> None:
        """Likewise of one group, which is new here."""
        if not self._others:
            self.meet({})
        self._others.update(others)
        role = group.removeprefix(ROLE)
        if (known := self._open_transactions.get(role)) is not None and group != role:
            known.others = others.get(_of("transactions", role), NONE_ELSEWHERE)

    def crowded_roles(self) -> list[str]:
        """Those with transactions here that may begin no more, if all of these are still open."""
        now, found = self._time(), self._open_transactions.items()
        limits = [(known.count(now), self.of_role(role).get("open_transactions_max"), role) for role, known in found]
        return [role for count, limit, role in limits if limit is not None and count >= limit.value]


async def _alone(group: str) -> None:
    """Where nothing is shown."""


def _copied(name: str, number: int) -> str:
    return name if number == 0 else f"{name}\n{number}"


def _of(what: str, role: str) -> str:
    return f"{what}\n{ROLE}{role}"
