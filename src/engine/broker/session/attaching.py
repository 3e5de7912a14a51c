"""What requests have in common that attach something: ids, turns, open segments, and rivals that may be dead."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from engine.control.base.ports import segment_spec
from engine.errors import AlreadyClosedError, EngineError, NotFoundError
from engine.model.names import SegmentName

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer
    from engine.broker.session.connection import Connection

ATTEMPTS_MAX = 5  # to attach while dead rivals are being dropped


def attach(connection: Connection, ident: int, request_id: int, work: Coroutine[Any, Any, Any]) -> None:
    """Run it in the background when intake admits it, with the client's id reserved until it ends."""
    try:
        connection.begin_opening(ident)
    except EngineError:
        work.close()
        raise
    turn = connection.host.memory.intake.request()

    def over() -> None:
        work.close()
        connection.openings.end(ident)

    async def in_turn() -> Any:
        try:
            if turn is not None:
                await turn
            return await work
        finally:
            over()

    connection.start(request_id, in_turn(), over)


async def open_segment(connection: Connection, text: str) -> HostedSegment:
    """The named segment, open. Raises NotFoundError when it is not in the topic's layout or has no store."""
    name, host = SegmentName.parse(text), connection.host
    hosted = host.segments.get(name)
    if hosted is not None:
        return hosted
    view = await host.service.ensure_topic(name.topic, create=False)
    info = view.layout.segment(name.segment_id)
    if info.hash_range != name.hash_range:
        raise NotFoundError(f"{name} is not in the layout; segment {info.segment_id} has the range {info.hash_range}")
    return await host.segments.open(segment_spec(name.topic, view.layout, info), create=info.active)


def check_wanted(connection: Connection, ident: int) -> None:
    """Raise AlreadyClosedError when the client is gone or has closed it: it must take nothing from a later one."""
    if not connection.wants(ident):
        raise AlreadyClosedError(f"{ident} was closed before it was open")


async def evict_dead(connection: Connection, rivals: Callable[[], Sequence[Peer]]) -> None:
    """Drop connections of rivals that do not answer. The others stay, and keep the newcomer from attaching."""
    for _ in range(ATTEMPTS_MAX):
        others = [c for c in rivals() if c is not connection]
        if not others or all([await c.prove_alive() for c in others]):
            return
