"""Requests of producers: attach, send, close."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from engine._native.serve.flights import SendHandler
from engine.broker.rights.need import Need, on_topic
from engine.broker.segment.access import applicant
from engine.broker.session.attaching import attach, check_wanted, evict_dead, open_segment
from engine.errors import FencedError, LimitExceededError, NotFoundError, ProducerBusyError
from engine.model.access import AccessMode
from engine.model.rights import Right
from engine.storage.dedup.dedup import producer_id
from engine.wire import commands

_DEBTS_LOOK_S = 0.25

if TYPE_CHECKING:
    from engine.broker.segment.access import Applicant
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.producer import Producer
    from engine.broker.session.connection import Connection
    from engine.errors import AuthorizationError

_REQUEST = "PRODUCER"


def open_producer(connection: Connection, header: commands.Producer, payload: memoryview) -> None:
    """PRODUCER."""
    attach(connection, header.producer_id, header.request_id, _open_producer(connection, header))


async def _open_producer(connection: Connection, header: commands.Producer) -> None:
    who = applicant(connection, header)
    ident = who.ident
    hosted = await open_segment(connection, header.topic)
    hosted.check_active()
    if connection.host.memory.limits is not None:
        await _debts_paid(connection, hosted, ident)
    _check_limits(connection, hosted, who.name)
    if connection.needs is not None:
        await _check_claim(connection, hosted, who)
        await _owner(connection, hosted, who)
        await _check_id(connection, hosted, who)
    hosted.obey(await connection.host.service.policies_said(hosted.name.topic))
    await evict_dead(connection, lambda: [p.connection for p in hosted.access.rivals(who)])
    if connection.needs is not None:
        await _bind(connection, hosted, who)
    if who.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        await hosted.access.turn(who)  # nothing is awaited between its turn and attach(), or another would be let in
    _check_still(connection, hosted, who)
    producer = hosted.access.attach(who)
    connection.producers[ident] = producer
    if connection.host.config.has_roles:
        _keep_id(hosted, who)
    connection.openings.closed.discard(ident)
    answer = producer.success(header.request_id)
    connection.send(answer if connection.needs is None else _sealed(connection, producer, answer))
    if (limits := connection.host.memory.limits) is not None:
        producer.limit(limits)


async def _debts_paid(connection: Connection, hosted: HostedSegment, ident: int) -> None:
    """Wait while the role's producers owe too much of a rate: one more would have as much again for nothing."""
    while True:
        limits = connection.host.memory.limits
        if limits is None or not limits.debts.too_many(hosted.name.topic, connection.role):
            return
        await asyncio.sleep(_DEBTS_LOOK_S)
        check_wanted(connection, ident)


def _check_limits(connection: Connection, hosted: HostedSegment, name: str) -> None:
    """Raise LimitExceededError unless a producer of this name may attach."""
    if (limits := connection.host.memory.limits) is not None:
        topic = hosted.name.topic
        limits.check_topic(topic)
        limits.check_attach(limits.producers, topic, connection.role, name)
        limits.check_name(topic, hosted.segment, name)


def _check_still(connection: Connection, hosted: HostedSegment, who: Applicant) -> None:
    """Refuse what is known now to be refused, besides what attach() of `hosted.access` refuses: others may have
    attached meanwhile, or the client is gone.
    """
    check_wanted(connection, who.ident)
    connection.check_attachments()
    _check_limits(connection, hosted, who.name)
    if connection.needs is not None:
        _check_rivals(connection, hosted, who)
        _check_holder(connection, hosted, who, hosted.access.ids.get(producer_id(who.name)))


async def _check_claim(connection: Connection, hosted: HostedSegment, who: Applicant) -> None:
    """Exclusive access is decided at the first segment, which begins the hash range, and elsewhere by a claim that a
    broker has issued to this producer of this role. What `_sealed` needs is known then.

    Raises AuthorizationError, FencedError, and what the metadata store raises.
    """
    claim, topic = who.claim, hosted.name.topic
    if who.mode is AccessMode.SHARED and claim is None:
        return
    if claim is None and hosted.name.hash_range.start:
        why = f"exclusive access to {topic} is decided at its first segment, not {hosted.name}"
        raise connection.denial(_REQUEST, why, Need(0, on_topic(topic)))
    claims = connection.host.rights.claims
    await claims.load(connection.host.metadata)
    if claim is not None and not claims.sealed(who.seal, claim, topic, who.name, connection.role):
        why = f"the producer {who.name!r:.200} has no exclusive access: its claim was not issued to it"
        connection.denial(_REQUEST, why, Need(0, on_topic(topic)))  # its client may be one that makes claims up
        raise FencedError(why)


def _sealed(connection: Connection, producer: Producer, answer: commands.ProducerSuccess) -> commands.ProducerSuccess:
    """The answer with the seal of the claim."""
    if producer.claim is None:
        return answer
    topic, name, role = producer.hosted.name.topic, producer.name, connection.role
    seal = connection.host.rights.claims.seal(producer.claim, topic, name, role)
    return structs.replace(answer, claim=[*producer.claim, *seal])


async def _owner(connection: Connection, hosted: HostedSegment, who: Applicant) -> str | None:
    """The role that a producer's name belongs to, None if to no role yet. It belongs to this role, or this role
    administers the topic, and may take it over. A generated name is that of the client that proves it. Nothing is
    written.

    Raises AuthorizationError, and what the metadata store raises.
    """
    from engine.broker.rights import producer_names
    from engine.model.generated_names import is_generated, proves

    bound, role, name = hosted.access.bound, connection.role, who.name
    if is_generated(name):
        if not proves(who.name_proof, name) and not _administers(connection, hosted):
            why = f"the producer name {name!r:.200} belongs to the client that has generated it"
            raise _foreign(connection, hosted, why)
        return role
    owner = bound.get(name) or await producer_names.owner_of(connection.host.metadata, hosted.name.topic, name)
    if owner == role:
        producer_names.keep(bound, name, role)
    elif owner is not None:
        _check_taking(connection, hosted, name)
    return owner


