"""Whose turn it is among topics, what ids know of the others, and how a budget is cut."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.client.consume.credit import Budget, Gate
from engine.client.many.history import History
from engine.client.many.turns import TURN_MESSAGES, StreamTurns, TopicTurns
from engine.model.positions import TopicPositions


class Member:
    """Of one topic with one segment; a message is its id."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.queue: deque[int] = deque()
        self.offset = 0
        self.delivered: dict[int, int] = {}
        self.make_id: Any = None
        self.session = SimpleNamespace(known=True, layout=SimpleNamespace(created_ms=7))

    def push(self, count: int) -> None:
        self.queue.extend(range(self.offset, self.offset + count))
        self.offset += count

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def positions(self) -> dict[int, int]:
        return dict(self.delivered)

    def identify(self, make_id: Any) -> None:
        self.make_id = make_id

    def take_now(self, max_messages: int | None, max_bytes: int) -> Any:
        if not self.queue:
            return None
        count = 1 if max_messages is None else min(max_messages, len(self.queue))
        offset = [self.queue.popleft() for _ in range(count)][-1]
        self.delivered[0] = offset + 1
        made, positions = self.make_id, dict(self.delivered)
        return self.topic, offset, None if made is None else lambda: made(0, offset, positions)


def line_of(count: int, kind: Any = TopicTurns) -> tuple[Any, list[Member]]:
    members = [Member(f"t{i}") for i in range(count)]
    return kind(lambda member: None), members


def test_all_have_the_same_while_all_have_enough():
    line, members = line_of(5)
    for member in members:
        member.push(10 * TURN_MESSAGES)
        line.join(member)
        line.join(member)
    taken = Counter(line.take(None, -1)[0] for _ in range(10 * TURN_MESSAGES))
    assert set(taken.values()) == {2 * TURN_MESSAGES}
    batches = [line.take(3, -1)[0] for _ in range(10)]
    assert set(Counter(batches).values()) == {2}


def test_who_has_nothing_gives_way_and_comes_back_last():
    line, (a, b) = line_of(2)
    ended: list[Any] = []
    line._exhausted = ended.append
    a.push(1)
    b.push(2)
    line.join(a)
    line.join(b)
    assert line.waiting == 3
    assert [line.take(None, -1)[0] for _ in range(2)] == ["t0", "t1"]
    assert ended == [a]
    a.push(1)
    line.join(a)
    assert [line.take(None, -1)[0] for _ in range(2)] == ["t1", "t0"]
    assert line.take(None, -1) is None
    assert line.take(10, -1) is None


def test_who_leaves_in_its_turn_gives_nothing_more():
    line, (a, b) = line_of(2, StreamTurns)
    for member in (a, b):
        member.push(5)
        line.join(member)
    line.take(None, -1)
    line.leave(a)
    line.leave(a)
    _, _, make_id = line.take(None, -1)
    assert set(make_id().vectors) == {"t1"}
    line.clear()
    assert line.take(None, -1) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(1, 250)),
        st.tuples(st.just("take"), st.just(0), st.integers(1, 150)),
        st.tuples(st.just("batch"), st.just(0), st.integers(1, 50)),
        st.tuples(st.just("rewind"), st.integers(0, 3), st.integers(0, 5)),
    ),
    max_size=25,
)


@given(STEPS)
def test_semantics_11_an_id_knows_exactly_what_was_delivered_before_it(steps):
    """Against a model that copies everything at every delivery; ids are made at the end, in both orders."""
    line, members = line_of(4, StreamTurns)
    delivered: dict[str, int] = {}
    made: list[tuple[Any, dict[str, int]]] = []
    for what, who, count in steps:
        member = members[who]
        if what == "push":
            member.push(count)
            line.join(member)
        elif what == "rewind" and member.delivered:
            member.delivered[0] = delivered[member.topic] = min(member.delivered[0], count)
            line.interrupt(member)
        for _ in range(count if what == "take" else what == "batch"):
            found = line.take(None if what == "take" else count, -1)
            if found is not None:
                topic, offset, make_id = found
                delivered[topic] = offset + 1
                made.append((make_id, dict(delivered)))
    for make_id, expected in [*made, *reversed(made)]:
        vectors = make_id().vectors
        assert {topic: v.positions[0] for topic, v in vectors.items() if v.positions} == expected
        assert all(v.created_ms == 7 for v in vectors.values())


