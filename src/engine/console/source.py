"""`Source`: where the pages get what they show. It asks a broker with the rights of one person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from engine.aio.shielded import shielded
from engine.client.admin.exposition import Metrics
from engine.client.client import AsyncClient
from engine.clock import Clock, SystemClock
from engine.console import views
from engine.errors import AuthorizationError
from engine.model.admin_dictionaries import TopicStatistics

T = TypeVar("T")

FRESH_S = 1.0  # pages that are looked at together share answers that are no older


class Source:
    """The admin API behind a short memory: however many pages look, each question is asked once a second.

    `asked` counts what was sent to the broker.
    """

    def __init__(self, client: AsyncClient, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._answers: dict[object, tuple[float, asyncio.Future[Any]]] = {}
        self.asked = 0

    async def topics(self, text: str = "", sort: str = "backlog", number: int = 1) -> views.Page:
        """One page of the topics, from one answer about all of them.

        A role that may not read metrics gets the topics of its rights, in the order of their names, and
        numbers of those on the page alone.
        """
        try:
            return views.page_of(await self._once("topics", self._all_topics), text, sort, number)
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

    async def brokers(self) -> list[dict[str, Any]]:
        """The live brokers. Raises AuthorizationError."""
        return await self._once("brokers", self._client.admin.list_brokers)

    async def transactions(self) -> list[dict[str, Any]]:
        """The oldest open transactions. Raises AuthorizationError."""
        return await self._once("transactions", lambda: self._client.admin.list_transactions(limit=100))

    async def act(self, name: str, arguments: dict[str, Any]) -> None:
        """Carry out one of ACTS. Raises what the broker answers."""
        await ACTS[name](self._client, arguments)
        self._answers.clear()

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def _all_topics(self) -> list[views.TopicLine]:
        return views.topic_lines(Metrics(await self._client.admin.get_metrics()))

    async def _names(self) -> list[str]:
        admin = self._client.admin
        found = [await admin.list_topics(namespace) for namespace in await admin.list_namespaces()]
        self.asked += len(found)
        return [name for names in found for name in names]

    async def _stats(self, name: str) -> TopicStatistics:
        return await self._once(("stats", name), lambda: self._client.admin.get_stats(name))

    async def _once(self, key: object, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer, if it is fresh or on its way; else ask. A caller that leaves does not end it for others."""
        now = self._clock.monotonic()
        held = self._answers.get(key)
        if held is None or now - held[0] > FRESH_S:
            self._answers = {k: one for k, one in self._answers.items() if now - one[0] <= FRESH_S}
            self.asked += 1
            task = asyncio.ensure_future(ask())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            held = self._answers[key] = (now, task)
        answer: T = await shielded(held[1])
        return answer


Act = Callable[[AsyncClient, dict[str, Any]], Awaitable[Any]]

# What the pages can ask for. Each takes the fields of its button; the broker's table of rights decides.
ACTS: dict[str, Act] = {
    "split": lambda c, a: c.admin.split_segment(str(a["topic"]), int(a["segment"])),
    "merge": lambda c, a: c.admin.merge_segments(str(a["topic"]), int(a["segment"]), int(a["other"])),
    "skip-backlog": lambda c, a: c.admin.clear_backlog(str(a["topic"]), str(a["subscription"])),
    "rewind": lambda c, a: c.admin.seek_subscription(str(a["topic"]), str(a["subscription"]), "earliest"),
    "delete-subscription": lambda c, a: c.admin.delete_subscription(str(a["topic"]), str(a["subscription"])),
    "abort": lambda c, a: c.admin.abort_transaction(str(a["transaction"])),
}
