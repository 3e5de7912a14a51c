"""What a session does with its own log: it sends objects, acknowledges them (R7) and hands segments over (R9)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.wal.state import (
    FENCE,
    SESSIONS,
    Group,
    Instance,
    Rule,
    State,
    Step,
    name,
    replaced,
    spent,
    with_broker,
    with_record,
    with_slot,
)


def writing(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The steps of a session that is not over."""
    if state.brokers[me].over:
        return
    yield from _send(instance, state, me)
    yield from _r7_replies(instance, state, me)
    yield from _r7_silence(instance, state, me)
    yield from _r9_hand_over(instance, state, me)


def _send(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """The next object, with one group of each segment that the session serves."""
    broker = state.brokers[me]
    served = [segment for segment, term in enumerate(broker.terms) if term]
    n = len(broker.sent)
    if not served or n >= instance.writes[me] or broker.stored.count(False) >= instance.window:
        return
    groups = tuple(
        Group(segment, broker.terms[segment], len(broker.logs[segment]), f"{name(me, n)}.{segment}")
        for segment in served
    )
    logs = broker.logs
    for group in groups:
        logs = replaced(logs, group.segment, (*logs[group.segment], group.value))
    after = with_broker(state, me, sent=(*broker.sent, groups), stored=(*broker.stored, False), logs=logs)
    after = after._replace(puts=tuple(sorted([*after.puts, (me, n)])))
    if not instance.keeps(Rule.R7_DELIVERY):
        after = after._replace(promised=after.promised | {(g.segment, g.offset, g.value) for g in groups})
    yield f"{SESSIONS[me]} sends {name(me, n)}", after


def _r7_replies(instance: Instance, state: State, me: int) -> Iterator[Step]:
    broker = state.brokers[me]
    for n, accepted in broker.replies:
        after = with_broker(state, me, replies=broker.replies - {(n, accepted)})
        if broker.stored[n]:
            yield f"{SESSIONS[me]} ignores another reply for {name(me, n)}", after
        elif accepted or not instance.keeps(Rule.R7_READ_BACK):
            yield f"R7: {SESSIONS[me]} has stored {name(me, n)}", _acknowledged(instance, after, me, n)
        else:
            yield from _r7_read_back(instance, after, me, n)


def _r7_silence(instance: Instance, state: State, me: int) -> Iterator[Step]:
    """No answer came, for all that the session knows: it looks, or sends the PUT again."""
    if not instance.budget.resends:
        return
    broker = state.brokers[me]
    answered = {n for n, _ in broker.replies}
    for n, stored in enumerate(broker.stored):
        if stored or n in answered:
            continue
        if instance.keeps(Rule.R7_READ_BACK):
            yield from _r7_read_back(instance, state, me, n)
        elif state.left.resends:
            yield f"{SESSIONS[me]} sends {name(me, n)} again", _sent_again(state, me, n)


def _r7_read_back(instance: Instance, state: State, me: int, n: int) -> Iterator[Step]:
    """The session reads what is at its name: its own object, a FENCE, or nothing."""
    slot = state.wals[me][n]
    if slot == state.brokers[me].sent[n]:
        yield f"R7: {SESSIONS[me]} finds {name(me, n)} stored", _acknowledged(instance, state, me, n)
    elif slot is FENCE:
        yield f"R7: {SESSIONS[me]} finds a FENCE at {name(me, n)}: over", with_broker(state, me, over=True)
    elif state.left.resends:
        yield f"R7: {SESSIONS[me]} finds nothing at {name(me, n)}, sends it again", _sent_again(state, me, n)


def _sent_again(state: State, me: int, n: int) -> State:
    return spent(state, "resends")._replace(puts=tuple(sorted([*state.puts, (me, n)])))


def _acknowledged(instance: Instance, state: State, me: int, n: int) -> State:
    """The session knows that n is stored: acknowledge, and deliver, what R7 allows."""
    broker = state.brokers[me]
    stored, done = replaced(broker.stored, n, True), broker.acknowledged
    groups: list[Group] = []
    if instance.keeps(Rule.R7_PREFIX):
        while done < len(stored) and stored[done]:
            groups += broker.sent[done]
            done += 1
    else:
        groups, done = list(broker.sent[n]), max(done, n + 1)
    after = with_broker(state, me, stored=stored, acknowledged=done)
    return after._replace(promised=after.promised | {(g.segment, g.offset, g.value) for g in groups})


def _r9_hand_over(instance: Instance, state: State, me: int) -> Iterator[Step]:
    broker = state.brokers[me]
    for segment, record in enumerate(state.records):
        if not state.left.handovers or record.owner != me or broker.terms[segment] != record.term:
            continue
        last = max((n for n, groups in enumerate(broker.sent) if any(g.segment == segment for g in groups)), default=-1)
        if last >= broker.acknowledged and instance.keeps(Rule.R9_STORED):
            continue
        references = tuple(
            r._replace(end=broker.acknowledged) if r.session == me and r.end is None else r for r in record.references
        )
        after = with_record(spent(state, "handovers"), segment, record._replace(owner=None, references=references))
        after = with_broker(after, me, terms=replaced(broker.terms, segment, 0))
        yield f"R9: {SESSIONS[me]} hands segment {segment} over at {name(me, broker.acknowledged)}", after


def network(instance: Instance, state: State) -> Iterator[Step]:
    """PUTs arrive in any order and at any time, or are lost; an answer may be lost as well."""
    for put in sorted(set(state.puts)):
        me, n = put
        rest = list(state.puts)
        rest.remove(put)
        gone = state._replace(puts=tuple(rest))
        broker, free = state.brokers[me], state.wals[me][n] is None
        stored = with_slot(gone, me, n, broker.sent[n]) if free else gone
        what = "stored" if free else "refused"
        if broker.stored[n]:
            yield f"a late copy of {name(me, n)} is {what}", stored
            continue
        yield f"{name(me, n)} is {what}", with_broker(stored, me, replies=broker.replies | {(n, free)})
        if state.left.losses:
            yield f"{name(me, n)} is {what}, the answer is lost", spent(stored, "losses")
            yield f"{name(me, n)} is lost", spent(gone, "losses")
    for put in sorted(state.fence_puts):
        session, n = put
        gone = state._replace(fence_puts=state.fence_puts - {put})
        free = state.wals[session][n] is None
        what = "stored" if free else "refused"
        yield f"FENCE at {name(session, n)} is {what}", with_slot(gone, session, n, FENCE) if free else gone
        if state.left.losses:
            yield f"FENCE at {name(session, n)} is lost", spent(gone, "losses")
