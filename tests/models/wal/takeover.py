"""How a session takes a segment over: claim (R1), fence (R3 to R5), recover (R10 to R12), serve (R2)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.explorer import ViolationError
from tests.models.wal.state import (
    FENCE,
    SESSIONS,
    File,
    Instance,
    Phase,
    Reference,
    Rule,
    State,
    Step,
    Takeover,
    WalRecord,
    name,
    replaced,
    spent,
    with_broker,
    with_record,
    with_slot,
    with_wal_record,
)


def takeover(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The steps of a takeover, from the claim on."""
    current = state.brokers[me].takeover
    if current is None:
        yield from _r1_claim(instance, state, me)
    elif current.phase is not Phase.CHOOSE:
        yield from _r4_fence(instance, state, me, current)
    elif current.unfenced:
        yield _r4_begin(instance, state, me, current)
    else:
        yield from _recovery(instance, state, me, current)


def _with_takeover(state: State, me: int, current: Takeover | None) -> State:
    return with_broker(state, me, takeover=current)


def _r1_claim(instance: Instance, state: State, me: int) -> Iterator[Step]:
    broker = state.brokers[me]
    if SESSIONS[me] not in instance.claimers or broker.over or not state.left.takeovers:
        return
    for segment, record in enumerate(state.records):
        if record.owner == me:
            continue
        term = record.term + 1
        references = record.references
        if not instance.keeps(Rule.R1_LIST):
            references = (Reference(me, len(broker.sent), None, term),)
        after = with_record(
            spent(state, "takeovers"), segment, record._replace(owner=me, term=term, references=references)
        )
        unfenced = tuple(
            index
            for index, r in enumerate(record.references)
            if r.end is None and r.session != me and (instance.keeps(Rule.R3_ALL_OPEN) or r.session == record.owner)
        )
        ends = tuple(r.end for r in record.references)
        claimed = Takeover(
            Phase.CHOOSE, segment, term, record.references, record.files, ends, unfenced, floor=record.floor
        )
        after = with_broker(after, me, terms=replaced(broker.terms, segment, 0), takeover=claimed)
        yield f"R1: {SESSIONS[me]} claims segment {segment} at term {term}", after


def _r4_begin(instance: Instance, state: State, me: int, current: Takeover) -> Step:
    """The record of the next session to fence, as it is in the store."""
    session = current.references[current.unfenced[0]].session
    record = state.wal_records[session]
    if record.gone:
        now = state.records[current.segment]
        if not instance.keeps(Rule.R12_GONE) or (now.owner, now.term) == (me, current.term):
            raise ViolationError(f"LOST: the record of {SESSIONS[session]} is gone, and a reference to it is open")
        step = f"R12: {SESSIONS[me]} finds no record of {SESSIONS[session]}, and is not the owner any more"
        return step, _with_takeover(state, me, None)
    if record.fenced is None:
        probing = current._replace(phase=Phase.PROBE, at=record.trimmed, seen=record)
        return f"R4: {SESSIONS[me]} finds {SESSIONS[session]} not fenced", _with_takeover(state, me, probing)
    step = f"R4: {SESSIONS[me]} finds {SESSIONS[session]} fenced at {record.fenced}"
    return step, _with_takeover(state, me, _fenced(current, record.fenced))


def _fenced(current: Takeover, end: int) -> Takeover:
    index, *rest = current.unfenced
    ends = replaced(current.ends, index, end)
    return current._replace(phase=Phase.CHOOSE, ends=ends, unfenced=tuple(rest), at=0, seen=WalRecord())


def _r4_fence(instance: Instance, state: State, me: int, current: Takeover) -> Iterator[Step]:
    session = current.references[current.unfenced[0]].session
    if current.phase is Phase.RECORD:
        yield _r5_record(instance, state, me, current, session)
    elif current.phase is Phase.PROBE:
        yield _r4_probe(instance, state, me, current, session)
    elif instance.keeps(Rule.R4_ADOPT):
        yield from _r4_wall(instance, state, me, current, session)
    else:
        yield from _one_by_one(state, me, current, session)


