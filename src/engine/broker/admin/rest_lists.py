"""The topics of a namespace over HTTP, within the memory limits of topic lists (PIP-442)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from engine.aio.memory_limiter import LimitType
from engine.broker.admin.ports import Served
from engine.broker.pools.list_parts import size_of
from engine.broker.rights.principal import PRINCIPAL
from engine.errors import InvalidArgumentError
from engine.limits import TOPIC_LIST_INITIAL_SIZE, TOPICS_PER_FRAME_MAX
from engine.model.names import TopicName

log = logging.getLogger(__name__)

Select = Callable[[list[str]], Awaitable[list[str]]]

PART_S_MAX = 30.0  # a client that does not read a part within this time is disconnected, since its list holds memory


class TopicListPages:
    """Makes one list at a time; a list holds a heap permit and the direct permit of its largest part until it is sent.

    Both are held before the head of the response is sent: memory that is short is a status, and never half a list.
    """

    def __init__(self, broker: Served) -> None:
        self.broker = broker
        self._limiter = broker.memory.topic_lists
        self._making = asyncio.Lock()

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """The names as a JSON array. Raises PermitTimeoutError, PermitQueueFullError, InvalidArgumentError."""
        return await self.answer(request, _properties(request))

    async def answer(
        self, request: web.Request, properties: dict[str, str] | None, select: Select | None = None
    ) -> web.StreamResponse:
        """The names of those with these properties that `select` leaves. Raises PermitTimeoutError, and likewise."""
        namespace = f"{request.match_info['tenant']}/{request.match_info['namespace']}"
        permit = await self._limiter.acquire(TOPIC_LIST_INITIAL_SIZE, LimitType.HEAP_MEMORY)
        try:
            async with self._making:
                names = await self.broker.admin.list_topics(namespace, properties)
                among = self.broker.rights.listed(PRINCIPAL.get(), namespace)
                if among is not None:
                    names = [name for name in names if TopicName.parse(name).local in among]
                if select is not None:
                    names = await select(names)
                permit = await self._limiter.update(permit, size_of(names))
            part = await self._limiter.acquire(await _largest_part(names), LimitType.DIRECT_MEMORY)
            try:
                return await self._send(request, names)
            finally:
                self._limiter.release(part)
        finally:
            self._limiter.release(permit)

    async def _send(self, request: web.Request, names: list[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await response.prepare(request)
        if request.method == "HEAD":  # a body would be taken for the next answer on the connection
            await response.write_eof()
            return response
        try:
            for start in range(0, len(names), TOPICS_PER_FRAME_MAX):
                data = ((", " if start else "[") + _part(names, start)).encode()
                async with asyncio.timeout(PART_S_MAX):
                    await response.write(data)
            await response.write(b"]" if names else b"[]")
            await response.write_eof()
        except (TimeoutError, OSError) as e:  # too late for a status: the response is cut
            log.warning("a list of topics was cut: %s", e or f"a part was not read within {PART_S_MAX:g} s")
            if request.transport is not None:
                request.transport.abort()
        return response


def _part(names: list[str], start: int) -> str:
    return json.dumps(names[start : start + TOPICS_PER_FRAME_MAX])[1:-1]


async def _largest_part(names: list[str]) -> int:
    """Bytes."""
    largest = 0
    for start in range(0, len(names), TOPICS_PER_FRAME_MAX):
        largest = max(largest, len(_part(names, start)) + len(", "))
        await asyncio.sleep(0)  # let the loop serve other work
    return largest


def _properties(request: web.Request) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in request.query.getall("property", [])]
    if any(not equals for _, equals, _ in pairs):
        raise InvalidArgumentError("query parameter property must be property=name=value")
    return {name: value for name, _, value in pairs} or None
