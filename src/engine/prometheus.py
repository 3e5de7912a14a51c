"""`Collector`: the metrics of an embedded engine, or of a server, in a program's own registry of prometheus_client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from asyncio import _get_running_loop  # without an error outside of a loop
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as Base

from engine.client.client import AsyncClient
from engine.errors import EngineError, InvalidArgumentError, UnsupportedError
from engine.sync.client import Client

if TYPE_CHECKING:
    from prometheus_client import Metric

PROCESS = ("process_", "python_")  # the registry's own collectors say these of the program
LOOP_S_MAX = 3.0  # a scrape waits so long for the loop of an asynchronous client; Prometheus gives all of it 10 s

log = logging.getLogger(__name__)


class Collector(Base):
    """`REGISTRY.register(Collector(e))`: `e`: what engine.open(), open_async(), Client() or AsyncClient() gave.

    They are asked for at each scrape. A server that does not answer has no metrics then, and `engine_up` is 0. So it is
    when the loop of an asynchronous client has ended, does not run, or does not answer for 3 s.

    The collector of an asynchronous client is made on its loop, and scraped by another thread, such as that of
    `start_http_server()`; on the loop, where a scrape would wait for itself, it raises UnsupportedError. Raises
    InvalidArgumentError.
    """

    def __init__(self, client: Client | AsyncClient) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidArgumentError(
                "client must be an engine that is open, or a client: what engine.open(), engine.open_async(), "
                f"engine.Client() or engine.AsyncClient() gave, got {type(client).__name__}"
            )
        self._client = client
        self._loop = _loop_of(client) if isinstance(client, AsyncClient) else None

    def describe(self) -> list[Metric]:
        """Nothing is asked for when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of metrics. See docs/metrics.md."""
        from prometheus_client.core import GaugeMetricFamily

        if self._loop is not None and _get_running_loop() is self._loop:
            raise UnsupportedError(
                "the metrics of an asynchronous client cannot be collected on its event loop, which has to answer "
                "meanwhile: scrape from another thread (prometheus_client.start_http_server(), asyncio.to_thread())"
            )
        families = self._families()
        yield GaugeMetricFamily("engine_up", "Whether the broker has answered", 1.0 if families else 0.0)
        yield from families

    def _families(self) -> list[Metric]:
        """What the broker says of itself; none: no answer. What fails here must not cost a program its own metrics."""
        client = self._client
        try:
            if isinstance(client, Client):
                text = client.admin.get_metrics()
            else:
                assert self._loop is not None
                text = _asked(client, self._loop)
            found = text_string_to_metric_families(text)
            return [family for family in found if not family.name.startswith(PROCESS)]
        except EngineError:
            return []
        except Exception:
            log.warning("the metrics of the broker could not be collected", exc_info=True)
            return []


def _loop_of(client: AsyncClient) -> asyncio.AbstractEventLoop:
    """Where it has done something, or the one that runs here. Raises InvalidArgumentError."""
    running, known = _get_running_loop(), client._pool.loop
    if known is not None and running not in (None, known):
        raise InvalidArgumentError("client must be given on its event loop, got another loop that runs here")
    if (loop := known or running) is None:
        raise InvalidArgumentError(
            f"client must be given on its event loop, as it is an {type(client).__name__}, got no running loop; or "
            "pass a blocking engine.Client"
        )
    return loop


def _asked(client: AsyncClient, loop: asyncio.AbstractEventLoop) -> str:
    """Through the client's loop, from another thread; "": the loop does not run, or does not answer in time."""
    if not loop.is_running():
        return ""

    async def ask() -> str:
        return await client.admin.get_metrics()

    asking = ask()
    try:
        future = asyncio.run_coroutine_threadsafe(asking, loop)
    except RuntimeError:  # the loop is closed
        asking.close()
        return ""
    try:
        return future.result(LOOP_S_MAX)
    except TimeoutError:
        future.cancel()
        return ""
    except concurrent.futures.CancelledError:  # the loop has ended meanwhile
        return ""
