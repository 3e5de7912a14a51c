"""An async call reports every failure through its awaitable: it never raises before it is awaited."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine.client.client import AsyncClient

# Named so that they cannot: they do not wait, and answer at once.
AT_ONCE = {
    "send_nowait", "send_for", "submit", "statistics", "checkpoint", "check_open",
    "acknowledge_nowait", "acknowledge_cumulative_nowait", "acknowledge_asked", "asked",
}  # fmt: skip
# No coroutine functions, but what they return is awaited.
STARTED = {"send", "send_batch", "flush", "acknowledge", "acknowledge_cumulative", "negative_acknowledge"}
FACTORIES = {"producer", "stream_consumer", "queue_consumer", "checkpoint_consumer", "transaction", "join_transaction"}
INTERNAL = {"start"}  # for who makes them
KINDS = ("client", "admin", "producer", "stream_consumer", "queue_consumer", "checkpoint_consumer")
NOTHING = object()  # wrong as every argument


@pytest.fixture
async def objects(client: AsyncClient) -> dict[str, Any]:
    return {
        "client": client,
        "admin": client.admin,
        "producer": await client.producer("t"),
        "stream_consumer": await client.stream_consumer("t", "stream"),
        "queue_consumer": await client.queue_consumer("t", "queue"),
        "checkpoint_consumer": await client.checkpoint_consumer("t"),
    }


def methods(thing: object) -> dict[str, Callable[..., Any]]:
    """The public methods that are not known to answer at once, by name."""
    return {
        name: getattr(thing, name)
        for name, _ in inspect.getmembers(type(thing), inspect.isfunction)
        if not name.startswith("_") and name not in AT_ONCE | INTERNAL
    }


def is_awaited(name: str, method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method) or name in STARTED | FACTORIES


def wrong_arguments(method: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Something that is no good for every parameter."""
    parameters = [p for p in inspect.signature(method).parameters.values() if not p.name.startswith("_")]
    positional = [NOTHING for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional, {p.name: NOTHING for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_arguments_surface_in_the_awaitable(objects: dict[str, Any], kind: str):
    found = methods(objects[kind])
    waits = [name for name, method in found.items() if is_awaited(name, method)]
    assert waits
    for name in waits:
        positional, named = wrong_arguments(found[name])
        if not positional and not named:
            continue
        awaitable = found[name](*positional, **named)
        assert inspect.isawaitable(awaitable), f"{kind}.{name}"
        with pytest.raises(engine.EngineError):
            await awaitable


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_closed_says_so_in_the_awaitable(objects: dict[str, Any], kind: str):
    thing = objects[kind]
    await thing.close()
    for name, method in methods(thing).items():
        if not is_awaited(name, method) or name == "close":
            continue
        positional, _ = wrong_arguments(method)
        awaitable = method(*positional)
        assert inspect.isawaitable(awaitable), f"{kind}.{name}"
        if positional:
            with pytest.raises(engine.EngineError):
                await awaitable
        else:
            try:
                await awaitable
            except engine.EngineError:
                continue
    await thing.close()