def test_a_history_forgets_what_nobody_holds():
    history = History()
    marks = []
    for i in range(10_000):
        marks.append(history.mark())
        history.note(f"t{i % 3}", TopicPositions(0, {0: i}))
    assert len({id(chapter) for chapter, _ in marks}) > 5
    assert max(step for _, step in marks) < 2_000
    for i in (0, 1, 2, 5_000, 9_999):
        chapter, step = marks[i]
        assert {t: v.positions[0] for t, v in chapter.before(step).items()} == {
            f"t{n % 3}": n for n in range(max(i - 3, 0), i)
        }


class Window:
    """An attachment as a budget sees it."""

    connected, draining = True, False

    def __init__(self, window: tuple[int, int]) -> None:
        self.window: tuple[int, int] | None = window
        self.granted = (0, 0)

    def grant(self, messages: int, size: int) -> None:
        self.granted = self.granted[0] + messages, self.granted[1] + size


def test_a_budget_is_cut_into_as_many_parts_as_there_will_be():
    budget = Budget((1000, 1 << 20), size_min=1, expected=4)
    assert budget.part == (250, 1 << 18)
    share, other = budget.share(), budget.share()
    share.set(held=0, attachments=7)
    other.set(held=0, attachments=3)
    assert budget.shares == 10
    assert budget.part == (100, (1 << 20) // 10)
    share.set(held=0, attachments=0)
    other.set(held=0, attachments=0)
    assert budget.part == (250, 1 << 18)
    assert Budget((3, 10), size_min=1, expected=100).part == (1, 1)


def test_a_window_that_is_too_wide_shrinks_by_what_is_consumed():
    budget = Budget((100, 1000), size_min=1)
    attachment = Window((100, 1000))
    share = budget.share()
    share.set(held=0, attachments=4)  # others came: 25 messages and 250 bytes are its part
    budget.regrant(attachment, 30, 100)  # type: ignore[arg-type]
    assert (attachment.granted, attachment.window) == ((0, 0), (70, 900))
    budget.regrant(attachment, 60, 800)  # type: ignore[arg-type]
    assert (attachment.granted, attachment.window) == ((15, 150), (25, 250))
    share.set(held=0, attachments=1)
    assert budget.widen([attachment]) == (100, 1000)  # type: ignore[list-item]
    assert attachment.granted == (90, 900)


async def test_a_gate_lets_few_in_at_once_and_nobody_while_all_is_held():
    gate = Gate((1000, 10_000), expected=100)
    attachments = [Window((0, 0)) for _ in range(40)]
    for attachment in attachments:
        gate.admit(attachment)  # type: ignore[arg-type]
    waited = [a for a in attachments if a.granted == (0, 0)]
    assert 0 < len(waited) < 40
    share = gate.share()
    share.set(held=10_000, attachments=40)  # those that were let in have filled it
    gate._go_on()
    assert all(a.granted == (0, 0) for a in waited)
    waited[0].window = None  # it was lost meanwhile
    share.set(held=9_999, attachments=40)
    for _ in range(3):
        gate._go_on()
    assert all(a.granted == (10, 100) for a in waited[1:])
    assert waited[0].granted == (0, 0)
    gate.admit(waited[0])  # type: ignore[arg-type]
    gate.regrant(attachments[0], 1, 50)  # type: ignore[arg-type]
    share.set(held=0, attachments=40)
    gate._go_on()
    assert attachments[0].granted == (11, 150)
    assert waited[0].granted == (10, 100)