async def _bind(connection: Connection, hosted: HostedSegment, who: Applicant) -> None:
    """Have a producer's name belong to the role, by a record where it is not the role's already.

    All that refuses the producer is asked before, for a record stays. One that waits for its turn has it from then on:
    nothing is awaited behind its turn. Raises AuthorizationError, LimitExceededError, what refuses the producer, and
    what the metadata store raises.
    """
    from engine.broker.rights import producer_names

    metadata, topic, name, role = connection.host.metadata, hosted.name.topic, who.name, connection.role
    owner = await _owner(connection, hosted, who)
    ident = producer_id(name)
    if owner == role and ident in hosted.access.ids:
        return
    _check_still(connection, hosted, who)
    _check_room(hosted, who)
    if owner is None:
        limits = connection.host.memory.limits
        most = None if limits is None else limits.names_of_role(role)
        try:
            owner = await producer_names.take(metadata, topic, name, role, most)
        except LimitExceededError as e:
            if limits is not None:
                limits.note_refused(e)
            raise
    if owner != role:
        _check_taking(connection, hosted, name)
        await producer_names.give(metadata, topic, name, role)
    # Behind the name's own record, of which a role has so many: those of ids are as many.
    _check_holder(connection, hosted, who, await producer_names.hold(metadata, topic, ident, name))
    producer_names.keep(hosted.access.bound, name, role)


async def _check_id(connection: Connection, hosted: HostedSegment, who: Applicant) -> None:
    """Raise AuthorizationError where another name has the id that entries have of this one. Nothing is written."""
    from engine.broker.rights import producer_names

    ident = producer_id(who.name)
    if (holder := hosted.access.ids.get(ident)) is None:
        holder = await producer_names.named(connection.host.metadata, hosted.name.topic, ident)
    _check_holder(connection, hosted, who, holder)


def _check_holder(connection: Connection, hosted: HostedSegment, who: Applicant, holder: str | None) -> None:
    """`holder`: the name that has the id, as far as is known. Raises AuthorizationError."""
    if holder is not None and holder != who.name:
        why = f"the producer name {who.name!r:.200} has the id of another one, whose messages it would drop"
        raise connection.denial(_REQUEST, why, Need(0, on_topic(hosted.name.topic)))


def _keep_id(hosted: HostedSegment, who: Applicant) -> None:
    """Nothing is awaited between attaching and this."""
    from engine.broker.rights import producer_names

    producer_names.keep(hosted.access.ids, producer_id(who.name), who.name)


def _check_room(hosted: HostedSegment, who: Applicant) -> None:
    """Raise what keeps the producer out now. One that waits for exclusive access waits for others to leave."""
    try:
        hosted.access.check(who)
    except ProducerBusyError:
        if who.mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            raise


def _check_taking(connection: Connection, hosted: HostedSegment, name: str) -> None:
    """Raise AuthorizationError unless the role may take over a name that belongs to another one."""
    if not _administers(connection, hosted):
        raise _foreign(connection, hosted, f"the producer name {name!r:.200} belongs to another role")


def _check_rivals(connection: Connection, hosted: HostedSegment, who: Applicant) -> None:
    """A role fences no producer of another one, and takes no name that another one has attached, unless it administers
    the topic. What was decided at the first segment, as a claim shows, is carried out at the others.

    Raises AuthorizationError.
    """
    holder = hosted.access.producers.get(who.name)
    ousted = [] if who.claim is not None else hosted.access.ousted_by(who)
    others = [p for p in ousted if p.connection.role != connection.role]
    taken = holder is not None and holder.connection.role != connection.role
    if not (others or taken) or _administers(connection, hosted):
        return
    if taken:
        raise _foreign(connection, hosted, f"the producer name {who.name!r:.200} is in use by another role")
    why = f"the right admin is needed to fence the producer {others[0].name!r:.200} of another role"
    raise _foreign(connection, hosted, why)


def _administers(connection: Connection, hosted: HostedSegment) -> bool:
    return connection.host.rights.allows(connection.principal, _administration(hosted))


def _administration(hosted: HostedSegment) -> Need:
    return Need(Right.ADMIN, on_topic(hosted.name.topic))


def _foreign(connection: Connection, hosted: HostedSegment, why: str) -> AuthorizationError:
    """The error of what only an administrator of the topic does to another role's producers."""
    return connection.denial(_REQUEST, why, _administration(hosted))


def _unattached(connection: Connection, header: commands.Send, payload: memoryview) -> None:
    ident = header.producer_id
    connection.sends.dropped(header.transaction, payload if header.several else None)
    if ident not in connection.openings.closed:
        unknown = NotFoundError(f"no producer {ident} is attached on this connection")
        refusal = commands.SendError(producer_id=ident, sequence=0, code=unknown.code, message=str(unknown))
        connection.send(refusal)


send = SendHandler(_unattached)


def close_producer(connection: Connection, header: commands.CloseProducer, payload: memoryview) -> None:
    """CLOSE_PRODUCER. Entries that are durable by then are still acknowledged."""
    if (producer := connection.producers.get(header.producer_id)) is not None:
        producer.close()
    connection.openings.abandon(header.producer_id)
    connection.openings.closed.discard(header.producer_id)
    if header.request_id:
        connection.succeed(header.request_id)
