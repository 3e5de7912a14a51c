"""The admin API over HTTP: a route for each operation of the table, errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.broker.admin.classic import (
    classic_routes,
    create_tenant,
    need_of,
    scalable_handlers,
)
from engine.broker.admin.classic_request import arguments_of, path_of
from engine.broker.admin.http import HttpDoor
from engine.broker.admin.http_checks import admitted, hosts_of
from engine.broker.admin.ports import Served
from engine.broker.admin.rest_lists import TopicListPages
from engine.broker.admin.rest_pages import page_handlers
from engine.broker.admin.shown import shown
from engine.broker.rights.need import Need
from engine.broker.rights.principal import PRINCIPAL
from engine.broker.rights.table import ANY_ROLE
from engine.broker.rights.table import OPERATIONS as RULES
from engine.broker.settings.config import BrokerConfig
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import BODY_SIZE_MAX, HTTP_BODY_S_MAX
from engine.model.admin_operations import AT_ANY_TIME, LIST_NAMESPACES, LIST_TOPICS, OPERATIONS, WITHOUT_TOKEN
from engine.model.admin_parameters import Where
from engine.model.admin_requests import NO_BODY, Operation
from engine.model.admin_rights_operations import CREATE_TENANT, GET_PERMISSIONS, LIST_TENANTS
from engine.model.fields import load
from engine.model.rights import check_resource

QUIET_S_MAX = 10.0  # a request whose body does not arrive delays close() for at most this long


class AdminServer(HttpDoor):
    """The broker's HTTP listener; its AdminService executes the operations."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._receiving: set[asyncio.Timeout] = set()  # time limits of the bodies being received
        guard = admitted(broker.identities, broker.rights, _need, WITHOUT_TOKEN)
        middlewares: list[Any] = [guard, self._only_while_running, self._whole]
        application = web.Application(middlewares=middlewares, client_max_size=BODY_SIZE_MAX)
        application.add_routes(_routes(broker))
        super().__init__(
            application,
            audit=broker.rights.audit,
            always=AT_ANY_TIME,
            open_paths=WITHOUT_TOKEN,
            hosts=lambda: _hosts(broker.config),
        )

    @web.middleware
    async def _only_while_running(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in AT_ANY_TIME:
            return await handler(request)
        if self._broker.refusing:
            raise AlreadyClosedError("the broker is not running")
        self._under_way += 1
        self._quiet.clear()
        try:
            return await handler(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    @web.middleware
    async def _whole(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Receive the body before the handler: within the pool of bodies, and within a time limit.

        Except for operations AT_ANY_TIME, some of which need no token: their bodies are not read.
        """
        if not request.body_exists or request.path in AT_ANY_TIME:
            return await handler(request)
        bodies = self._broker.memory.bodies
        size = BODY_SIZE_MAX if request.content_length is None else request.content_length
        permit = await bodies.acquire(min(size, BODY_SIZE_MAX))
        try:
            await self._receive(request)
            return await handler(request)
        finally:
            bodies.release(permit)

    async def _receive(self, request: web.Request) -> None:
        limit = asyncio.timeout(0 if self._broker.closing else HTTP_BODY_S_MAX)
        self._receiving.add(limit)
        try:
            async with limit:
                await request.read()
        except TimeoutError as e:
            if self._broker.closing:
                raise AlreadyClosedError("the broker is closing before the body was received") from e
            raise web.HTTPRequestTimeout(reason=f"the body was not received within {HTTP_BODY_S_MAX:g} s") from e
        finally:
            self._receiving.discard(limit)

    async def quiet(self) -> None:
        """Wait for requests in progress. The broker is closing: new ones are refused, except AT_ANY_TIME."""
        for limit in self._receiving:  # requests whose body is not complete are refused
            limit.reschedule(asyncio.get_running_loop().time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S_MAX):
                while self._under_way:
                    await self._quiet.wait()


def _hosts(config: BrokerConfig) -> set[str]:
    return hosts_of(config.admin_hosts, config.service_url, config.admin_url)


def _routes(broker: Served) -> list[web.RouteDef]:
    """One route per operation; those that do not answer plain JSON have handlers of their own."""
    special: dict[Operation[Any], Handler] = {
        LIST_TOPICS: TopicListPages(broker).list_topics,
        GET_PERMISSIONS: _permissions(broker),
        **page_handlers(broker),
    }
    special |= scalable_handlers(broker, partial(_handler, broker))
    special[CREATE_TENANT] = create_tenant(broker, _handler(broker, CREATE_TENANT))
    ours = [_route(row.verb)(row.path, special.get(row) or _handler(broker, row)) for row in OPERATIONS]
    return [*ours, *classic_routes(broker)]


def _permissions(broker: Served) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        resource = check_resource(request.match_info["resource"])
        return web.json_response(broker.rights.permissions(PRINCIPAL.get(), resource))

    return answer


_ROWS = {(row.verb, row.path): row for row in OPERATIONS}


def _need(request: web.Request) -> Need | None:
    """By the table of rights; None: it is not there, so that nothing may call it. Raises InvalidArgumentError."""
    resource = request.match_info.route.resource
    verb = "GET" if request.method == "HEAD" else request.method
    row = None if resource is None else _ROWS.get((verb, resource.canonical))
    if row is None:
        name = None if resource is None else need_of(verb, resource.canonical)
        # Without a name there is no such route, which is answered so, or nothing in its answer that is not for all.
        return ANY_ROLE if name is None else RULES[name](arguments_of(request.match_info, path_of(request)))
    rule = RULES.get(row.name)
    if rule is None:
        return None
    parts = request.match_info
    return rule({p.name: p.kind.of_texts(p.name, [parts[part] for part in p.parts]) for p in row.among(Where.PATH)})


def _route(verb: str) -> Callable[[str, Handler], web.RouteDef]:
    return web.get if verb == "GET" else partial(web.route, verb)  # the first answers HEAD too


def _handler(broker: Served, operation: Operation[Any]) -> Handler:
    """Reads the operation's arguments and executes it."""

    async def answer(request: web.Request) -> web.Response:
        body = await _json(request) if operation.takes_body else NO_BODY
        arguments = operation.read(request.match_info, lambda name: request.query.getall(name, []), body)
        result = await broker.admin.call(operation, arguments)
        if operation in (LIST_NAMESPACES, LIST_TENANTS):
            principal = PRINCIPAL.get()
            result = [name for name in result if broker.rights.sees(principal, name)]
        result = shown(broker.rights, operation, arguments, result)
        if operation.result.nothing:
            return web.Response(status=204)
        return web.json_response(operation.result.to_json(result))

    return answer


async def _json(request: web.Request) -> Any:
    text = await request.read()  # JSON text determines its own encoding
    try:
        return load(text) if text.strip() else NO_BODY
    except ValueError as e:
        raise InvalidArgumentError(f"the body is not JSON: {e}") from e
