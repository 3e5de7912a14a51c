"""What a producer has in flight, native, beside its plain model: random lives agree in all that can be seen."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.produce.outstanding import Outstanding
from engine.errors import EngineError, StorageError
from engine.testing.loop import run_virtual
from tests.client.sending_kit import Entry, Flying
from tests.reference.outstanding_reference import PIECE, PlainOutstanding

LOST = StorageError("the disk is gone")

# What to do, and with which of what is in flight.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "acknowledge", "acknowledge", "many", "split", "flush", "fail", "again"]),
        st.integers(0, 7),
        st.sampled_from([-1, 0, 50, 100, 2**40]),
    ),
    max_size=40,
)


class Life:
    """Both, and every step in both."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.flying, self.plain = Flying(), PlainOutstanding()
        self.entries: dict[int, Entry] = {}
        self.under_way: list[int] = []
        self.gone: list[int] = []
        self.futures: dict[tuple[int, int], asyncio.Future[object]] = {}
        self.flushes: list[asyncio.Future[None]] = []
        self.sequence = 0

    def entry(self, count: int, pending: int) -> Entry:
        waiters = [(self.loop.create_future(), index) for index in range(count)]
        made = Entry(self.sequence, count, waiters, pending=pending)
        self.futures.update({(self.sequence, index): future for future, index in waiters})
        self.entries[self.sequence] = made
        self.sequence += count
        return made

    def step(self, what: str, at: int, offset: int) -> None:
        if what == "enter":
            made = [self.entry(count, 10 * count) for count in range(1, 2 + at % 3)]
            self.flying.all_entered(*made)
            self.plain.enter([(e.first_sequence, e.count, e.pending) for e in made])
            self.plain.all_entered(self.sequence)
            self.under_way += [e.first_sequence for e in made]
        elif what == "flush":
            self.flushes.append(self.flying.in_flight.flushed())
            self.plain.flush()
        elif what == "again" and self.gone:
            self.acknowledge([self.gone[at % len(self.gone)]], offset)
        elif self.under_way:
            name = self.under_way[at % len(self.under_way)]
            self.leave(what, name, at, offset)

    def leave(self, what: str, name: int, at: int, offset: int) -> None:
        if what == "many":
            names, self.under_way = self.under_way[: at + 1], self.under_way[at + 1 :]
            self.acknowledge(names, offset)
            return
        self.under_way.remove(name)
        if what == "split" and self.entries[name].count > 1:
            whole = self.entries[name]
            pieces = [
                Entry(self.sequence + i, 1, [(future, 0)], pending=PIECE)
                for i, (future, _) in enumerate(whole.waiters or ())
            ]
            self.sequence += len(pieces)
            for piece in pieces:
                self.entries[piece.first_sequence] = piece
                self.futures[piece.first_sequence, 0] = piece.waiters[0][0]  # type: ignore[index]
            self.flying.in_flight.replace(whole, pieces)  # type: ignore[arg-type]
            self.plain.split(name, [piece.first_sequence for piece in pieces])
            self.under_way += [piece.first_sequence for piece in pieces]
        elif what == "fail" and any(entry.name == name for entry in self.plain.entries):
            self.flying.refuse(LOST, self.entries[name])
            self.plain.fail(name)
            self.gone.append(name)
        else:
            self.acknowledge([name], offset)

    def acknowledge(self, names: list[int], offset: int) -> None:
        entries = [self.entries[name] for name in names]
        self.flying.in_flight.acknowledge(entries, [offset] * len(names), 60)  # type: ignore[arg-type]
        for name in names:
            self.plain.acknowledge(name, offset, 60, {name: self.entries[name].count})
        self.gone += names

    def compare(self) -> None:
        native, plain = self.flying.in_flight, self.plain
        assert len(native) == len(plain.entries)
        assert native.flights == plain.flights
        assert native.window.used == plain.used
        assert self.flying.batcher.floor == plain.floor
        assert native.messages_acknowledged == plain.acknowledged
        assert native.messages_duplicate == plain.duplicates
        assert [future.done() for future in self.flushes] == [plain.flushed(at) for at in range(len(self.flushes))]
        for key, offset in plain.offsets.items():
            assert self.futures[key].result().offset == offset  # type: ignore[attr-defined]


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_random_lives_agree_with_the_model(steps: list[tuple[str, int, int]]):
    async def live() -> None:
        life = Life()
        for what, at, offset in steps:
            life.step(what, at, offset)
            life.compare()
        life.flying.in_flight.stop()
        for future in [*life.flushes, *life.futures.values()]:
            if future.done():
                future.exception()

    run_virtual(live())


async def test_a_receipt_without_an_offset_for_each_entry_is_refused_before_anything_leaves():
    flying, entry = Flying(), Entry(0)
    flying.enter(entry)
    with pytest.raises(EngineError, match="an offset for each entry, got 0 for 1"):
        flying.in_flight.acknowledge([entry], [])  # type: ignore[list-item]
    assert len(flying.in_flight) == 1
    flying.in_flight.stop()


def test_deadlines_never_fall():
    class Clock:
        now = 5.0

        def time(self) -> float:
            return self.now

        def call_at(self, when: float, callback: object) -> None: ...

    class Window:
        used = acknowledged = 0
        measured = None

    clock = Clock()
    flown = Outstanding(None, None, Window(), clock, 1.0, lambda segment, offset: offset)  # type: ignore[arg-type]
    flown.enter([Entry(0)])  # type: ignore[list-item]
    clock.now = 4.0
    with pytest.raises(EngineError, match="never fall"):
        flown.enter([Entry(1)])  # type: ignore[list-item]
