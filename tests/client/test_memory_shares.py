"""How a client's memory limit is divided, and what a consumer's windows are made of."""

from __future__ import annotations

from typing import Any

import pytest

from engine._native.consume.entry_queue import EntryQueue
from engine.client.base.memory import WINDOW_MIN, ClientMemory
from engine.client.consume.credit import Budget, Gate
from engine.limits import MIB, RECEIVE_QUEUE_BYTES


@pytest.mark.parametrize(
    ("producers", "consumers", "sending", "window"),
    [
        (0, 0, 256 * MIB, RECEIVE_QUEUE_BYTES),
        (1000, 0, 256 * MIB, RECEIVE_QUEUE_BYTES),
        (0, 1, 128 * MIB, RECEIVE_QUEUE_BYTES),
        (0, 8, 128 * MIB, 16 * MIB),
        (1, 1, 128 * MIB, RECEIVE_QUEUE_BYTES),
        (1, 4, 128 * MIB, 16 * MIB),
        (1000, 1024, 128 * MIB, 64 * MIB // 1024),
        (1, 5000, 128 * MIB, WINDOW_MIN),
    ],
)
def test_the_limit_is_divided_among_those_that_are_there(producers: int, consumers: int, sending: int, window: int):
    memory = ClientMemory(256 * MIB)
    left = [memory.producer_came() for _ in range(producers)] + [memory.consumer_came() for _ in range(consumers)]
    assert (memory.sending.limit, memory.window) == (sending, window)
    for leave in left:
        leave()
        leave()  # says it once
    assert (memory.sending.limit, memory.window) == (256 * MIB, RECEIVE_QUEUE_BYTES)


@pytest.mark.parametrize("kind", [Budget, Gate])
def test_the_parts_of_a_window_follow_the_clients(kind: type[Budget]):
    memory = ClientMemory(64 * MIB)
    leave = memory.consumer_came()
    budget = kind((1000, RECEIVE_QUEUE_BYTES), memory=memory)
    budget.share().set(held=0, attachments=4)
    before = budget.state
    assert budget.part == (250, 8 * MIB)
    others = [memory.consumer_came() for _ in range(31)]
    assert budget.state != before
    assert budget.part == (250, MIB // 4)
    for each in (leave, *others):
        each()
    assert budget.part == (250, 8 * MIB)


@pytest.mark.parametrize("call", ["opened", "forget"])
def test_what_is_decompressed_is_counted_whichever_thread_does_it(call: str):
    """Another thread may have its turn at every call."""
    memory = ClientMemory(256 * MIB)
    one, other = (EntryQueue("t", None) for _ in range(2))
    memory.opened(one, 40)

    class Switching(dict[EntryQueue, int]):
        def pop(self, *arguments: Any) -> Any:
            memory._opened = dict(self)
            memory.opened(other, 100)
            self.update(memory._opened)
            memory._opened = self
            return super().pop(*arguments)

    memory._opened = Switching(memory._opened)
    if call == "opened":
        memory.opened(one, 50)
    else:
        memory.forget(one)
    assert memory._opened_bytes == sum(memory._opened.values()) == (150 if call == "opened" else 100)
