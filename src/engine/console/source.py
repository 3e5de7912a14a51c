"""`Source`: where the pages get what they show. It asks a broker with the rights of one person."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from engine.aio.shielded import shielded
from engine.client.admin.exposition import Metrics
from engine.client.client import AsyncClient
from engine.clock import Clock, SystemClock
from engine.console import views
from engine.console.acts import ACTS, May
from engine.console.letters import LetterPage, letters_of
from engine.console.messages import MessagePage, Wanted, browse
from engine.errors import AuthorizationError, InvalidArgumentError, NotFoundError, TransactionNotFoundError
from engine.model.admin_dictionaries import TopicStatistics

T = TypeVar("T")

FRESH_S = 1.0  # pages that are looked at together share answers that are no older
HELD_S = 5.0  # for so long it is not asked again what a transaction holds back
TRANSACTIONS, TRANSACTIONS_LOOKED_AT = 100, 20  # of the oldest that are open
CAUSES_FRESH_S = 5.0  # why topics of the overview are behind, and what a person may do
OWNER_FRESH_S = 30.0
_UNKNOWN = (NotFoundError, InvalidArgumentError)  # what an older broker answers to questions that it does not know
LETTERS = 100  # of a dead-letter topic on its page
LETTER_WAIT_S = 1.0  # for a letter that the broker counts


class Source:
    """The admin API behind a short memory: however many pages look, each question is asked once a second.

    `asked` counts what was sent to the broker.
    """

    def __init__(self, client: AsyncClient, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._answers: dict[object, tuple[float, float, asyncio.Future[Any]]] = {}  # asked at, fresh for
        self.asked = 0

    async def topics(self, text: str = "", sort: str = "backlog", number: int = 1) -> views.Page:
        """One page of the topics, from one answer about all of them.

        A role that may not read metrics gets the topics of its rights, in the order of their names, and
        numbers of those on the page alone.
        """
        try:
            return views.page_of(await self._all_topics(), text, sort, number)
        except AuthorizationError:
            names = await self._once("names", self._names)
        bare = [views.TopicLine(name, 0, 0, 0.0, 0.0, 0, 0, 0, 0) for name in names]
        page = views.page_of(bare, text, "name", number)
        numbers = await asyncio.gather(*(self._stats(line.topic) for line in page.rows), return_exceptions=True)
        rows = [
            line if isinstance(found, BaseException) else views.topic_line(found)
            for line, found in zip(page.rows, numbers, strict=True)
        ]
        return views.Page(rows, page.number, page.pages, page.found)

    async def topic(self, name: str) -> views.TopicPage:
        """Raises NotFoundError, AuthorizationError."""
        stats = await self._stats(name)
        metadata = await self._once(("metadata", name), lambda: self._client.admin.get_metadata(name))
        return views.topic_page(metadata, stats)

    async def behind(self, lines: Sequence[views.TopicLine]) -> list[views.Behind]:
        """Why these topics are behind, and the owner to ask: two questions for each, seldom."""
        return list(await asyncio.gather(*map(self._behind, lines)))

    async def _behind(self, line: views.TopicLine) -> views.Behind:
        name, admin = line.topic, self._client.admin
        try:
            stats = await self._once(("causes", name), lambda: admin.get_stats(name), CAUSES_FRESH_S)
            known = await self._once(("owner", name), lambda: admin.get_metadata(name), OWNER_FRESH_S)
        except (AuthorizationError, NotFoundError):
            return views.Behind(line, [line.lag], None)
        return views.Behind(line, views.causes(stats) or [line.lag], views.owner_of(known["properties"]))

    async def may(self, resource: str) -> May:
        """What this person may do on a resource, as "tenant/namespace/topic" or "*"."""
        try:
            ask = partial(self._client.admin.get_permissions, resource)
            return May(await self._once(("may", resource), ask, CAUSES_FRESH_S))
        except _UNKNOWN:
            return May(None)

    async def history(self, topic: str) -> list[views.Decided]:
        """What auto-scale decided about a topic, the newest first."""
        try:
            told = await self._once(("history", topic), lambda: self._client.admin.get_auto_scale_history(topic))
        except _UNKNOWN:
            return []
        return views.timeline(told["decisions"])

    async def namespaces(self) -> list[views.NamespaceLine]:
        """All that this person sees. Numbers are those of topics of which this person may read metrics."""
        names = await self._once("namespaces", self._client.admin.list_namespaces)
        try:
            lines = await self._all_topics()
        except AuthorizationError:
            lines = []
        return views.namespace_lines(names, lines)

    async def namespace(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Policies in effect, what it overrides of auto-scale, its own limits. Raises AuthorizationError."""
        admin = self._client.admin
        policies, scaling, limits = await asyncio.gather(
            self._once(("policies", name), lambda: admin.get_namespace_policies(name)),
            self._once(("scaling", name), lambda: admin.get_namespace_auto_scale_policy(name)),
            self._once(("limits", name), lambda: admin.get_limits(name)),
        )
        return {"Policies": policies, "Auto-scale, as it overrides": scaling, "Limits": limits}

    async def machine(self) -> tuple[str, list[views.Pool], float]:
        """(the broker that answers, its pools, bytes of memory in use). Raises AuthorizationError."""
        now, _ = await self._once("metrics", self._metrics)
        said = [labels.get("broker", "") for labels, _ in now.of("broker_info")]
        return (said or [""])[0], views.pools(now), now.resident()

    async def limits(self) -> dict[str, Any]:
        """The limits that resources and roles have. Raises AuthorizationError."""
        return await self._once("limits", self._client.admin.list_limits)

    async def messages(self, topic: str, wanted: Wanted) -> MessagePage:
        """One page of a topic's messages; asked anew each time. Raises NotFoundError, AuthorizationError."""
        self.asked += 1
        return await browse(self._client, topic, wanted)

    async def letters(self, topic: str) -> LetterPage:
        """The first dead letters that wait; asked anew each time. Raises NotFoundError, AuthorizationError."""
        self.asked += 1
        return await letters_of(self._client, topic, LETTERS, LETTER_WAIT_S)

    async def brokers(self) -> list[dict[str, Any]]:
        """The live brokers. Raises AuthorizationError."""
        return await self._once("brokers", self._client.admin.list_brokers)

    async def transactions(self) -> list[tuple[dict[str, Any], list[tuple[str, str]]]]:
        """The oldest open transactions, and what each of the first holds back: (topic, what of it).

        Raises AuthorizationError.
        """
        found = await self._once("transactions", lambda: self._client.admin.list_transactions(limit=TRANSACTIONS))
        looked_at = [one["id"] for one in found[:TRANSACTIONS_LOOKED_AT]]
        held = await asyncio.gather(*map(self._held_by, looked_at))
        return list(zip(found, itertools.chain(held, itertools.repeat([])), strict=False))

    async def _held_by(self, ident: str) -> list[tuple[str, str]]:
        ask = lambda: self._client.admin.get_transaction(ident)  # noqa: E731
        try:
            return views.held_by(await self._once(("transaction", ident), ask, HELD_S))
        except TransactionNotFoundError:
            return []  # it has ended

    async def act(self, name: str, fields: dict[str, Any]) -> str:
        """Carry out one of ACTS; what it says. Raises what the broker answers."""
        said = await ACTS[name].run(self._client, fields)
        self._answers.clear()
        return said if isinstance(said, str) else ""

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def _all_topics(self) -> list[views.TopicLine]:
        return (await self._once("metrics", self._metrics))[1]

    async def _metrics(self) -> tuple[Metrics, list[views.TopicLine]]:
        now = Metrics(await self._client.admin.get_metrics())
        return now, views.topic_lines(now)

    async def _names(self) -> list[str]:
        admin = self._client.admin
        found = [await admin.list_topics(namespace) for namespace in await admin.list_namespaces()]
        self.asked += len(found)
        return [name for names in found for name in names]

    async def _stats(self, name: str) -> TopicStatistics:
        return await self._once(("stats", name), lambda: self._client.admin.get_stats(name))

    async def _once(self, key: object, ask: Callable[[], Coroutine[Any, Any, T]], fresh: float = FRESH_S) -> T:
        """The answer, if it is fresh or on its way; else ask. A caller that leaves does not end it for others."""
        now = self._clock.monotonic()
        held = self._answers.get(key)
        if held is None or now - held[0] > held[1]:
            self._answers = {k: one for k, one in self._answers.items() if now - one[0] <= one[1]}
            self.asked += 1
            task = asyncio.ensure_future(ask())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            held = self._answers[key] = (now, fresh, task)
        answer: T = await shielded(held[2])
        return answer
