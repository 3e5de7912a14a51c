"""`Console`: the pages over HTTP, and the sessions of people that are logged in.

A page is whole as it is served. Its script asks for the part between the page's `<main>` marks once a second and
changes only what differs, so that boxes of the drawing move and a text that is being typed stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment, PackageLoader

from engine.broker.admin.http import HttpDoor
from engine.client.client import AsyncClient
from engine.console import views
from engine.console.dag import svg
from engine.console.source import ACTS, Source
from engine.errors import AuthenticationError, AuthorizationError, EngineError, InvalidArgumentError, NotFoundError
from engine.model.units import size_text

COOKIE = "engine-console"
SESSIONS_MAX = 100  # logged in at a time; a further login ends the oldest session
TOPICS_ON_OVERVIEW = 10
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
_TYPES = {"console.css": "text/css", "console.js": "text/javascript"}


class Console:
    """Serves the pages until it is closed.

    `client`: makes a client that acts with a token, or with none. `new_session`: an unguessable text.
    Where the broker asks for no token, or the command has one, there is no login.
    """

    def __init__(
        self, client: Callable[[str | None], Awaitable[AsyncClient]], new_session: Callable[[], str], about: str
    ) -> None:
        self._client = client
        self._new_session = new_session
        self._about = about
        self._without: Source | None = None  # that of visitors without a session
        self._sessions: dict[str, Source] = {}
        self._pages = Environment(loader=PackageLoader("engine.console"), autoescape=True)
        self._pages.filters |= {"size": size_text, "number": lambda n: f"{n:,.0f}"}
        self._assets = {name: files("engine.console").joinpath("assets", name).read_bytes() for name in _TYPES}
        application = web.Application(middlewares=[_answered], client_max_size=1 << 16)
        application.add_routes(
            [
                web.get("/", self._overview),
                web.get("/topics", self._topics),
                web.get("/topic", self._topic),
                web.get("/transactions", self._transactions),
                web.get("/login", self._login_page),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.post("/acts/{act}", self._act),
                web.get("/assets/{name}", self._asset),
            ]
        )
        self._door = HttpDoor(application)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Serve; (host, port). Raises ConnectError."""
        self._without = Source(await self._client(None))
        return await self._door.listen(host, port)

    async def close(self) -> None:
        """Finish requests in progress, and close all clients."""
        await self._door.close()
        for source in [*self._sessions.values(), self._without]:
            if source is not None:
                await source.close()
        self._sessions.clear()

    def _source(self, request: web.Request) -> Source:
        assert self._without is not None
        return self._sessions.get(request.cookies.get(COOKIE, ""), self._without)

    def _page(self, request: web.Request, name: str, **facts: Any) -> web.Response:
        logged_in = request.cookies.get(COOKIE) in self._sessions
        page = self._pages.get_template(f"{name}.html")
        text = page.render(page=name, about=self._about, logged_in=logged_in, quote=quote, **facts)
        return web.Response(text=text, content_type="text/html")

    async def _overview(self, request: web.Request) -> web.Response:
        source = self._source(request)
        page = await source.topics()
        brokers, why = await _or_why(source.brokers())
        rows = page.rows[:TOPICS_ON_OVERVIEW]
        behind = [line for line in rows if line.backlog]
        return self._page(request, "overview", topics=page, behind=behind, brokers=brokers or [], why=why)

    async def _topics(self, request: web.Request) -> web.Response:
        asked = request.query
        sort = asked.get("sort", "backlog")
        number = asked.get("page", "1")
        if sort not in views.SORTS:
            raise InvalidArgumentError(f"sort must be one of {', '.join(views.SORTS)}, got {sort!r:.40}")
        if not number.isdecimal() or len(number) > 9:
            raise InvalidArgumentError(f"page must be a number, got {number!r:.40}")
        text = asked.get("text", "")
        found = await self._source(request).topics(text, sort, int(number))
        return self._page(request, "topics", topics=found, text=text, sort=sort, sorts=views.SORTS)

    async def _topic(self, request: web.Request) -> web.Response:
        found = await self._source(request).topic(request.query.get("name", ""))
        active = sorted((one for one in found.segments if one.active), key=lambda one: one.start)
        following = {a.ident: b.ident for a, b in pairwise(active)}
        return self._page(
            request, "topic", topic=found, active=active, following=following, picture=svg(found.segments)
        )

    async def _transactions(self, request: web.Request) -> web.Response:
        return self._page(request, "transactions", found=await self._source(request).transactions())

    async def _login_page(self, request: web.Request) -> web.Response:
        return self._page(request, "login")

    async def _login(self, request: web.Request) -> web.Response:
        token = (await _json(request)).get("token")
        if not isinstance(token, str) or not token.strip():
            raise InvalidArgumentError("token must be text, got none")
        client = await self._client(token.strip())
        try:
            await client.connect()
        except BaseException:
            await client.close()
            raise
        while len(self._sessions) >= SESSIONS_MAX:
            await self._sessions.pop(next(iter(self._sessions))).close()
        session = self._new_session()
        self._sessions[session] = Source(client)
        response = web.json_response({})
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict")
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        source = self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        if source is not None:
            await source.close()
        response = web.json_response({})
        response.del_cookie(COOKIE)
        return response

    async def _act(self, request: web.Request) -> web.Response:
        act = request.match_info["act"]
        if act not in ACTS:
            raise NotFoundError(f"there is no act {act!r:.40}")
        fields = await _json(request)
        try:
            await self._source(request).act(act, fields)
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{act} must have all of its fields, got {sorted(fields)}") from e
        return web.json_response({})

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._assets:
            raise web.HTTPNotFound
        return web.Response(body=self._assets[name], content_type=_TYPES[name], charset="utf-8")


async def _or_why(asked: Awaitable[Any]) -> tuple[Any, str]:
    """What it answers, or why this person does not see it."""
    try:
        return await asked, ""
    except AuthorizationError as e:
        return None, str(e)


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        found = await request.json()
    except ValueError as e:
        raise InvalidArgumentError(f"the body is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"the body must be an object, got {type(found).__name__}")
    return found


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send people who need a token to the login; say to a browser what a page lacks; forbid other sites' content."""
    try:
        response = await handler(request)
    except AuthenticationError:
        if request.method != "GET":
            raise
        return web.Response(status=303, headers={"Location": "/login"})
    except EngineError as e:
        if request.method != "GET":
            raise
        missing = isinstance(e, NotFoundError)
        response = web.Response(
            text=str(e), status=404 if missing else 403 if isinstance(e, AuthorizationError) else 502
        )
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    return response
