"""`Shown`: records in which each broker shows the others something of itself, and what the others show.

There is one record for each *group* that a broker has something limited of: a tenant, "role:NAME", or "*". A broker
follows what is shown of the groups that it has itself, and so receives what grows with them, and not with the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from engine.errors import EngineError
from engine.limits import METADATA_WRITE_ALL_MAX
from engine.metadata import keys
from engine.metadata.following import Choice
from engine.metadata.store import Delete, Event, EventKind, OutcomeUnknownError, Put, Watch

if TYPE_CHECKING:
    from engine.aio.tasks import Supervisor
    from engine.control.base.brokers import Brokers
    from engine.metadata.store import MetadataStore

log = logging.getLogger(__name__)

T = TypeVar("T")
BEGUN_AT_ONCE = 32  # watches, each with a read of its records


class Shown(Generic[T]):
    """Records of one kind, below `prefix` by group and broker; each goes with its broker's session. Loop thread only.

    `about`: what the others do not know where it cannot be written, for the log. Watches end with `tasks`.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        brokers: Brokers,
        prefix: str,
        kind: type[T],
        about: str,
        tasks: Supervisor,
    ) -> None:
        self._metadata = metadata
        self._brokers = brokers
        self._prefix = prefix
        self._kind = kind
        self._about = about
        self._said: dict[str, T | None] = {}  # by group, what was written last; None: it is not known what is there
        self._session: int | None = None  # in which
        self._found: dict[str, dict[str, T | None]] = {}  # by group and the record's key; None: it cannot be read
        what = f"{prefix}{{}}".format
        self._groups: Choice[str] = Choice(metadata, self._watch, self._heard, self._known, tasks, what)

    async def show(
        self, values: Mapping[str, T], same: Callable[[T, T], bool] = lambda one, other: one == other
    ) -> None:
        """Write those, by group, that are not the `same` as what was written last, and delete the others; a failure is
        logged.
        """
        if self._brokers.session_id not in (None, self._session):
            self._said.clear()  # it went with a session that was lost: it is said again
            self._session = self._brokers.session_id
        new = {
            group: value
            for group, value in values.items()
            if (said := self._said.get(group)) is None or not same(value, said)
        }
        over = [group for group in self._said if group not in values]
        if not new and not over:
            return
        try:
            session = await self._brokers.session()
            self._session = session.id
            writes: list[tuple[str, Put | Delete]] = [(group, Delete(self._key(group))) for group in over]
            for group, value in new.items():
                writes.append((group, Put(self._key(group), msgspec.json.encode(value), session=session)))
            for start in range(0, len(writes), METADATA_WRITE_ALL_MAX):
                part = writes[start : start + METADATA_WRITE_ALL_MAX]
                self._said |= dict.fromkeys(group for group, _ in part)
                outcomes = await self._metadata.write_all([write for _, write in part])
                for (group, _), outcome in zip(part, outcomes, strict=True):
                    if isinstance(outcome, Exception):
                        raise outcome
                    if group in new:
                        self._said[group] = new[group]
                    else:
                        self._said.pop(group, None)
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the other brokers do not know %s: %s", self._about, e)

    async def others(self, groups: Collection[str]) -> list[T]:
        """What the other brokers show of these groups, which are followed from now on, and no others."""
        for group in [group for group in self._found if group not in groups]:
            del self._found[group]
            self._groups.drop(group)
        begun: list[str] = []
        for group in [group for group in groups if group not in self._groups]:
            self._follow(group)
            begun.append(group)
            if len(begun) == BEGUN_AT_ONCE:
                await self._told(begun)
                begun.clear()
        await self._told(begun)
        await self._groups.all_shown()
        return [value for group in self._found for value in self._of(group)]

    async def others_of(self, group: str) -> list[T]:
        """What they show of one group, which is followed from now on, beside those that are."""
        self._follow(group)
        await self._told([group])
        return self._of(group)

    @property
    def said(self) -> Collection[str]:
        """The groups that something is shown of."""
        return self._said.keys()

    def _follow(self, group: str) -> None:
        if group not in self._groups:
            self._found[group] = {}
            self._groups.add(group)

    async def _told(self, groups: Collection[str]) -> None:
        for group in groups:
            if group in self._groups:
                await self._groups.shown(group)

    def _of(self, group: str) -> list[T]:
        own, found = self._brokers.url, self._found.get(group, {})
        return [value for key, value in found.items() if value is not None and keys.shown_of(key)[1] != own]

    def _watch(self, group: str) -> Watch:
        return self._metadata.watch(keys.shown_by_all(self._prefix, group))

    def _known(self, group: str) -> Collection[str]:
        return self._found.get(group, {}).keys()

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            return
        key = event.key
        group, url = keys.shown_of(key)
        found = self._found[group]
        if event.record is None:
            found.pop(key, None)
            if url == self._brokers.url and group in self._said:
                self._said[group] = None  # it may be gone, or there anew: it is said again, or deleted
            return
        try:
            found[key] = msgspec.json.decode(event.record.value, type=self._kind)
        except msgspec.MsgspecError as e:
            found[key] = None
            log.warning("the record %s in the metadata store is ignored: %s", key, e)

    def _key(self, group: str) -> str:
        return keys.shown(self._prefix, group, self._brokers.url)
