"""Invariants that are checked: what breaks one is noticed at the next step, costly ones where ENGINE_DEBUG=1 is set."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyroaring import BitMap64

from engine import checks
from engine._native.serve.waiters import Waiters
from engine.aio.semaphore import AsyncSemaphore
from engine.broker.delivery.delayed import Delays
from engine.broker.delivery.pending_acks import PendingAcks
from engine.broker.delivery.queue import QueueDispatcher
from engine.broker.pools.attachments import Attached, Attachments
from engine.broker.pools.outbound import OutboundMemory
from engine.broker.segment.reader import SegmentReader
from engine.metadata.ordered import OrderedSet

pytestmark = pytest.mark.usefixtures("costly")


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "COSTLY", True)


def broken(invariant: str) -> Any:
    return pytest.raises(AssertionError, match=f"broken invariant: .*{invariant}")


async def test_permits_add_up():
    semaphore = AsyncSemaphore(100)
    first, second = await semaphore.acquire(10), await semaphore.acquire(20)
    semaphore.release(first)
    semaphore.used += 1
    with broken("sum of permits"):
        semaphore.release(second)


def test_attachments_add_up():
    limits: Any = SimpleNamespace(attachments_max=9, attachments_per_connection_max=9)
    attachments = Attachments(limits)
    attached: Attached[str] = Attached(attachments)
    attached[1] = attached[2] = "x"
    del attached[1]
    assert attachments.used == 1
    attachments.used = 0
    with broken("than were attached"):
        attached.clear()


async def test_what_is_withheld_has_a_time():
    delays = Delays(lambda: 0, lambda offsets: None)
    delays.hold(BitMap64([1, 2]), 1_000)
    delays._sets[1_000].discard(2)
    with broken("in the set of a time"):
        delays.hold(BitMap64([3]), 2_000)
    delays.close()


async def test_a_sorted_set_is_in_order():
    ordered = OrderedSet([f"{i:04}" for i in range(600)])
    ordered.add("9998")
    assert ordered.between("0598", "z") == ["0598", "0599", "9998"]
    ordered.lasts[0] = "0400"
    ordered.add("9999")
    with broken("last items"):
        ordered.between("a", "z")
    twice = OrderedSet(["a", "c", "b"])  # not sorted, as it must be
    twice.add("d")
    with broken("in order"):
        twice.between("a", "z")


async def test_what_waits_for_peers_adds_up():
    memory = OutboundMemory(0)
    peer: Any = Mock(noted=0, stream=Mock(unsent_bytes=7))
    memory.note(peer)
    assert memory.used == peer.noted == 7
    peer.noted = 5
    with broken("sum over connections"):
        memory.note(peer)


async def test_a_reader_has_one_read_under_way():
    """Whether costly checks are made or not."""
    hosted: Any = SimpleNamespace(segment=SimpleNamespace(call_when_durable=Waiters().add))
    reader = SegmentReader(hosted, lambda block: None, lambda error: None)
    reader.wait(0)
    with broken("one read or wait"):
        reader.wait(0)
    reader.stop()
    reader.wait(0)
    reader.stop()


async def test_a_message_is_held_by_one_consumer():
    dispatcher: Any = QueueDispatcher.__new__(QueueDispatcher)
    dispatcher.consumers = [SimpleNamespace(unacknowledged=BitMap64([n])) for n in (1, 2)]
    dispatcher.replay = BitMap64([3])
    dispatcher.check_shares()
    dispatcher.replay.add(2)
    with broken("held by one consumer"):
        dispatcher.check_shares()


async def test_what_is_pending_is_claimed():
    pending: Any = object.__new__(PendingAcks)
    pending._claims = {n: SimpleNamespace(offsets=BitMap64([n])) for n in (1, 2)}
    pending.offsets, pending._overlaps = BitMap64([1, 2]), False
    pending._check()
    pending.offsets.add(3)
    with broken("what open transactions claim"):
        pending._check()
    pending._claims[1].offsets, pending.offsets = BitMap64([1, 2]), BitMap64([1, 2])
    with broken("by one transaction"):
        pending._check()
    pending._overlaps = True
    pending._check()


@pytest.mark.parametrize(("value", "costly"), [("1", True), ("0", False), (None, False)])
def test_the_environment_says_whether_costly_checks_are_made(value: str | None, costly: bool):
    environment = {name: text for name, text in os.environ.items() if name != "ENGINE_DEBUG"}
    environment |= {} if value is None else {"ENGINE_DEBUG": value}
    command = [sys.executable, "-O", "-c", "from engine import checks; print(checks.COSTLY); checks.check(False, 'x')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(costly)
    assert "AssertionError: broken invariant: x" in done.stderr, "cheap checks are made under -O too"
