"""The credit for messages of a queue consumer, as its options say."""

from __future__ import annotations

import asyncio

from engine._native.consume.permits import Permits
from engine.client.base.options import AUTO, ConsumerOptions


def permits_of(options: ConsumerOptions, loop: asyncio.AbstractEventLoop) -> Permits:
    """The credit for messages of a consumer with these options."""
    size = options.receive_queue_size
    return Permits(None if size == AUTO else size, loop.time)
