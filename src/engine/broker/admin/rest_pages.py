"""What the admin API says of the broker itself: its description, metrics, health, limits that change at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from engine.broker.admin.openapi import openapi
from engine.broker.metrics.catalogue import metrics_page
from engine.broker.metrics.exposition import METRICS_TYPE
from engine.broker.metrics.health import unready
from engine.errors import StorageError

if TYPE_CHECKING:
    from engine.broker.server import Broker

HEALTH = "/health"
READY = "/ready"
METRICS = "/metrics"
OPENAPI = "/openapi.json"
CONFIGURATION = "/admin/v2/brokers/configuration"

WITHOUT_TOKEN = (HEALTH, READY)
AT_ANY_TIME = (HEALTH, READY, METRICS, OPENAPI)  # also while the broker starts, or closes


def page_routes(broker: Broker) -> list[web.RouteDef]:
    """All of them."""
    pages, limits = _Pages(broker), _Limits(broker)
    return [
        web.get(OPENAPI, pages.openapi),
        web.get(METRICS, pages.metrics),
        web.get(HEALTH, pages.health),
        web.get(READY, pages.ready),
        web.get(CONFIGURATION, limits.names),
        web.get(CONFIGURATION + "/values", limits.values),
        web.get(CONFIGURATION + "/runtime", limits.runtime),
        web.post(CONFIGURATION + "/{name}/{value}", limits.set),
        web.delete(CONFIGURATION + "/{name}", limits.unset),
    ]


class _Pages:
    """Answered as long as the process can."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi(str(request.url.origin())))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=await metrics_page(self._broker), headers={"Content-Type": METRICS_TYPE})

    async def health(self, request: web.Request) -> web.Response:
        """Whether it lives: 503 says that only a restart helps."""
        broker = self._broker
        if broker.trouble is not None:
            raise StorageError(broker.trouble)
        status = "closing" if broker.closing else "ok" if broker.started else "starting"
        return web.json_response({"status": status, "broker": broker.service_url})

    async def ready(self, request: web.Request) -> web.Response:
        """Whether to send work here."""
        reasons = [{"what": reason.what, "why": reason.why} for reason in unready(self._broker)]
        body = {"ready": not reasons, "broker": self._broker.service_url, "reasons": reasons}
        return web.json_response(body, status=503 if reasons else 200)


class _Limits:
    """What operators set at run time, for all brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def names(self, request: web.Request) -> web.Response:
        return web.json_response(self._broker.dynamic.names())

    async def values(self, request: web.Request) -> web.Response:
        return web.json_response(self._broker.dynamic.values())

    async def runtime(self, request: web.Request) -> web.Response:
        return web.json_response(self._broker.dynamic.runtime())

    async def set(self, request: web.Request) -> web.Response:
        await self._broker.dynamic.set(request.match_info["name"], request.match_info["value"])
        return web.Response(status=204)

    async def unset(self, request: web.Request) -> web.Response:
        await self._broker.dynamic.unset(request.match_info["name"])
        return web.Response(status=204)
