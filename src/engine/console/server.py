"""`Console`: the pages over HTTP, and the sessions of people that are logged in.

A page is whole as it is served. Its script asks for the part between the page's `<main>` marks once a second and
changes only what differs, so that boxes of the drawing move and a text that is being typed stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from importlib.resources import files
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment, PackageLoader

from engine.broker.admin.http import HttpDoor
from engine.broker.admin.statuses import STATUSES
from engine.broker.rights.audit import Audit
from engine.broker.rights.need import on_topic
from engine.broker.settings.attempts import Attempts
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.console import views
from engine.console.acts import ACTS
from engine.console.dag import svg
from engine.console.letters import is_dead_letter_topic
from engine.console.messages import MessagePage, Wanted
from engine.console.source import Source
from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    TooManyRequestsError,
)
from engine.model.redelivery import DEAD_LETTER_SUFFIX
from engine.model.rights import CLUSTER
from engine.model.units import size_text

COOKIE = "engine-console"
LOGINS_MAX = 8  # under way at a time, each until the broker has answered
SESSIONS_MAX = 100  # logged in at a time; a further login ends the oldest session
TOPICS_ON_OVERVIEW = 10
STILL = ("login", "messages", "letters")  # pages that do not follow the broker: each look is a reading
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
_TYPES = {"console.css": "text/css", "console.js": "text/javascript"}


class Console:
    """Serves the pages until it is closed.

    `client`: makes a client that acts with a token, or with none. `new_session`: an unguessable text.
    `key`: where the console has rights of its own, by a token of the command for instance, a text that a visitor has to
    show: any user of this machine reaches its address. The link that the command prints shows it for a browser. Wrong
    ones are counted, logged and answered late, as a broker does with tokens; the right one waits for none of them.
    Without a key, a visitor has what the broker gives without a token, and logs in with one. A broker answers a false
    token late, and checks none of an address that has PENDING_MAX such answers to come. All logins have the console's
    address, so it has fewer of them under way: guesses here do not shut out people who are logged in, nor others of its
    machine.
    """

    def __init__(
        self,
        client: Callable[[str | None], Awaitable[AsyncClient]],
        new_session: Callable[[], str],
        about: str,
        key: str | None = None,
    ) -> None:
        self._key = key
        self._attempts = Attempts(SystemClock().monotonic)  # to show it
        self._client = client
        self._new_session = new_session
        self._about = about
        self._without: Source | None = None  # that of the console itself
        self._sessions: dict[str, Source] = {}  # that of the console itself, where a visitor has shown the key
        self._logins = 0
        self._pages = Environment(loader=PackageLoader("engine.console"), autoescape=True)
        self._pages.globals |= {"quote": quote}
        self._pages.filters |= {"size": size_text, "number": lambda n: f"{n:,.0f}"}
        self._assets = {name: files("engine.console").joinpath("assets", name).read_bytes() for name in _TYPES}
        application = web.Application(middlewares=[_answered], client_max_size=1 << 16)
        application.add_routes(
            [
                web.get("/", self._overview),
                web.get("/topics", self._topics),
                web.get("/topic", self._topic),
                web.get("/messages", self._messages),
                web.get("/letters", self._letters),
                web.get("/namespaces", self._namespaces),
                web.get("/namespace", self._namespace),
                web.get("/brokers", self._brokers),
                web.get("/transactions", self._transactions),
                web.get("/login", self._login_page),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.post("/acts/{act}", self._act),
                web.get("/assets/{name}", self._asset),
            ]
        )
        self._door = HttpDoor(application, audit=Audit(None, SystemClock()))  # brokers audit what it asks them

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Serve; (host, port). Raises ConnectError."""
        self._without = Source(await self._client(None))
        return await self._door.listen(host, port)

    async def close(self) -> None:
        """Finish requests in progress, and close all clients."""
        await self._door.close()
        while self._sessions:
            await self._end(next(iter(self._sessions)))
        if self._without is not None:
            await self._without.close()

    def _source(self, request: web.Request) -> Source:
        """Raises AuthenticationError: the key was not shown."""
        assert self._without is not None
        session = request.cookies.get(COOKIE, "")
        if self._key is not None and session not in self._sessions:
            raise AuthenticationError("the key of the console is required, got none")
        return self._sessions.get(session, self._without)

    async def _page(self, request: web.Request, name: str, /, **facts: Any) -> web.Response:
        everywhere = await self._source(request).may(CLUSTER) if name != "login" else None
        logged_in = request.cookies.get(COOKIE) in self._sessions
        page = self._pages.get_template(f"{name}.html")
        text = page.render(
            page=name, about=self._about, logged_in=logged_in, everywhere=everywhere, live=name not in STILL,
            keyed=self._key is not None, **facts,
        )  # fmt: skip
        return web.Response(text=text, content_type="text/html")

    async def _overview(self, request: web.Request) -> web.Response:
        if self._key is not None and "key" in request.query:
            response = web.Response(status=303, headers={"Location": "/"})  # whose address has no key
            await self._show(request, request.query["key"], response)
            return response
        source = self._source(request)
        page = await source.topics()
        brokers, why = await _or_why(source.brokers())
        behind = await source.behind([line for line in page.rows[:TOPICS_ON_OVERVIEW] if line.backlog])
        return await self._page(request, "overview", topics=page, behind=behind, brokers=brokers or [], why=why)

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
        return await self._page(request, "topics", topics=found, text=text, sort=sort, sorts=views.SORTS)

    async def _topic(self, request: web.Request) -> web.Response:
        source, name = self._source(request), request.query.get("name", "")
        resource = on_topic(name)
        found, history, may = await asyncio.gather(source.topic(name), source.history(name), source.may(resource))
        active = sorted((one for one in found.segments if one.active), key=lambda one: one.start)
        following = {a.ident: b.ident for a, b in pairwise(active)}
        shown, every = active, request.query.get("segments") == "all" or len(active) <= views.PAGE_ROWS
        if not every:
            shown = sorted(active, key=lambda one: (-one.backlog, one.ident))[: views.PAGE_ROWS]
        facts = {"active": shown, "left": len(active) - len(shown), "following": following}
        facts |= {"history": history, "may": may, "owner": views.owner_of(found.properties)}
        return await self._page(request, "topic", topic=found, picture=svg(found.segments), **facts)

    async def _messages(self, request: web.Request) -> web.Response:
        source, name, fault = self._source(request), request.query.get("name", ""), ""
        resource = on_topic(name)
        try:
            found = await source.messages(name, Wanted.of(request.query))
        except InvalidArgumentError as e:
            found, fault = MessagePage(name, ""), str(e)
        except AuthorizationError as e:
            found, fault = MessagePage(name, ""), f"you may not read these messages: {e}"
        may = await source.may(resource)
        return await self._page(request, "messages", found=found, asked=request.query, fault=fault, may=may)

    async def _letters(self, request: web.Request) -> web.Response:
        source, name = self._source(request), request.query.get("name", "")
        if not name:
            page = await source.topics(DEAD_LETTER_SUFFIX)
            rows = [line for line in page.rows if is_dead_letter_topic(line.topic)]
            return await self._page(request, "letters", found=None, topics=rows, more=page.pages > 1)
        resource = on_topic(name)
        found, may = await asyncio.gather(source.letters(name), source.may(resource))
        return await self._page(request, "letters", found=found, may=may)

    async def _namespaces(self, request: web.Request) -> web.Response:
        return await self._page(request, "namespaces", rows=await self._source(request).namespaces())

    async def _namespace(self, request: web.Request) -> web.Response:
        name = request.query.get("name", "")
        return await self._page(request, "namespace", name=name, facts=await self._source(request).namespace(name))

    async def _brokers(self, request: web.Request) -> web.Response:
        source = self._source(request)
        brokers, machine, limits = await asyncio.gather(source.brokers(), source.machine(), source.limits())
        may = await source.may(CLUSTER)
        facts = {"brokers": brokers, "here": machine[0], "pools": machine[1], "memory": machine[2], "limits": limits}
        return await self._page(request, "brokers", may=may, **facts)

    async def _transactions(self, request: web.Request) -> web.Response:
        source = self._source(request)
        found, may = await asyncio.gather(source.transactions(), source.may(CLUSTER))
        return await self._page(request, "transactions", found=found, may=may)

    async def _show(self, request: web.Request, key: str, response: web.Response) -> None:
        """Begin a session for the key. Raises AuthenticationError, late; TooManyRequestsError."""
        if self._key is None or not compare_digest(key.strip().encode(errors="replace"), self._key.encode()):
            if (crowded := self._attempts.crowded(request.remote)) is not None:
                raise crowded
            error = AuthenticationError("the key is not that of the link which the command has printed")
            await asyncio.sleep(self._attempts.failed(request.remote, error, guess=True))
            raise error
        assert self._without is not None
        await self._begin(self._without, response)

    async def _begin(self, source: Source, response: web.Response) -> None:
        """Begin a session, of which the browser is told; the oldest of too many ends."""
        while len(self._sessions) >= SESSIONS_MAX:
            await self._end(next(iter(self._sessions)))
        session = self._new_session()
        self._sessions[session] = source
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict")

    async def _end(self, session: str) -> None:
        source = self._sessions.pop(session, None)
        if source is not None and source is not self._without:
            await source.close()

    async def _login_page(self, request: web.Request) -> web.Response:
        return await self._page(request, "login")

    async def _login(self, request: web.Request) -> web.Response:
        token = (await _json(request)).get("token")
        if not isinstance(token, str) or not token.strip():
            raise InvalidArgumentError("token must be text, got none")
        response = web.json_response({})
        if self._key is not None:
            await self._show(request, token, response)
            return response
        if self._logins >= LOGINS_MAX:
            raise TooManyRequestsError(f"the console has its maximum of {LOGINS_MAX} logins under way; try again later")
        self._logins += 1
        try:
            client = await self._client(token.strip())
            try:
                await client.connect()
            except BaseException:
                await client.close()
                raise
        finally:
            self._logins -= 1
        await self._begin(Source(client), response)
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        await self._end(request.cookies.get(COOKIE, ""))
        response = web.json_response({})
        response.del_cookie(COOKIE)
        return response

    async def _act(self, request: web.Request) -> web.Response:
        act = request.match_info["act"]
        if act not in ACTS:
            raise NotFoundError(f"there is no act {act!r:.40}")
        fields = await _json(request)
        try:
            said = await self._source(request).act(act, fields)
        except (KeyError, TypeError) as e:
            raise InvalidArgumentError(f"{act} must have all of its fields, got {sorted(fields)}") from e
        return web.json_response({"said": said})

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
        response = web.Response(text=str(e), status=STATUSES.get(type(e), 502))
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    return response