def _r4_probe(instance: Instance, state: State, me: int, current: Takeover, session: int) -> Step:
    """Go up to the first name that holds no data."""
    at, who, log = current.at, SESSIONS[me], state.wals[session]
    if not instance.keeps(Rule.R4_FIRST_HOLE):
        at = max([at, *(n + 1 for n, slot in enumerate(log) if slot is not None)])
    elif log[at] is FENCE and instance.keeps(Rule.R4_ADOPT):
        found = current._replace(phase=Phase.RECORD)
        return f"R4: {who} finds a FENCE at {name(session, at)}", _with_takeover(state, me, found)
    elif log[at] is not None:
        return f"R4: {who} passes {name(session, at)}", _with_takeover(state, me, current._replace(at=at + 1))
    after = _with_takeover(state, me, current._replace(phase=Phase.WALL, at=at))
    if instance.keeps(Rule.R4_ADOPT):
        after = after._replace(
            fence_puts=after.fence_puts | {(session, n) for n in _names(instance, state, session, at)}
        )
    return f"R4: {who} sends FENCEs from {name(session, at)}", after


def _names(instance: Instance, state: State, session: int, at: int) -> range:
    return range(at, min(at + instance.span, len(state.wals[session])))


def _r4_wall(instance: Instance, state: State, me: int, current: Takeover, session: int) -> Iterator[Step]:
    """All names hold something: the lowest FENCE is the end. A name that holds nothing gets another PUT."""
    names = _names(instance, state, session, current.at)
    empty = [n for n in names if state.wals[session][n] is None]
    if not empty:
        fences = [n for n in names if state.wals[session][n] is FENCE]
        if not instance.keeps(Rule.R4_READ_BACK):
            fences = [current.at]
        if fences:
            found = current._replace(phase=Phase.RECORD, at=fences[0])
            yield f"R4: {SESSIONS[me]} has a FENCE at {name(session, fences[0])}", _with_takeover(state, me, found)
        else:
            further = current._replace(phase=Phase.PROBE, at=names[-1] + 1)
            yield f"R4: {SESSIONS[me]} goes on above {name(session, names[-1])}", _with_takeover(state, me, further)
    again = {(session, n) for n in empty} - state.fence_puts
    if again:
        yield f"R4: {SESSIONS[me]} sends FENCEs again", state._replace(fence_puts=state.fence_puts | again)


def _one_by_one(state: State, me: int, current: Takeover, session: int) -> Iterator[Step]:
    """A fence as it must not be set: what exists, one's own FENCE as well, sends it to the next name."""
    at = current.at
    found = current._replace(phase=Phase.RECORD)
    if state.wals[session][at] is not None:
        yield (
            f"{SESSIONS[me]} is refused at {name(session, at)}",
            _with_takeover(state, me, current._replace(at=at + 1)),
        )
        return
    put = with_slot(state, session, at, FENCE)
    yield f"{SESSIONS[me]} sets a FENCE at {name(session, at)}", _with_takeover(put, me, found)
    if state.left.losses:
        yield f"{SESSIONS[me]} sets a FENCE at {name(session, at)}, the answer is lost", spent(put, "losses")


def _r5_record(instance: Instance, state: State, me: int, current: Takeover, session: int) -> Step:
    record = state.wal_records[session]
    if record != current.seen and instance.keeps(Rule.R5_VERSION):
        again = current._replace(phase=Phase.CHOOSE, at=0, seen=WalRecord())
        return f"R5: {SESSIONS[me]}'s fence of {SESSIONS[session]} loses, again", _with_takeover(state, me, again)
    after = with_wal_record(state, session, record._replace(fenced=current.at))
    after = _with_takeover(after, me, _fenced(current, current.at))
    return f"R5: {SESSIONS[me]} records {SESSIONS[session]} as fenced at {current.at}", after


