"""Runs a program on uvloop, the event loop that servers and portals use."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new uvloop loop, or asyncio's where uvloop does not support the platform."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run on new_event_loop(): SIGINT cancels `main`, and the loop is cleaned up at the end."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
