"""Retry topics and dead letters of the classic client of Java, which makes them itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.interop.scenes.java_world import JavaWorld
from tests.interop.scenes.world import scenario

DELAY_MS = 300


def _shown(message: Any) -> list[Any]:
    put_off = [message["properties"].get(name) for name in ("RECONSUMETIMES", "DELAY_TIME")]
    return [message["value"], message["key"], message["redelivered"], *put_off]


async def _put_off(w: JavaWorld, message: Any) -> None:
    await w.ask("classic_retry", "c", message=message["message"], delay_ms=DELAY_MS)


async def _refuse(w: JavaWorld, message: Any) -> None:
    await w.ask("classic_nack", "c", message=message["message"])


async def _dies(w: JavaWorld, retries: int, send_back: Callable[[JavaWorld, Any], Awaitable[None]]) -> None:
    """A message that is sent back once more than may be is a dead letter."""
    await w.classic_producer()
    await w.classic_consumer(retries=retries)
    await w.classic_consumer(name="dead", topic=f"{w.topic}-s-DLQ")
    await w.classic_send("bad", key="k")
    for _ in range(retries + 1):
        (message,) = await w.take(1, ack=False)
        w.note("came", _shown(message))
        await send_back(w, message)
    (letter,) = await w.take(1, "dead")
    w.note("letter", [letter["value"], letter["key"]])
    await w.quiet("more")


@scenario("redelivery")
async def a_message_that_is_put_off_comes_by_the_retry_topic(w: JavaWorld) -> None:
    await w.classic_producer()
    await w.classic_consumer(retries=3)
    await w.classic_send("late", key="k")
    await w.classic_send("next", key="k")
    late, other = await w.take(2, ack=False)
    await _put_off(w, late)
    await w.ask("classic_ack", "c", message=other["message"])
    (again,) = await w.take(1)
    w.note("first", [_shown(late), _shown(other)])
    w.note("again", _shown(again))
    await w.quiet("more")


@scenario("redelivery")
async def a_message_that_is_put_off_too_often_is_a_dead_letter(w: JavaWorld) -> None:
    await _dies(w, 2, _put_off)


@scenario("redelivery")
async def a_message_that_is_refused_too_often_is_a_dead_letter(w: JavaWorld) -> None:
    await _dies(w, 1, _refuse)
