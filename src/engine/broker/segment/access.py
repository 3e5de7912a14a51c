"""Access modes of producers: which producers may attach to a segment, and in which order waiting ones do.

Exclusive access is to a topic. It is decided at one place, the first of the topic's active segments by hash range:

1. A producer attaches there first. When it is admitted, it gets a claim: (segment id, owner's term, count).
2. It shows the claim when it attaches to the other segments.
3. Of two claims the larger one wins, at every segment, and the producer with the smaller one is fenced. Claims rise:
   the id of the first segment with every change of the topic's shape that concerns it, the term with every owner.

A producer never waits for a claim while it holds one, so two waiting producers never wait for each other.

After a split or merge, the producers that had exclusive access to the parents are preferred at the children for
RESERVED_S.
"""

from __future__ import annotations

import asyncio
import re
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.broker.segment.producer import Producer
from engine.errors import EngineError, FencedError, InvalidArgumentError, ProducerBusyError
from engine.limits import PROPERTIES_SIZE_MAX
from engine.model.access import AccessMode
from engine.model.names import check_new_name, check_property_names
from engine.storage.dedup.dedup import producer_id
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer

RESERVED_S = 10.0  # exclusive producers of the parents have this long to attach to a child before others may
CHECK_S = 1.0  # between two checks of a waiting producer: its client may be gone
SETTLING_S = 6.0  # waiting producers let earlier ones come back first after a restart; clients try every 5 s

_GIVEN = re.compile(r"pulsar-[0-9a-f]{16}-[0-9]+")

Claim = tuple[int, int, int]  # segment id, term, count
_SEALED_SIZE = 5  # numbers of a claim with its seal (broker/rights/claims.py)


@dataclass(frozen=True, slots=True, eq=False)
class Applicant:
    """A producer that asks to attach. `renewal`: it was admitted to the topic before. `claim`: from the first
    segment; None where this is the first. `seal`: that was given with it. `waited`: seconds that it has waited
    elsewhere. `name_proof`: the secret of a generated name.
    """

    connection: Peer
    ident: int
    name: str
    mode: AccessMode
    claim: Claim | None = None
    renewal: bool = False
    waited: float = 0.0
    properties: Mapping[str, str] | None = None
    seal: tuple[int, int] | None = None
    name_proof: bytes | None = field(default=None, repr=False)


def given_name(origin: int, number: int) -> str:
    """For a producer of Apache Pulsar's client that has none, at one segment. `origin`: 64 bits."""
    return f"pulsar-{origin:016x}-{number}"


def topic_producer(name: str, segment_id: int) -> str | None:
    """The name of a producer of the topic, from that of the same one at a segment: clients of Apache Pulsar add to it
    there. None: it has no other name than the given one, which is another one at each segment.
    """
    return None if _GIVEN.fullmatch(name) else name.removesuffix(f"-seg-{segment_id}")


def applicant(connection: Peer, header: commands.Producer) -> Applicant:
    """The producer of a PRODUCER frame. Raises InvalidArgumentError."""
    name, claim = check_new_name(header.producer_name, "producer", pattern=False), header.claim
    if claim is not None and not (len(claim) in (3, _SEALED_SIZE) and all(type(part) is int for part in claim)):
        raise InvalidArgumentError(f"claim must be the numbers of the first segment's answer, got {claim!r:.80}")
    waited = max(header.waited_ms or 0, 0) / 1000
    return Applicant(
        connection,
        header.producer_id,
        name,
        AccessMode.parse(header.access_mode),
        None if claim is None else (claim[0], claim[1], claim[2]),
        bool(header.renewal),
        waited,
        _checked_properties(header.properties),
        None if claim is None or len(claim) < _SEALED_SIZE else (claim[3], claim[4]),
        header.name_proof,
    )


def _checked_properties(properties: dict[Any, Any] | None) -> dict[str, str]:
    found = properties or {}
    if not all(isinstance(text, str) for item in found.items() for text in item):
        raise InvalidArgumentError("a producer's properties must map text to text")
    check_property_names(found, "producer")
    if sum(len(name) + len(value) for name, value in found.items()) > PROPERTIES_SIZE_MAX:
        raise InvalidArgumentError(f"a producer's properties must have at most {PROPERTIES_SIZE_MAX:,} characters")
    return found


@dataclass(order=True, slots=True)
class _Place:
    """A place in the queue of waiting producers."""

    since: float
    ordinal: int


