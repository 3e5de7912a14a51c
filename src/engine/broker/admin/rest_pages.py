"""Pages of the admin API about the broker itself, served at any time: API description, metrics, health."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.broker.admin.openapi import openapi
from engine.broker.admin.ports import Served
from engine.broker.metrics.catalogue import metrics_page
from engine.broker.metrics.health import unready
from engine.errors import StorageError
from engine.model.admin_broker_operations import GET_DESCRIPTION, GET_HEALTH, GET_METRICS, GET_READINESS, GET_WELCOME
from engine.model.admin_requests import Operation


def page_handlers(broker: Served) -> dict[Operation[Any], Handler]:
    """The handlers of the operations AT_ANY_TIME."""
    pages = _Pages(broker)
    return {
        GET_WELCOME: pages.welcome,
        GET_DESCRIPTION: pages.openapi,
        GET_METRICS: pages.metrics,
        GET_HEALTH: pages.health,
        GET_READINESS: pages.ready,
    }


def welcome(version: str, service_url: str) -> dict[str, str]:
    """The answer of `GET /`."""
    return {
        "product": "engine",
        "version": version,
        "health": GET_HEALTH.path,
        "ready": GET_READINESS.path,
        "metrics": GET_METRICS.path,
        "openapi": GET_DESCRIPTION.path,
        "console": f"engine console --url {service_url}",
    }


def welcome_page(found: Mapping[str, str]) -> str:
    """The same as HTML."""
    links = ", ".join(f'<a href="{found[name]}">{name}</a>' for name in ("health", "ready", "metrics", "openapi"))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Engine</title>'
        "<style>:root{color-scheme:light dark}body{font:15px/1.6 system-ui,sans-serif;margin:3em}</style>"
        f"<h1>Engine {escape(found['version'])}</h1><p>The admin API of a broker: {links}.</p>"
        f"<p>The console shows it in a browser: <code>{escape(found['console'])}</code></p></html>"
    )


class _Pages:
    """These are also answered before start() and while the broker is closing."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    async def welcome(self, request: web.Request) -> web.Response:
        """What is served here; a page for a browser, JSON for programs."""
        found = welcome("" if self._broker.rights.on else version("engine"), self._broker.service_url)
        headers = {"Vary": "Accept", "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        if "text/html" not in request.headers.get("Accept", ""):
            return web.json_response(found, headers=headers)
        return web.Response(text=welcome_page(found), content_type="text/html", headers=headers)

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi(str(request.url.origin())))

    async def metrics(self, request: web.Request) -> web.Response:
        text, kind = await metrics_page(self._broker, request.headers.get("Accept", ""))
        return web.Response(text=text, headers={"Content-Type": kind, "Vary": "Accept"})

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
