"""`RoutedSegmentHost`: control's SegmentHost over several brokers; routes every call to its segment's owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from engine.aio.tasks import Supervisor
from engine.broker.cluster.peers import Peers
from engine.broker.cluster.segment_calls import (
    CALL_S_MAX,
    SEGMENT_CALLS,
    pack_position,
    pack_spec,
    unpack_end,
    unpack_spec,
    unpack_statistics,
)
from engine.broker.hosting.ownership import Ownership
from engine.broker.hosting.segment_host import SegmentHosting
from engine.control.base.ports import HostedSegmentStatistics, SegmentEnd, SegmentSpec
from engine.errors import ConnectError, EngineError, InvalidArgumentError, NotOwnerError, TimeoutError
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition

log = logging.getLogger(__name__)

_AGAIN_S_FIRST, _AGAIN_S_MAX = 0.05, 1.0
_DRAIN_S = 5.0  # an owner waits this long for a segment to drain before it answers, and is looked up again
_DRAINED = "await_drained"
_SETTLE = "settle_transactions"

Here = Callable[[], Awaitable[Any]]


class RoutedSegmentHost:
    """Implements control.ports.SegmentHost.

    All calls are idempotent, so one whose outcome is unknown is repeated until CALL_S_MAX. Without other brokers every
    call is direct.
    """

    def __init__(self, local: SegmentHosting, ownership: Ownership, peers: Peers) -> None:
        self._local = local
        self._ownership = ownership
        self._peers = peers
        self._tasks = Supervisor("routed segments")

    async def close(self) -> None:
        await self._tasks.close()

    async def _route(self, spec: SegmentSpec, method: str, here: Here, **args: Any) -> Any:
        """Call the owner. Raises TimeoutError when no owner answers, and the owner's errors."""
        if self._ownership.alone:
            return await here()
        args["spec"] = pack_spec(spec)
        loop, pause = asyncio.get_running_loop(), 0.0  # at once: a broker that refuses has often just named an heir
        deadline = loop.time() + CALL_S_MAX
        while True:
            try:
                return await self._at_owner(spec, method, here, args, deadline - loop.time())
            except (NotOwnerError, ConnectError, TimeoutError) as e:
                if loop.time() + pause >= deadline:
                    raise TimeoutError(f"no owner of {spec.name} answered {method}: {e}; try again") from e
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, _AGAIN_S_FIRST), _AGAIN_S_MAX)

    async def _at_owner(self, spec: SegmentSpec, method: str, here: Here, args: Mapping[str, Any], left: float) -> Any:
        url = await self._ownership.resolve(spec.name)
        if url == self._ownership.brokers.url:
            return await here()
        return await self._peers.call(url, "segment", method, args, max(left, _AGAIN_S_FIRST))

    async def answer(self, method: str, args: Mapping[str, Any]) -> Any:
        """Serve another broker's call. Raises NotOwnerError when this broker is not the owner, InvalidArgumentError."""
        spec = unpack_spec(args)
        if not self._local.is_open(spec.name):
            url = await self._ownership.resolve(spec.name)
            if url != self._ownership.brokers.url:
                raise NotOwnerError(f"{spec.name} belongs to the broker {url}")
        call = {_DRAINED: self._answer_drained, _SETTLE: self._answer_settle}.get(method) or SEGMENT_CALLS.get(method)
        if call is None:
            raise InvalidArgumentError(f"unknown segment call {method!r:.80}")
        try:
            return await call(self._local, spec, args)
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{method}: {e!r}") from e

    # -- the port --------------------------------------------------------------------------------------------------

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        here = lambda: self._local.create_segment(spec, subscriptions, term=term)  # noqa: E731
        await self._route(spec, "create_segment", here, subscriptions=list(subscriptions), term=term)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        end = await self._route(
            spec, "terminate_segment", lambda: self._local.terminate_segment(spec, term=term), term=term
        )
        return end if isinstance(end, SegmentEnd) else unpack_end(end)

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        here = lambda: self._local.inherit(spec, producers, term=term)  # noqa: E731
        await self._route(spec, "inherit", here, producers=list(producers), term=term)

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        await self._route(spec, "delete_segment", lambda: self._local.delete_segment(spec, term=term), term=term)

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        return await self._local.stored(topic)

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        """See the port. Local: cursors are in the metadata store, which every broker reads."""
        return await self._local.subscriptions(spec)

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        here = lambda: self._local.create_subscription(spec, subscription, position, term=term)  # noqa: E731
        await self._route(
            spec, "create_subscription", here, subscription=subscription, position=str(position), term=term
        )

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        here = lambda: self._local.delete_subscription(spec, subscription, term=term)  # noqa: E731
        await self._route(spec, "delete_subscription", here, subscription=subscription, term=term)

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        here = lambda: self._local.seek_subscription(spec, subscription, offset)  # noqa: E731
        await self._route(spec, "seek_subscription", here, subscription=subscription, offset=pack_position(offset))

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        here = lambda: self._local.skip_messages(spec, subscription, first, last)  # noqa: E731
        await self._route(spec, "skip_messages", here, subscription=subscription, first=first, last=last)

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        here = lambda: self._local.offset_at(spec, time_ms)  # noqa: E731
        return int(await self._route(spec, "offset_at", here, time_ms=time_ms))

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        here = lambda: self._local.backlog(spec, subscription)  # noqa: E731
        return int(await self._route(spec, "backlog", here, subscription=subscription))

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        found = await self._route(spec, "statistics", lambda: self._local.statistics(spec))
        return found if isinstance(found, HostedSegmentStatistics) else unpack_statistics(found)

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        here = lambda: self._local.settle_transactions(spec, subscription)  # noqa: E731
        await self._route(spec, _SETTLE, here, subscription=subscription)

    async def segment_urls(self, names: Sequence[SegmentName]) -> list[str]:
        return await self._ownership.urls(names)

    # -- draining --------------------------------------------------------------------------------------------------

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """See the port. A long poll of the owner, repeated because the owner may change."""
        task = self._tasks.spawn(self._watch_drained(spec, subscription, drained), f"drain of {spec.name}")

        def cancel() -> None:
            if task is not None and task is not asyncio.current_task():
                task.cancel()

        return cancel

    async def _watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> None:
        args = {"subscription": subscription}
        while True:
            try:
                here = lambda: self._answer_drained(self._local, spec, args)  # noqa: E731
                sent = {"spec": pack_spec(spec), **args}
                if await self._at_owner(spec, _DRAINED, here, sent, 2 * _DRAIN_S):
                    break
            except EngineError as e:
                log.debug("the backlog of %s for %r cannot be read, retrying: %s", spec.name, subscription, e)
                await asyncio.sleep(_AGAIN_S_MAX)
        drained()

    async def _answer_settle(self, host: Any, spec: SegmentSpec, args: Mapping[str, Any]) -> None:
        await self._local.settle_transactions(spec, args["subscription"])

    async def _answer_drained(self, host: Any, spec: SegmentSpec, args: Mapping[str, Any]) -> bool:
        """Whether the segment is drained, now or within the time that the call allows."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancel = self._local.watch_drained(
            spec, str(args["subscription"]), lambda: None if done.done() else done.set_result(None)
        )
        try:
            await asyncio.wait([done], timeout=_DRAIN_S)
        finally:
            cancel()
        return done.done()
