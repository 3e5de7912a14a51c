"""`together`: the outcomes of several requests at once; the first error is raised alone, and ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results, in order."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
