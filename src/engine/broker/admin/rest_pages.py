"""Pages of the admin API about the broker itself, served at any time: API description, metrics, health."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.broker.admin.openapi import openapi
from engine.broker.admin.ports import Served
from engine.broker.metrics.catalogue import metrics_page
from engine.broker.metrics.exposition import METRICS_TYPE
from engine.broker.metrics.health import unready
from engine.errors import StorageError
from engine.model.admin_broker_operations import GET_DESCRIPTION, GET_HEALTH, GET_METRICS, GET_READINESS
from engine.model.admin_requests import Operation


def page_handlers(broker: Served) -> dict[Operation[Any], Handler]:
    """The handlers of the operations AT_ANY_TIME."""
    pages = _Pages(broker)
    return {
        GET_DESCRIPTION: pages.openapi,
        GET_METRICS: pages.metrics,
        GET_HEALTH: pages.health,
        GET_READINESS: pages.ready,
    }


class _Pages:
    """These are also answered before start() and while the broker is closing."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi(str(request.url.origin())))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=await metrics_page(self._broker), headers={"Content-Type": METRICS_TYPE})

    async def health(self, request: web.Request) -> web.Response:
        """Liveness; 503 if only a restart can help."""
        broker = self._broker
        if broker.trouble is not None:
            raise StorageError("only a restart helps" if broker.rights.on else broker.trouble)
        status = "closing" if broker.closing else "ok" if broker.started else "starting"
        return web.json_response({"status": status, "broker": "" if broker.rights.on else broker.service_url})

    async def ready(self, request: web.Request) -> web.Response:
        """Readiness, with the reasons where the broker is not ready."""
        reasons = [{"what": reason.what, "why": reason.why} for reason in unready(self._broker)]
        body = {"ready": not reasons, "broker": self._broker.service_url, "reasons": reasons}
        if self._broker.rights.on:  # a caller without a token learns yes or no
            body |= {"broker": "", "reasons": []}
        return web.json_response(body, status=503 if reasons else 200)