def _recovery(instance: Instance, state: State, me: int, current: Takeover) -> Iterator[Step]:
    broker, who = state.brokers[me], SESSIONS[me]
    own = any(r.session == me and r.end is None for r in current.references)
    if own and instance.keeps(Rule.R10_OWN) and broker.acknowledged < len(broker.sent):
        if instance.keeps(Rule.R8_GIVE_UP):
            yield f"R8: {who} ends its session", with_broker(state, me, takeover=None, over=True)
        return  # R10: wait until all is stored
    ends = [_end(instance, state, me, r, end) for r, end in zip(current.references, current.ends, strict=True)]
    try:
        log = _r11_recovered(state, current, ends)
    except ViolationError:
        record = state.records[current.segment]
        if not instance.keeps(Rule.R12_RECORD) or (record.owner, record.term) == (me, current.term):
            raise
        yield f"R12: {who} meets a hole and is not the owner any more", _with_takeover(state, me, None)
        return
    if not instance.keeps(Rule.R11_OBJECTS) and not broker.recovered[current.segment] and broker.logs[current.segment]:
        log = broker.logs[current.segment]
    yield _r2_serve(instance, state, me, current, tuple(ends), log)


def _end(instance: Instance, state: State, me: int, reference: Reference, end: int | None) -> int:
    """The end of a reference: where it was closed or fenced; else (R10, or a rule that is off) what is stored."""
    if end is not None:
        return end
    n = state.brokers[me].acknowledged if reference.session == me and instance.keeps(Rule.R10_OWN) else reference.start
    log = state.wals[reference.session]
    while n < len(log) and isinstance(log[n], tuple):
        n += 1
    return n


def _r11_recovered(state: State, current: Takeover, ends: list[int]) -> tuple[str, ...]:
    """The entries of the named files, and of the range of each reference. Raises ViolationError where some miss."""
    log: list[str] = [""] * current.floor
    for file in current.files:
        _take_file(state, file, log)
    for reference, end in zip(current.references, ends, strict=True):
        for n in range(reference.start, end):
            slot, where = state.wals[reference.session][n], name(reference.session, n)
            if not isinstance(slot, tuple):
                raise ViolationError("INVENTED: a FENCE" if slot is FENCE else f"LOST: no object lies at {where}")
            for group in slot:
                if group.segment != current.segment or group.offset < current.floor:
                    continue
                if group.term != reference.term:
                    raise ViolationError(f"INVENTED: {where} has {group.value} of another term than the reference")
                if group.offset > len(log):
                    raise ViolationError(f"LOST: offsets {len(log)} to {group.offset} before {where}")
                if group.offset == len(log):
                    log.append(group.value)
                elif log[group.offset] != group.value:
                    raise ViolationError(f"INVENTED: offset {group.offset} is {log[group.offset]} and {group.value}")
    return tuple(log)


def _take_file(state: State, file: File, log: list[str]) -> None:
    if file not in state.files:
        raise ViolationError(f"LOST: file {file.name} is gone, or another one")
    if file.first > len(log):
        raise ViolationError(f"LOST: offsets {len(log)} to {file.first} before file {file.name}")
    log += file.values[len(log) - file.first :]


def _r2_serve(
    instance: Instance, state: State, me: int, current: Takeover, ends: tuple[int, ...], log: tuple[str, ...]
) -> Step:
    """One compare-and-set ends the takeover: it closes what was found, and adds the own reference."""
    record, who, broker = state.records[current.segment], SESSIONS[me], state.brokers[me]
    fenced = state.wal_records[me].fenced is not None
    if (record.owner, record.term) != (me, current.term) or fenced:
        step = f"R2: {who}'s takeover of segment {current.segment} loses"
        return step, with_broker(state, me, takeover=None, over=broker.over or fenced)
    own = (Reference(me, len(broker.sent), None, current.term),)
    closed = tuple(r._replace(end=end) for r, end in zip(current.references, ends, strict=True))
    references = closed + own if instance.keeps(Rule.R2_REFERENCE) else closed
    if not instance.keeps(Rule.R1_LIST):
        references = own
    after = with_record(state, current.segment, record._replace(references=references))
    after = with_broker(
        after,
        me,
        takeover=None,
        terms=replaced(broker.terms, current.segment, current.term),
        logs=replaced(broker.logs, current.segment, log),
        recovered=replaced(broker.recovered, current.segment, len(log)),
    )
    return f"R2: {who} serves segment {current.segment} with {len(log)} entries, ends {list(ends)}", after