class Access:
    """The producers of one open segment. Loop thread only."""

    __slots__ = ("_changed", "_count", "_hosted", "_loop", "_newest", "_ordinal", "_reserved", "_reserved_until",
                 "_served_since", "_waiting", "bound", "ids", "producers")  # fmt: skip

    def __init__(self, hosted: HostedSegment, served_since: float | None) -> None:
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._served_since = served_since  # None also once a producer has been admitted with a claim
        self.producers: dict[str, Producer] = {}
        self.bound: dict[str, str] = {}  # names and the roles that they belong to, as far as is known
        self.ids: dict[int, str] = {}  # ids in entries and the names that have them, likewise
        # Claims.
        self._newest: Claim | None = None  # shown or issued here
        self._count = 0
        # The exclusive producers of the parents, by the ids that deduplication uses.
        self._reserved: set[int] = set()
        self._reserved_until = 0.0
        # The queue, the longest waiting first.
        self._waiting: list[_Place] = []
        self._ordinal = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def in_use(self) -> bool:
        """Whether a producer is attached or waits."""
        return bool(self.producers or self._waiting)

    def reserve(self, producers: Iterable[int]) -> None:
        """These had exclusive access to a parent of this segment: for RESERVED_S no others are admitted."""
        self._reserved.update(producers)
        self._reserved_until = self._loop.time() + RESERVED_S

    def rivals(self, who: Applicant) -> list[Producer]:
        """The attached producers that it cannot share the segment with."""
        if who.mode is not AccessMode.SHARED:
            return list(self.producers.values())
        return [p for p in self.producers.values() if p.access is not AccessMode.SHARED or p.name == who.name]

    def ousted_by(self, who: Applicant) -> list[Producer]:
        """The producers of other connections that attach() would close for it now."""
        rivals = [p for p in self.rivals(who) if p.connection is not who.connection]
        return rivals if rivals and self._obstacle(who) is None else []

    # -- attaching -------------------------------------------------------------------------------------------------

    async def turn(self, who: Applicant) -> None:
        """Wait until attach() would not raise ProducerBusyError; in order of arrival.

        Returns early when attach() would raise another error, or the client is gone.
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
                    pause = CHECK_S
                await asyncio.wait([self._change()], timeout=pause)
        finally:
            self._waiting.remove(place)
            self._wake()

    def _settling(self, who: Applicant) -> float:
        """The seconds for which waiting producers stand back: one that was admitted before may come back."""
        served = self._hosted.segment.next_offset or self._hosted.incoming.heir
        up_since = self._hosted.environment.serving_since()
        if self._served_since is None or not served or up_since is None:
            return 0.0
        return max(0.0, max(self._served_since, up_since) + SETTLING_S - self._loop.time())

    def attach(self, who: Applicant) -> Producer:
        """Attach it. A producer of the same name on the same connection is its own earlier attachment and is closed.

        Raises what check() raises.
        """
        self.check(who)
        for rival in self.rivals(who):
            again = rival.name == who.name and rival.connection is who.connection
            what = "attached again on its connection" if again else f"took over {self._hosted.name}"
            rival.close(FencedError(f"the producer {who.name!r} {what}"))
        self._reserved.clear()
        return self._admit(who)

    def check(self, who: Applicant) -> None:
        """Raise what keeps the producer out now: ProducerBusyError; FencedError: another producer has claimed the topic
        since; NotOwnerError, SegmentSealedError.
        """
        self._hosted.check_open()
        self._hosted.check_active()
        obstacle = self._obstacle(who)
        yields = who.mode in (AccessMode.SHARED, AccessMode.EXCLUSIVE) and not who.renewal
        if obstacle is None and self._waiting and yields:
            obstacle = ProducerBusyError(f"{self._hosted.name}: other producers wait for exclusive access")
        if obstacle is not None:
            raise obstacle

    def _admit(self, who: Applicant) -> Producer:
        claim = who.claim
        if claim is None and who.mode is not AccessMode.SHARED:
            self._count += 1
            claim = (self._hosted.name.segment_id, self._hosted.term, self._count)
        if claim is not None:
            self._newest, self._served_since = claim, None
        self._hosted.segment.producer_attached(who.name)
        producer = Producer(who.connection, who.ident, self._hosted, who.name, who.mode, claim, who.properties)
        self.producers[who.name] = producer
        return producer

    def _obstacle(self, who: Applicant) -> EngineError | None:
        """Why it may not attach now."""
        name = self._hosted.name
        if who.claim is not None and self._newest is not None and who.claim < self._newest:
            return FencedError(f"the producer {who.name!r} has lost its exclusive access: another has claimed {name}")
        if who.mode is AccessMode.EXCLUSIVE_WITH_FENCING and not who.renewal:
            return None
        for rival in self.rivals(who):
            if rival.name == who.name and rival.connection is who.connection:
                continue
            if who.claim is None or rival.access is AccessMode.SHARED or rival.name == who.name:
                return ProducerBusyError(f"{name} has the {rival.access} producer {rival.name!r}")
        reserved = self._reserved and self._loop.time() < self._reserved_until
        known = topic_producer(who.name, name.segment_id)
        if reserved and who.claim is None and (known is None or producer_id(known) not in self._reserved):
            return ProducerBusyError(f"{name} is reserved for the exclusive producer of its parents")
        return None

    # -- detaching -------------------------------------------------------------------------------------------------

    def detach(self, producer: Producer) -> None:
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._wake()

    def close(self, error: EngineError) -> None:
        """Close all producers with an error."""
        for producer in list(self.producers.values()):
            producer.close(error)
        self._wake()

    def _wake(self) -> None:
        """Waiting producers check again."""
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _change(self) -> asyncio.Future[None]:
        if self._changed is None:
            self._changed = self._loop.create_future()
        return self._changed
