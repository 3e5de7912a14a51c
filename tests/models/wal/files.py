"""Consolidation: a session uploads what its log holds of a segment and names the file in the record (R13, R14)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.wal.state import (
    SESSIONS,
    Broker,
    File,
    Instance,
    Record,
    Reference,
    Rule,
    State,
    Step,
    Upload,
    spent,
    with_broker,
    with_record,
)


def consolidation(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The steps of an upload. A session that is over goes on with it: the naming decides."""
    upload = state.brokers[me].upload
    if upload is None:
        yield from _r13_begin(instance, state, me)
    elif not upload.stored:
        # A store keeps one object of a name: a second upload under it replaces the first.
        others = {file for file in state.files if file.name != upload.file.name}
        after = with_broker(
            state._replace(files=frozenset(others | {upload.file})), me, upload=upload._replace(stored=True)
        )
        yield f"{SESSIONS[me]}'s file {upload.file.name} is stored, {len(upload.file.values)} entries", after
    else:
        yield _r14_name(instance, state, me, upload)


def _r13_begin(instance: Instance, state: State, me: int) -> Iterator[Step]:
    broker = state.brokers[me]
    if not state.left.uploads:
        return
    for segment, term in enumerate(broker.terms):
        if not term:
            continue
        own = sum(g.segment == segment and g.term == term for sent in broker.sent[: broker.acknowledged] for g in sent)
        files = state.records[segment].files
        first = files[-1].first + len(files[-1].values) if files else 0
        values = broker.logs[segment][first : broker.recovered[segment] + own]  # what is acknowledged
        for size in range(1 if instance.rolls else len(values), len(values) + 1):
            if not size:
                continue
            name: tuple[object, ...] = (segment, first)
            if instance.keeps(Rule.R13_NAME):
                name = (segment, first, term, SESSIONS[me], state.left.uploads)
            upto = _upto(instance, broker, segment, first + size)
            upload = Upload(segment, term, File(name, first, values[:size]), upto, False)
            step = f"R13: {SESSIONS[me]} uploads {name}, {size} entries"
            yield step, with_broker(spent(state, "uploads"), me, upload=upload)


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


def _r14_name(instance: Instance, state: State, me: int, upload: Upload) -> Step:
    """One transaction: owner, term, session not fenced. It names the file and drops what the file covers."""
    record, broker, who = state.records[upload.segment], state.brokers[me], SESSIONS[me]
    term = upload.term if instance.keeps(Rule.R14_TERM) else broker.terms[upload.segment]
    mine = (record.owner, record.term) == (me, term) or not instance.keeps(Rule.R14_OWNER)
    fenced = state.wal_records[me].fenced is not None and instance.keeps(Rule.R14_SESSION)
    if not mine or fenced:
        return f"R14: {who}'s file {upload.file.name} stays an orphan", with_broker(state, me, upload=None)
    references = tuple(
        r._replace(start=r.start if upload.upto < 0 else upload.upto)
        for r in record.references
        if r.session == me and r.end is None
    )
    if not references and not instance.keeps(Rule.R2_REFERENCE):
        references = (Reference(me, upload.upto, None, record.term),)
    references = _r14_uncovered(instance, state, record, upload) + references
    named = record._replace(references=references, files=(*record.files, upload.file))
    after = with_broker(with_record(state, upload.segment, named), me, upload=None)
    return f"R14: {who} names file {upload.file.name}, goes on from {upload.upto}", after


def _r14_uncovered(instance: Instance, state: State, record: Record, upload: Upload) -> tuple[Reference, ...]:
    """The closed references with groups behind the file."""
    if not instance.rolls or not instance.keeps(Rule.R14_COVERED):
        return ()
    end = upload.file.first + len(upload.file.values)
    return tuple(
        r
        for r in record.references
        if r.end is not None
        and any(
            group.segment == upload.segment and group.offset >= end
            for slot in state.wals[r.session][r.start : r.end]
            if isinstance(slot, tuple)
            for group in slot
        )
    )
