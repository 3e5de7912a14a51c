"""Consolidation: a session uploads what its log holds of a segment and names the file in the record (R13, R14).

Slow segments share an object: one upload, and each of their records names its own part of it (R18). Where files hold
all that a segment has in the log, its reference moves on (R19).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.wal.state import (
    SESSIONS,
    Broker,
    File,
    Instance,
    Move,
    Part,
    Record,
    Reference,
    Rule,
    State,
    Step,
    Upload,
    spent,
    with_broker,
    with_record,
    with_wal_record,
)


def consolidation(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The steps of an upload. A session that is over goes on with it: the naming decides."""
    upload = state.brokers[me].upload
    if upload is None:
        yield from _r13_begin(instance, state, me)
    elif not upload.stored:
        # A store keeps one object of a name: a second upload under it replaces the first.
        name, entries = upload.parts[0].file.name, sum(len(part.file.values) for part in upload.parts)
        files = {file for file in state.files if file.name != name} | {part.file for part in upload.parts}
        after = with_broker(state._replace(files=frozenset(files)), me, upload=upload._replace(stored=True))
        yield f"{SESSIONS[me]}'s object {name} is stored, {entries} entries", after
    else:
        for part in upload.parts:
            yield _r14_name(instance, state, me, upload, part)
    yield from _r18_settle(instance, state, me)
    yield from _r19_move(instance, state, me)


def _r13_begin(instance: Instance, state: State, me: int) -> Iterator[Step]:
    broker = state.brokers[me]
    if not state.left.uploads:
        return
    if instance.shares:
        name: tuple[object, ...] = ("shared", broker.shared, SESSIONS[me])
        served = [segment for segment, term in enumerate(broker.terms) if term]
        whole = [part for segment in served for part in _parts(instance, state, me, segment, name)[-1:]]
        if whole:
            upload = Upload(tuple(whole), False, broker.shared)
            begun = with_broker(spent(state, "uploads"), me, upload=upload, shared=broker.shared + 1)
            yield f"R18: {SESSIONS[me]} uploads {name} of {len(whole)} segments", begun
        return
    for segment, term in enumerate(broker.terms):
        first = state.records[segment].named_end
        name = (segment, first)
        if instance.keeps(Rule.R13_NAME):
            name = (segment, first, term, SESSIONS[me], state.left.uploads)
        for part in _parts(instance, state, me, segment, name) if term else []:
            step = f"R13: {SESSIONS[me]} uploads {name}, {len(part.file.values)} entries"
            yield step, with_broker(spent(state, "uploads"), me, upload=Upload((part,), False))


def _parts(instance: Instance, state: State, me: int, segment: int, name: tuple[object, ...]) -> list[Part]:
    """The files that a segment may have next, the longest one last."""
    broker = state.brokers[me]
    term, first = broker.terms[segment], state.records[segment].named_end
    own = sum(g.segment == segment and g.term == term for sent in broker.sent[: broker.acknowledged] for g in sent)
    values = broker.logs[segment][first : broker.recovered[segment] + own]  # what is acknowledged
    sizes = range(1 if instance.rolls else max(1, len(values)), len(values) + 1)
    return [
        Part(segment, term, File(name, first, values[:size]), _upto(instance, broker, segment, first + size))
        for size in sizes
    ]


def _upto(instance: Instance, broker: Broker, segment: int, end: int) -> int:
    """The first object of the own session that is needed behind a file."""
    if not instance.rolls or not instance.keeps(Rule.R14_COVERED):
        return broker.acknowledged
    if end < broker.recovered[segment]:
        return -1  # the own reference stays as it is
    term = broker.terms[segment]
    behind = (
        n
        for n, groups in enumerate(broker.sent[: broker.acknowledged])
        if any(g.segment == segment and g.term == term and g.offset >= end for g in groups)
    )
    return min(behind, default=broker.acknowledged)


def _r14_name(instance: Instance, state: State, me: int, upload: Upload, part: Part) -> Step:
    """One transaction: owner, term, session not fenced. It names the file and drops what the file covers."""
    record, broker, who = state.records[part.segment], state.brokers[me], SESSIONS[me]
    rest = tuple(other for other in upload.parts if other is not part)
    done = with_broker(state, me, upload=upload._replace(parts=rest) if rest else None)
    term = part.term if instance.keeps(Rule.R14_TERM) else broker.terms[part.segment]
    mine = (record.owner, record.term) == (me, term) or not instance.keeps(Rule.R14_OWNER)
    fenced = state.wal_records[me].fenced is not None and instance.keeps(Rule.R14_SESSION)
    if not mine or fenced:
        return f"R14: {who} does not name file {part.file.name} of segment {part.segment}", done
    references = tuple(
        r._replace(start=r.start if part.upto < 0 else part.upto)
        for r in record.references
        if r.session == me and r.end is None
    )
    if not references and not instance.keeps(Rule.R2_REFERENCE):
        references = (Reference(me, part.upto, None, record.term),)
    references = _r14_uncovered(instance, state, record, part) + references
    named = record._replace(references=references, files=(*record.files, part.file))
    step = f"R14: {who} names file {part.file.name} of segment {part.segment}, goes on from {part.upto}"
    return step, with_record(done, part.segment, named)


def _r14_uncovered(instance: Instance, state: State, record: Record, part: Part) -> tuple[Reference, ...]:
    """The closed references with groups behind the file."""
    if not instance.rolls or not instance.keeps(Rule.R14_COVERED):
        return ()
    end = part.file.first + len(part.file.values)
    return tuple(
        r
        for r in record.references
        if r.end is not None
        and any(
            group.segment == part.segment and group.offset >= end
            for slot in state.wals[r.session][r.start : r.end]
            if isinstance(slot, tuple)
            for group in slot
        )
    )


def _r18_settle(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The session's record says which shared objects no further record will name."""
    broker, record = state.brokers[me], state.wal_records[me]
    upto, upload = broker.shared, broker.upload
    if upload is not None and upload.number is not None and instance.keeps(Rule.R18_BOUND):
        upto = upload.number
    if upto > record.settled and record.fenced is None:
        yield f"R18: {SESSIONS[me]} has settled {upto}", with_wal_record(state, me, record._replace(settled=upto))


def _r19_move(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The header of the segment's last file goes to the log again, and is the first that is needed from then on."""
    broker, who = state.brokers[me], SESSIONS[me]
    if broker.move is None:
        for segment, term in enumerate(broker.terms):
            behind = len(broker.logs[segment]) > state.records[segment].named_end and instance.keeps(Rule.R19_NAMED)
            if term and state.left.moves and not broker.over and not behind:
                begun = Move(segment, term, len(broker.sent))
                step = f"R19: {who} begins to move its reference of segment {segment} to {begun.upto}"
                yield step, with_broker(spent(state, "moves"), me, move=begun)
        return
    segment, term, upto = broker.move
    record, done = state.records[segment], with_broker(state, me, move=None)
    mine = (record.owner, record.term) == (me, term) or not instance.keeps(Rule.R19_OWNER)
    if not mine or state.wal_records[me].fenced is not None:
        yield f"R19: {who} does not move its reference of segment {segment}", done
        return
    moved = tuple(r._replace(start=max(r.start, upto)) for r in record.references if r.session == me and r.end is None)
    after = with_record(done, segment, record._replace(references=moved))  # those of earlier terms are covered
    yield f"R19: {who} moves its reference of segment {segment} to {upto}", after
