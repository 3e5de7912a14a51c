"""What is deleted: trimmed objects (R15), and what a sweep finds of sessions that have ended (R6, R16)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.wal.state import (
    FENCE,
    SESSIONS,
    File,
    Instance,
    Rule,
    State,
    Step,
    Sweep,
    WalRecord,
    name,
    spent,
    with_broker,
    with_record,
    with_slot,
    with_wal_record,
)


def trimming(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The steps by which a session shortens its own log."""
    if not instance.trims:
        return
    record = state.wal_records[me]
    upto = _r15_upto(instance, state, me)
    if upto > record.trimmed and (record.fenced is None or not instance.keeps(Rule.R15_OWN)):
        # A blind write replaces the whole record.
        yield (
            f"R15: {SESSIONS[me]} sets trimmed to {upto}",
            with_wal_record(state, me, WalRecord(upto, settled=record.settled)),
        )
    for n in range(record.trimmed):
        if state.wals[me][n] not in (None, FENCE):
            yield f"{name(me, n)} is deleted, as trimmed", with_slot(state, me, n, None)


def _r15_upto(instance: Instance, state: State, me: int) -> int:
    """The first n that is still needed."""
    broker = state.brokers[me]
    starts = [
        reference.start
        for segment, record in enumerate(state.records)
        for reference in record.references
        if reference.session == me and (instance.keeps(Rule.R15_INDEX) or broker.terms[segment])
    ]
    upto = min(starts, default=broker.acknowledged)
    if not instance.keeps(Rule.R15_NAMED) and broker.upload is not None and broker.upload.stored:
        upto = broker.upload.parts[0].upto
    return min(upto, broker.acknowledged)


def ending(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """R14: a session that has nothing left ends in order, and sets `fenced` itself."""
    broker, record = state.brokers[me], state.wal_records[me]
    busy = broker.over or any(broker.terms) or broker.takeover is not None or broker.acknowledged < len(broker.sent)
    if not instance.budget.sweeps or busy or not broker.sent or record.fenced is not None:
        return
    ended = with_wal_record(state, me, record._replace(fenced=len(broker.sent)))
    yield f"R14: {SESSIONS[me]} ends in order at {len(broker.sent)}", with_broker(ended, me, over=True)


def retention(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The owner deletes a segment's oldest file: the record first, then the object, but not one that others share."""
    broker = state.brokers[me]
    for segment, record in enumerate(state.records):
        served = record.owner == me and broker.terms[segment] == record.term
        if not state.left.retentions or not served or not record.files:
            continue
        file, *rest = record.files
        kept = record._replace(files=tuple(rest), floor=file.first + len(file.values))
        after = with_record(spent(state, "retentions"), segment, kept)
        if not _shared(file) or not instance.keeps(Rule.R18_KEPT):
            after = after._replace(files=frozenset(each for each in state.files if each.name != file.name))
        yield f"retention deletes {file.name} of segment {segment}", after


def _shared(file: File) -> bool:
    return file.name[0] == "shared"


def sweeping(instance: Instance, state: State) -> Iterator[Step]:
    """A sweep sees that a session has ended, or what it has settled, and what no record refers to; it deletes later."""
    sweep = state.sweep
    if sweep is None:
        yield from _r16_begin(instance, state)
    elif not sweep.due:
        record = state.wal_records[sweep.session]
        if record.fenced is not None:
            step = f"the sweep reads that {SESSIONS[sweep.session]} is fenced"
            yield step, state._replace(sweep=sweep._replace(due=True, ended=True))
        elif instance.shares and not instance.keeps(Rule.R18_ORDER):
            settled = frozenset(file for file in sweep.unnamed if _settled(file, record))
            step = f"the sweep reads that {SESSIONS[sweep.session]} has settled {record.settled}"
            yield step, state._replace(sweep=sweep._replace(due=True, unnamed=settled, unreferenced=False))
    else:
        yield from _swept(instance, state, sweep)


def _settled(file: File, record: WalRecord) -> bool:
    return _shared(file) and file.name[1] < record.settled  # type: ignore[operator]


def _r16_begin(instance: Instance, state: State) -> Iterator[Step]:
    if not state.left.sweeps:
        return
    named = {file.name for record in state.records for file in record.files}
    for session, record in enumerate(state.wal_records):
        ended, late = record.fenced is not None, not instance.keeps(Rule.R16_ORDER)
        unnamed = frozenset(f for f in state.files if SESSIONS[session] in f.name and f.name not in named)
        if instance.shares and not ended and not late:
            if instance.keeps(Rule.R18_ORDER):
                unnamed = frozenset(
                    f for f in unnamed if _settled(f, record) or (_shared(f) and not instance.keeps(Rule.R18_SETTLED))
                )
            else:
                late = True
            if not unnamed:
                continue
        elif not ended and not late:
            continue
        referred = any(r.session == session for record in state.records for r in record.references)
        if referred and not unnamed:
            continue
        unreferenced = not referred and (ended or not instance.keeps(Rule.R16_ORDER))
        found = Sweep(session, unreferenced, unnamed, due=ended or not late, ended=ended)
        yield f"R16: the sweep reads the records for {SESSIONS[session]}", spent(state, "sweeps")._replace(sweep=found)


def _swept(instance: Instance, state: State, sweep: Sweep) -> Iterator[Step]:
    for n, slot in enumerate(state.wals[sweep.session]):
        gone = slot is not None and sweep.unreferenced and (slot is not FENCE or not instance.keeps(Rule.R6_KEPT))
        if gone:
            yield f"the sweep deletes {name(sweep.session, n)}", with_slot(state, sweep.session, n, None)
    record = state.wal_records[sweep.session]
    if sweep.unreferenced and not record.gone and all(slot in (None, FENCE) for slot in state.wals[sweep.session]):
        gone_for_good = with_wal_record(state, sweep.session, record._replace(gone=True))
        yield f"the sweep deletes the record of {SESSIONS[sweep.session]}", gone_for_good
    for file in sweep.unnamed & state.files:
        yield f"the sweep deletes file {file.name}", state._replace(files=state.files - {file})
