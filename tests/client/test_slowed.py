"""A producer that a limit slows: the time of what waits for credit does not run."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import TimeoutError
from engine.testing.loop import run_virtual
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

TIMEOUT_S = 2.0


def grant(broker: FakeBroker, messages: int) -> None:
    """Credit for the only producer."""
    connection = broker.last
    ident = next(iter(connection.producers))
    connection.stream.send(Command.PUBLISH_CREDIT, {"producer_id": ident, "messages": messages})


@pytest.mark.parametrize("loses_its_connection", [False, True])
def test_what_waits_for_credit_is_not_late_and_has_the_whole_time_once_it_is_sent(loses_its_connection: bool) -> None:
    async def main() -> None:
        broker = FakeBroker()
        async with broker.client() as client, await client.producer("t", send_timeout=TIMEOUT_S) as producer:
            await producer.send(b"attached")
            grant(broker, 0)
            await broker.settle()
            slowed = asyncio.ensure_future(producer.send(b"slowed"))
            await asyncio.sleep(10 * TIMEOUT_S)
            assert not slowed.done()
            broker.holding = True
            if loses_its_connection:
                broker.cut()  # the next one gives it no limit
            else:
                grant(broker, 1)
            await asyncio.sleep(0.9 * TIMEOUT_S)
            assert not slowed.done()
            assert len(broker.log[0]) == 2
            broker.release()
            await slowed

    run_virtual(main())


def test_what_was_sent_at_last_and_is_not_answered_is_late() -> None:
    async def main() -> None:
        broker = FakeBroker()
        async with broker.client() as client, await client.producer("t", send_timeout=TIMEOUT_S) as producer:
            await producer.send(b"attached")
            grant(broker, 0)
            await broker.settle()
            slowed = asyncio.ensure_future(producer.send(b"slowed"))
            await asyncio.sleep(10 * TIMEOUT_S)
            broker.holding = True
            grant(broker, 1)
            with pytest.raises(TimeoutError, match="not acknowledged"):
                await slowed

    run_virtual(main())
