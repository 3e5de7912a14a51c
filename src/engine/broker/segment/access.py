"""Who may append to a segment: the access modes of producers, whose turn it is, and who had the parents.

Exclusive access is to a topic, and is decided in one place: at the first of its active segments, by range. Who is let
in there gets a claim, and shows it at the others. Claims rise: by segment (the first one's id rises with every change
of the topic's shape that concerns it), by the term of its owner, by a count. So of two producers with claims the later
one is right, everywhere, and the other one is fenced; and since nobody waits for a claim while holding another, two who
wait never wait for each other.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.broker.segment.producer import Producer
from engine.errors import EngineError, FencedError, InvalidArgumentError, ProducerBusyError
from engine.limits import PROPERTIES_SIZE_MAX
from engine.model.names import check_new_name, check_property_names
from engine.storage.dedup.dedup import producer_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection

SHARED = "shared"
EXCLUSIVE = "exclusive"
FENCING = "exclusive_with_fencing"
WAIT = "wait_for_exclusive"
ACCESS_MODES = (SHARED, EXCLUSIVE, FENCING, WAIT)

RESERVED_S = 10.0  # who held the parents has this long to attach to a child before others may
LOOK_S = 1.0  # who waits is looked at so often: it may have gone
SETTLING_S = 6.0  # who waits lets those come back first who were there before the broker was; they try every 5 s

Claim = tuple[int, int, int]  # segment id, term, count


@dataclass(frozen=True, slots=True, eq=False)
class Applicant:
    """A producer that wants in. `renewal`: it was let in to the topic before. `claim`: what it got at the first
    segment, None where this is the first. `waited`: seconds, before it came here.
    """

    connection: Connection
    ident: int
    name: str
    mode: str
    claim: Claim | None = None
    renewal: bool = False
    waited: float = 0.0
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ACCESS_MODES:
            raise InvalidArgumentError(f"access mode {self.mode!r}; one of {', '.join(ACCESS_MODES)} is right")


def applicant(connection: Connection, header: commands.Producer) -> Applicant:
    """Who a PRODUCER speaks of. Raises InvalidArgumentError."""
    name, claim = check_new_name(header.producer_name, "producer", pattern=False), header.claim
    if claim is not None and not (len(claim) == 3 and all(type(part) is int for part in claim)):
        raise InvalidArgumentError(f"claim {claim!r:.80}; the three numbers of the first segment's answer are right")
    waited = max(header.waited_ms or 0, 0) / 1000
    return Applicant(
        connection,
        header.producer_id,
        name,
        header.access_mode,
        None if claim is None else (claim[0], claim[1], claim[2]),
        bool(header.renewal),
        waited,
        _checked_properties(header.properties),
    )


def _checked_properties(properties: dict[Any, Any] | None) -> dict[str, str]:
    found = properties or {}
    if not all(isinstance(text, str) for item in found.items() for text in item):
        raise InvalidArgumentError("a producer's properties are text to text")
    check_property_names(found, "producer")
    if sum(len(name) + len(value) for name, value in found.items()) > PROPERTIES_SIZE_MAX:
        raise InvalidArgumentError(f"a producer's properties have at most {PROPERTIES_SIZE_MAX:,} characters")
    return found


@dataclass(order=True, slots=True)
class _Place:
    """In the queue of those who wait."""

    since: float
    ordinal: int


class Access:
    """Of one open segment. Loop thread only."""

    __slots__ = ("_changed", "_count", "_hosted", "_loop", "_newest", "_ordinal", "_reserved", "_reserved_until",
                 "_served_since", "_waiting", "producers")  # fmt: skip

    def __init__(self, hosted: HostedSegment, served_since: float | None) -> None:
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._served_since = served_since  # None also when the one who had the topic before has been decided on
        self.producers: dict[str, Producer] = {}
        # Claims.
        self._newest: Claim | None = None  # shown or given here
        self._count = 0
        # Who had the parents exclusively, as duplicate detection calls them.
        self._reserved: set[int] = set()
        self._reserved_until = 0.0
        # Those who wait, the longest first.
        self._waiting: list[_Place] = []
        self._ordinal = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def in_use(self) -> bool:
        """Whether anybody is attached or waits."""
        return bool(self.producers or self._waiting)

    def reserve(self, producers: Iterable[int]) -> None:
        """These held a parent of this segment exclusively: for a while nobody else gets in."""
        self._reserved.update(producers)
        self._reserved_until = self._loop.time() + RESERVED_S

    def rivals(self, who: Applicant) -> list[Producer]:
        """Who has to be gone, or make room."""
        shared = who.mode == SHARED
        return [p for p in self.producers.values() if not shared or p.access != SHARED or p.name == who.name]

    # -- one comes -------------------------------------------------------------------------------------------------

    async def turn(self, who: Applicant) -> None:
        """Wait until nothing is in the way; first come, first served over all that wait.

        Raises what attach() raises for who does not wait for that.
        """
        self._ordinal += 1
        place = _Place(self._loop.time() - who.waited, self._ordinal)
        insort(self._waiting, place)
        try:
            while who.connection.wants(who.ident) and not self._hosted.segment.sealed and not self._hosted.closed:
                pause = self._settling(who)
                if not pause:
                    obstacle = self._obstacle(who) if self._waiting[0] is place else ProducerBusyError()
                    if not isinstance(obstacle, ProducerBusyError):
                        return
                    pause = LOOK_S
                await asyncio.wait([self._change()], timeout=pause)
        finally:
            self._waiting.remove(place)
            self._wake()

    def _settling(self, who: Applicant) -> float:
        """For so many seconds those who wait stand back: somebody may come back who was let in before."""
        broker, served = who.connection.broker, self._hosted.segment.next_offset or self._hosted.incoming.heir
        if self._served_since is None or not served or not broker.addresses.reachable:
            return 0.0
        return max(0.0, max(self._served_since, broker.up_since) + SETTLING_S - self._loop.time())

    def attach(self, who: Applicant) -> Producer:
        """Let it in. One of the same name on the same connection is its own earlier attachment and makes room.

        Raises ProducerBusyError; FencedError: somebody has claimed the topic since; NotOwnerError, SegmentSealedError.
        """
        self._hosted.check_open()
        self._hosted.check_active()
        obstacle = self._obstacle(who)
        if obstacle is None and self._waiting and who.mode in (SHARED, EXCLUSIVE) and not who.renewal:
            obstacle = ProducerBusyError(f"{self._hosted.name}: others wait for exclusive access already")
        if obstacle is not None:
            raise obstacle
        for rival in self.rivals(who):
            again = rival.name == who.name and rival.connection is who.connection
            what = "was made anew on its connection: the later one sends" if again else f"took over {self._hosted.name}"
            rival.close(FencedError(f"the producer {who.name!r} {what}"))
        self._reserved.clear()
        return self._let_in(who)

    def _let_in(self, who: Applicant) -> Producer:
        claim = who.claim
        if claim is None and who.mode != SHARED:
            self._count += 1
            claim = (self._hosted.name.segment_id, self._hosted.term, self._count)
        if claim is not None:
            self._newest, self._served_since = claim, None
        self._hosted.segment.producer_attached(who.name)
        producer = Producer(who.connection, who.ident, self._hosted, who.name, who.mode, claim, who.properties)
        self.producers[who.name] = producer
        return producer

    def _obstacle(self, who: Applicant) -> EngineError | None:
        """Why it may not come in now."""
        name = self._hosted.name
        if who.claim is not None and self._newest is not None and who.claim < self._newest:
            return FencedError(f"the producer {who.name!r} has lost its exclusive access: another has claimed {name}")
        if who.mode == FENCING and not who.renewal:
            return None
        for rival in self.rivals(who):
            if rival.name == who.name and rival.connection is who.connection:
                continue
            if who.claim is None or rival.access == SHARED or rival.name == who.name:
                return ProducerBusyError(f"{name} is held by the {rival.access} producer {rival.name!r}")
        reserved = self._reserved and self._loop.time() < self._reserved_until
        if reserved and who.claim is None and producer_id(who.name) not in self._reserved:
            return ProducerBusyError(f"{name} is kept for the exclusive producer of what it was made of")
        return None

    # -- one leaves ------------------------------------------------------------------------------------------------

    def detach(self, producer: Producer) -> None:
        """It has left."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._wake()

    def close(self, error: EngineError) -> None:
        """Everybody is told to go elsewhere."""
        for producer in list(self.producers.values()):
            producer.close(error)
        self._wake()

    def _wake(self) -> None:
        """Those who wait look again."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _change(self) -> asyncio.Future[None]:
        if self._changed is None:
            self._changed = self._loop.create_future()
        return self._changed
