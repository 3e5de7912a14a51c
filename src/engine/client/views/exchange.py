"""`Exchange`: the requests and the replies of one client, each made when it is first used."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.client.base.options import consumer_options
from engine.client.views.requests import Requests, Responses

if TYPE_CHECKING:
    from engine.client.net.pool import Pool


class Exchange:
    """Loop thread only. `admin`: returns the client's AsyncAdmin."""

    def __init__(
        self, pool: Pool, rng: random.Random, make_name: Callable[[str], str], admin: Callable[[], Any]
    ) -> None:
        self._pool, self._rng, self._make_name, self._admin = pool, rng, make_name, admin

    @cached_property
    def requests(self) -> Requests:
        """What requests wait in."""
        return Requests(
            self._pool,
            self._rng.getrandbits,
            lambda keys: consumer_options(
                self._make_name, None, receive_queue_size="auto", create_topic=False, decryption_keys=keys
            ),
            lambda topic: self._admin().delete_topic(topic),
            lambda topic: self._admin().get_stats(topic),
        )

    @cached_property
    def responses(self) -> Responses:
        """What replies are sent by."""
        return Responses(self._pool, self._make_name)

    async def close(self) -> None:
        """End what waits, send what is left, and delete the topics of replies. Idempotent."""
        for part in ("requests", "responses"):
            if part in self.__dict__:
                await getattr(self, part).close()
