"""The admin API over HTTP: the specification's paths, errors as JSON. `rest_pages.py` has what is about the broker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.broker.admin.http import HttpDoor
from engine.broker.admin.http_checks import hosts_of
from engine.broker.admin.rest_lists import TopicListPages
from engine.broker.admin.rest_pages import AT_ANY_TIME, WITHOUT_TOKEN, page_routes
from engine.broker.admin.rest_transactions import transaction_routes
from engine.broker.settings.config import BrokerConfig
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import HTTP_BODY_S_MAX, METADATA_VALUE_SIZE_MAX
from engine.model.autoscale import JSON_NAMES, AutoScalePolicyOverride
from engine.model.fields import load

if TYPE_CHECKING:
    from engine.broker.admin.service import AdminService
    from engine.broker.server import Broker

SCALABLE = "/admin/v2/scalable"
SEGMENTS = "/admin/v2/segments"
NAMESPACES = "/admin/v2/namespaces"
_TOPIC = SCALABLE + "/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscriptions/{subscription}"
_SEGMENT = SEGMENTS + "/{tenant}/{namespace}/{topic}/{descriptor}"
_SCALE_ALL = NAMESPACES + "/{tenant}/{namespace}/scalableTopicAutoScalePolicy"

QUIET_S_MAX = 10.0  # a request whose body does not come holds nobody up for longer
_DIGITS_MAX = 18  # an id is a 64-bit number
KINDS = {"segments": int, "entryBuckets": int, "keyHash": str, "durability": str, "properties": dict}


class AdminServer(HttpDoor):
    """The broker's HTTP listener. Everything is done by its AdminService."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._receiving: set[asyncio.Timeout] = set()  # time limits of the bodies that are being received
        guard = broker.doors.only_with_token(lambda: broker.config, WITHOUT_TOKEN)
        middlewares: list[Any] = [guard, self._only_while_running, self._whole]
        application = web.Application(middlewares=middlewares, client_max_size=METADATA_VALUE_SIZE_MAX)
        application.add_routes(_routes(broker))
        super().__init__(application, always=AT_ANY_TIME, open_paths=WITHOUT_TOKEN, hosts=lambda: _hosts(broker.config))

    @web.middleware
    async def _only_while_running(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in AT_ANY_TIME:
            return await handler(request)
        if self._broker.refusing:
            raise AlreadyClosedError("the broker is not running, or not any more")
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
        """Receive the body first: of all of them together only so much is held, and each comes within a time.

        Not of what is answered at any time, some of it without a token: its body is not looked at.
        """
        if not request.body_exists or request.path in AT_ANY_TIME:
            return await handler(request)
        bodies = self._broker.memory.bodies
        size = METADATA_VALUE_SIZE_MAX if request.content_length is None else request.content_length
        permit = await bodies.acquire(min(size, METADATA_VALUE_SIZE_MAX))
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
                raise AlreadyClosedError("the broker is closing, and the body has not come") from e
            raise web.HTTPRequestTimeout(reason=f"the body did not come within {HTTP_BODY_S_MAX:g} s") from e
        finally:
            self._receiving.discard(limit)

    async def quiet(self) -> None:
        """Wait for what is being answered; of a broker that is closing, only how it stands can be asked from now on."""
        for limit in self._receiving:  # what has not come will not be answered
            limit.reschedule(asyncio.get_running_loop().time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S_MAX):
                while self._under_way:
                    await self._quiet.wait()


def _hosts(config: BrokerConfig) -> set[str]:
    return hosts_of(config.admin_hosts, config.service_url, config.admin_url)


def _routes(broker: Broker) -> list[web.RouteDef]:
    api, segments, scaling = _Scalable(broker), _Segments(broker), _AutoScale(broker)
    return [
        web.get(SCALABLE + "/{tenant}/{namespace}", TopicListPages(broker).list_topics),
        web.put(_TOPIC, api.create_topic),
        web.get(_TOPIC, api.get_metadata),
        web.delete(_TOPIC, api.delete_topic),
        web.get(_TOPIC + "/stats", api.get_stats),
        web.put(_SUBSCRIPTION, api.create_subscription),
        web.delete(_SUBSCRIPTION, api.delete_subscription),
        web.post(_SUBSCRIPTION + "/seek", api.seek_subscription),
        web.post(_SUBSCRIPTION + "/clear-backlog", api.clear_backlog),
        web.post(_SUBSCRIPTION + "/skip", api.skip_messages),
        web.post(_TOPIC + "/split/{segment}", segments.split),
        web.post(_TOPIC + "/merge/{segment}/{other}", segments.merge),
        web.post(_TOPIC + "/rebucket/{segment}", segments.rebucket),
        web.put(_SEGMENT, segments.create),
        web.post(_SEGMENT + "/terminate", segments.terminate),
        web.delete(_SEGMENT, segments.delete),
        web.get(NAMESPACES + "/{tenant}/{namespace}/policies", api.get_policies),
        web.put(NAMESPACES + "/{tenant}/{namespace}/policies", api.set_policies),
        web.delete(NAMESPACES + "/{tenant}/{namespace}/policies", api.remove_policies),
        web.get(_TOPIC + "/autoScalePolicy", scaling.get),
        web.put(_TOPIC + "/autoScalePolicy", scaling.set),
        web.delete(_TOPIC + "/autoScalePolicy", scaling.remove),
        web.get(_SCALE_ALL, scaling.get_all),
        web.put(_SCALE_ALL, scaling.set_all),
        web.delete(_SCALE_ALL, scaling.remove_all),
        *transaction_routes(broker),
        *page_routes(broker),
    ]


class _Handlers:
    """Each does what one route asks for."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _admin(self) -> AdminService:
        return self._broker.admin


class _Scalable(_Handlers):
    """Topics, subscriptions, namespaces."""

    async def create_topic(self, request: web.Request) -> web.Response:
        body = await _body(request, KINDS)
        await self._admin.create_topic(
            _topic(request),
            segments=body.get("segments"),
            properties=body.get("properties"),
            key_hash=body.get("keyHash"),
            durability=body.get("durability"),
            entry_buckets=body.get("entryBuckets"),
        )
        return web.Response(status=204)

    async def get_metadata(self, request: web.Request) -> web.Response:
        return web.json_response(await self._admin.get_metadata(_topic(request)))

    async def delete_topic(self, request: web.Request) -> web.Response:
        await self._admin.delete_topic(_topic(request))
        return web.Response(status=204)

    async def get_stats(self, request: web.Request) -> web.Response:
        return web.json_response(await self._admin.get_stats(_topic(request)))

    async def create_subscription(self, request: web.Request) -> web.Response:
        body = await _body(request, {"initialPosition": str})
        position = body.get("initialPosition", "latest")
        await self._admin.create_subscription(_topic(request), _subscription(request), initial_position=position)
        return web.Response(status=204)

    async def delete_subscription(self, request: web.Request) -> web.Response:
        await self._admin.delete_subscription(_topic(request), _subscription(request))
        return web.Response(status=204)

    async def seek_subscription(self, request: web.Request) -> web.Response:
        when = (await _body(request, {"when": (str, int)})).get("when")
        if when is None:
            raise InvalidArgumentError('field \'when\' is missing; "earliest", "latest" or milliseconds is right')
        await self._admin.seek_subscription(_topic(request), _subscription(request), when)
        return web.Response(status=204)

    async def clear_backlog(self, request: web.Request) -> web.Response:
        await self._admin.clear_backlog(_topic(request), _subscription(request))
        return web.Response(status=204)

    async def skip_messages(self, request: web.Request) -> web.Response:
        body = await _body(request, {"segment": int, "first": int, "last": int})
        if missing := {"segment", "first", "last"} - body.keys():
            raise InvalidArgumentError(f"fields must name segment, first and last, got none of {sorted(missing)}")
        places = body["segment"], body["first"], body["last"]
        await self._admin.skip_messages(_topic(request), _subscription(request), *places)
        return web.Response(status=204)

    async def get_policies(self, request: web.Request) -> web.Response:
        return web.json_response(await self._admin.get_namespace_policies(_namespace(request)))

    async def set_policies(self, request: web.Request) -> web.Response:
        await self._admin.set_namespace_policies(_namespace(request), await _object(request))
        return web.Response(status=204)

    async def remove_policies(self, request: web.Request) -> web.Response:
        await self._admin.remove_namespace_policies(_namespace(request))
        return web.Response(status=204)


class _Segments(_Handlers):
    """The shape of topics, and single segments."""

    async def split(self, request: web.Request) -> web.Response:
        await _body(request, {})
        return web.json_response(await self._admin.split_segment(_topic(request), _id(request, "segment")))

    async def merge(self, request: web.Request) -> web.Response:
        await _body(request, {})
        first, second = _id(request, "segment"), _id(request, "other")
        return web.json_response(await self._admin.merge_segments(_topic(request), first, second))

    async def rebucket(self, request: web.Request) -> web.Response:
        said = [_number(text, "query parameter buckets") for text in request.query.getall("buckets", [])]
        body = (await _body(request, {"buckets": int})).get("buckets")
        said += [] if body is None else [body]
        if not said:
            raise InvalidArgumentError("query parameter buckets is missing; ?buckets=N is right")
        if len(set(said)) > 1:
            raise InvalidArgumentError(f"buckets is said to be {' and '.join(map(str, said))}; one number is right")
        buckets = said[0]
        return web.json_response(await self._admin.rebucket_segment(_topic(request), _id(request, "segment"), buckets))

    async def create(self, request: web.Request) -> web.Response:
        names = await _json(request, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError("the body is not what it should be; a JSON array of subscription names is right")
        await self._admin.create_segment(_segment(request), names)
        return web.Response(status=204)

    async def terminate(self, request: web.Request) -> web.Response:
        await _body(request, {})
        await self._admin.terminate_segment(_segment(request))
        return web.Response(status=204)

    async def delete(self, request: web.Request) -> web.Response:
        force = request.query.get("force", "false")
        if force not in ("true", "false"):
            raise InvalidArgumentError(f"query parameter force is {force!r:.80}; true or false is right")
        await self._admin.delete_segment(_segment(request), force == "true")
        return web.Response(status=204)


class _AutoScale(_Handlers):
    """What a topic, or a namespace for its topics, overrides; by the specification's names."""

    async def get(self, request: web.Request) -> web.Response:
        return _overrides(await self._admin.get_auto_scale_policy(_topic(request)))

    async def set(self, request: web.Request) -> web.Response:
        await self._admin.set_auto_scale_policy(_topic(request), await _policy(request))
        return web.Response(status=204)

    async def remove(self, request: web.Request) -> web.Response:
        await self._admin.remove_auto_scale_policy(_topic(request))
        return web.Response(status=204)

    async def get_all(self, request: web.Request) -> web.Response:
        return _overrides(await self._admin.get_namespace_auto_scale_policy(_namespace(request)))

    async def set_all(self, request: web.Request) -> web.Response:
        await self._admin.set_namespace_auto_scale_policy(_namespace(request), await _policy(request))
        return web.Response(status=204)

    async def remove_all(self, request: web.Request) -> web.Response:
        await self._admin.remove_namespace_auto_scale_policy(_namespace(request))
        return web.Response(status=204)


def _namespace(request: web.Request) -> str:
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def _topic(request: web.Request) -> str:
    return f"topic://{_namespace(request)}/{request.match_info['topic']}"


def _segment(request: web.Request) -> str:
    return f"segment://{_namespace(request)}/{request.match_info['topic']}/{request.match_info['descriptor']}"


def _id(request: web.Request, name: str) -> int:
    return _number(request.match_info[name], f"segment id {request.match_info[name]!r:.80}")


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise InvalidArgumentError(f"{what} is no whole number; one like 3 is right")
    return int(text)


def _subscription(request: web.Request) -> str:
    return request.match_info["subscription"]


async def _body(request: web.Request, fields: dict[str, Any]) -> dict[str, Any]:
    """The body's JSON object, of these fields and types; {} for none. Raises InvalidArgumentError."""
    body = await _object(request)
    for name, value in body.items():
        if name not in fields:
            known = f"{', '.join(fields)} are known" if fields else "nothing goes into this body"
            raise InvalidArgumentError(f"field {name!r:.80} is unknown; {known}")
        if value is not None and (not isinstance(value, fields[name]) or isinstance(value, bool)):
            raise InvalidArgumentError(f"field {name!r} is {value!r:.80}; another type is right")
    return body


async def _object(request: web.Request) -> dict[str, Any]:
    body = await _json(request, {})
    if not isinstance(body, dict):
        raise InvalidArgumentError(f"the body is a JSON {type(body).__name__}; an object is right")
    return body


async def _policy(request: web.Request) -> dict[str, Any]:
    """The auto-scale policy in the body, by our names."""
    override = AutoScalePolicyOverride.of_json(await _object(request))
    for name in override.extra:
        raise InvalidArgumentError(f"auto-scale policy {name!r:.80} is unknown; known are {', '.join(JSON_NAMES)}")
    return override.to_mapping()


def _overrides(policy: dict[str, Any]) -> web.Response:
    return web.json_response(AutoScalePolicyOverride.of(policy).to_json())


async def _json(request: web.Request, nothing: Any) -> Any:
    text = await request.read()  # JSON says by itself how it is encoded
    try:
        return load(text) if text.strip() else nothing
    except ValueError as e:
        raise InvalidArgumentError(f"the body is not JSON: {e}") from e
