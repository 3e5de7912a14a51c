"""Apache Pulsar's admin REST for its classic topics: what `pulsar-admin` and connectors ask first.

Each route is a row of ROUTES: its path, the operation of the table of rights that it needs, and what answers it. What
answers it executes operations of the admin API, and each of them is checked by the table once more with its own
arguments, so that a topic's partitions are reached by what may reach them and by nothing else. What the model of this
broker does not have is answered 501 with a sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.broker.admin.classic_bodies import (
    created_at,
    named_properties,
    partitions_and_properties,
    reset_to,
    tenant_admins,
)
from engine.broker.admin.classic_request import SCALABLE, Asked, whole
from engine.broker.admin.classic_stats import partitioned_stats, topic_stats
from engine.broker.admin.ports import Served
from engine.broker.admin.rest_lists import TopicListPages
from engine.broker.rights.principal import PRINCIPAL
from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnsupportedError
from engine.limits import HASH_RING_SIZE
from engine.model import admin_operations as rows
from engine.model.admin_cluster_operations import LIST_BROKERS, UNLOAD_TOPIC
from engine.model.admin_parameters import KINDS
from engine.model.admin_requests import Operation
from engine.model.admin_rights_operations import CREATE_TENANT, GRANT
from engine.model.hashrange import HashRange
from engine.model.names import CLASSIC_SCHEME, DEFAULT_NAMESPACE, DEFAULT_TENANT, SegmentName, TopicName
from engine.model.partitions import PARTITIONS, partition_names, partition_of
from engine.wire.url import unix_path

Answer = Callable[[Asked], Awaitable[Any]]

_NAMESPACE = "/admin/v2/persistent/{tenant}/{namespace}"
_TOPIC = _NAMESPACE + "/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscription/{subscription}"
_SCALABLE_TOPIC = SCALABLE + "{tenant}/{namespace}/{topic}"
_DEFAULT = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"  # is always there
_FIRST_CLIENT = "5.0.0-M1"  # as in pulsar/scalable.py
_SKIPS_MAX = 1_000  # rounds of one request


class Route(NamedTuple):
    """`need`: the operation whose right it needs; None: any role."""

    verb: str
    path: str
    need: str | None
    answer: Answer


# -- topics ------------------------------------------------------------------------------------------------------------


async def _create_topic(asked: Asked) -> None:
    properties = named_properties(await asked.body())
    _refuse_count(properties)
    await asked.call(rows.CREATE_TOPIC, topic=str(asked.topic), properties=properties or None)


def _refuse_count(properties: Mapping[str, str]) -> None:
    if PARTITIONS in properties:
        raise InvalidArgumentError(f"the property {PARTITIONS} must be set by the topic's partitions")


async def _delete_topic(asked: Asked) -> None:
    _, count = await asked.record()
    if count:
        raise UnsupportedError(f"{asked.topic} has partitions: delete it with them, at …/partitions")
    await _refuse_busy(asked, str(asked.topic))
    await asked.call(rows.DELETE_TOPIC, topic=str(asked.topic))


async def _refuse_busy(asked: Asked, topic: str) -> None:
    """Without `force`, what clients are attached to stays."""
    if asked.forced:
        return
    stats = await asked.call(rows.GET_STATS, topic=topic)
    producers = sum(one["producerCount"] for one in stats["segments"].values())
    consumers = sum(one["consumerCount"] for one in stats["subscriptions"].values())
    if producers or consumers:
        why = f"{topic} has {producers} producers and {consumers} consumers: close them, or use force"
        raise web.HTTPPreconditionFailed(reason=why)


async def _partitions(asked: Asked) -> dict[str, Any]:
    properties, count = await asked.record()
    properties.pop(PARTITIONS, None)
    return {"partitions": count, "deleted": False, "properties": properties}


async def _create_partitioned(asked: Asked) -> None:
    count, properties = partitions_and_properties(await asked.body())
    _refuse_count(properties)
    if partition_of(asked.topic) >= 0:
        raise InvalidArgumentError(f"the name of a topic with partitions must not be one of a partition: {asked.topic}")
    await asked.call(rows.CREATE_TOPIC, topic=str(asked.topic), properties={**properties, PARTITIONS: str(count)})
    await _create_each(asked, range(count))


async def _create_each(asked: Asked, indexes: range) -> None:
    """Those that are missing, if the request is cut off, are created when they are first used."""
    for topic in partition_names(asked.topic, indexes):
        try:
            await asked.call(rows.CREATE_TOPIC, topic=topic)
        except AlreadyExistsError:
            continue


async def _update_partitioned(asked: Asked) -> None:
    wanted, _ = partitions_and_properties(await asked.body())
    properties, count = await _partitioned(asked)
    if wanted < count:
        raise InvalidArgumentError(f"the number of partitions must be at least the {count} there are, got {wanted}")
    properties[PARTITIONS] = str(wanted)
    await asked.call(rows.SET_TOPIC_PROPERTIES, topic=str(asked.topic), properties=properties)
    await _create_each(asked, range(count, wanted))


async def _partitioned(asked: Asked) -> tuple[dict[str, str], int]:
    properties, count = await asked.record()
    if not count:
        raise NotFoundError(f"{asked.topic} has no partitions")
    return properties, count


async def _delete_partitioned(asked: Asked) -> None:
    _, count = await _partitioned(asked)
    there = []
    for topic in partition_names(asked.topic, range(count)):
        try:
            await _refuse_busy(asked, topic)
            await asked.call(rows.GET_METADATA, topic=topic)
        except NotFoundError:
            continue
        there.append(topic)
    for topic in [*there, str(asked.topic)]:
        await asked.call(rows.DELETE_TOPIC, topic=topic)


async def _get_properties(asked: Asked) -> dict[str, str]:
    properties, _ = await asked.record()
    properties.pop(PARTITIONS, None)
    return properties


async def _set_properties(asked: Asked) -> None:
    """These in addition to those that it has."""
    more = named_properties(await asked.body())
    _refuse_count(more)
    properties, _ = await asked.record()
    await asked.call(rows.SET_TOPIC_PROPERTIES, topic=str(asked.topic), properties={**properties, **more})


async def _remove_property(asked: Asked) -> None:
    name = asked.request.query.get("key", "")
    _refuse_count({name: ""})
    properties, _ = await asked.record()
    if properties.pop(name, None) is None:
        raise NotFoundError(f"{asked.topic} has no property {name!r:.80}")
    await asked.call(rows.SET_TOPIC_PROPERTIES, topic=str(asked.topic), properties=properties)


async def _stats(asked: Asked) -> dict[str, Any]:
    _, count = await asked.record()
    if count:
        raise NotFoundError(f"{asked.topic} has partitions: ask for its partitioned-stats")
    return topic_stats(await asked.call(rows.GET_STATS, topic=str(asked.topic)))


async def _partitioned_stats(asked: Asked) -> dict[str, Any]:
    properties, count = await _partitioned(asked)
    properties.pop(PARTITIONS)
    found = {}
    for topic in partition_names(asked.topic, range(count)):
        try:
            found[topic] = topic_stats(await asked.call(rows.GET_STATS, topic=topic))
        except NotFoundError:  # not used yet
            found[topic] = topic_stats(None)
    each = asked.request.query.get("perPartition", "true").lower() == "true"
    return partitioned_stats(found, {"partitions": count, "deleted": False, "properties": properties}, each=each)


async def _lookup(asked: Asked) -> dict[str, str]:
    """Where the topic's broker is."""
    stats = await asked.call(rows.GET_STATS, topic=str(asked.topic))
    owner = _address(asked, next(iter(stats["segments"].values()))["owner"])
    urls = {"brokerUrl": f"pulsar://{owner}", "nativeUrl": f"pulsar://{owner}", "brokerUrlTls": f"pulsar+ssl://{owner}"}
    return {**urls, "httpUrl": _web_url(asked)}


def _address(asked: Asked, url: str) -> str:
    """Host and port of a broker; of this one for what only its own machine can reach: it names the right one."""
    if url == asked.broker.members.brokers.url or unix_path(url) is not None:
        url = asked.broker.service_url
    return url.partition("://")[2]


def _web_url(asked: Asked) -> str:
    return asked.broker.config.admin_url or str(asked.request.url.origin())


async def _unload(asked: Asked) -> None:
    for topic in await asked.topics():
        await asked.call(UNLOAD_TOPIC, topic=topic, to=None)


# -- subscriptions -----------------------------------------------------------------------------------------------------


async def _subscriptions(asked: Asked) -> list[str]:
    found: set[str] = set()
    for topic in await asked.topics():
        try:
            found.update((await asked.call(rows.GET_STATS, topic=topic))["subscriptions"])
        except NotFoundError:  # a partition that was not used yet
            continue
    return sorted(found)


async def _create_subscription(asked: Asked) -> None:
    if asked.request.query.get("replicated", "false").lower() == "true":
        raise UnsupportedError("replicated subscriptions are not served: there is one cluster")
    name, position = asked.parts["subscription"], created_at(await asked.body())
    await asked.on_each(rows.CREATE_SUBSCRIPTION, subscription=name, initial_position=position, kind=None)


async def _delete_subscription(asked: Asked) -> None:
    name, topics = asked.parts["subscription"], await asked.topics()
    if not asked.forced:
        for topic in topics:
            stats = await asked.call(rows.GET_STATS, topic=topic)
            if (found := stats["subscriptions"].get(name)) is not None and found["consumerCount"]:
                why = f"the subscription {name} of {topic} has consumers: close them, or use force"
                raise web.HTTPPreconditionFailed(reason=why)
    for topic in topics:
        await asked.call(rows.DELETE_SUBSCRIPTION, topic=topic, subscription=name)


async def _skip_all(asked: Asked) -> None:
    await asked.on_each(rows.CLEAR_BACKLOG, subscription=asked.parts["subscription"])


async def _skip(asked: Asked) -> None:
    """So many messages that are not acknowledged, from the first one on."""
    left = _number(asked, "count")
    if len(topics := await asked.topics()) > 1:
        raise UnsupportedError("messages of a topic with partitions must be skipped in one of them")
    topic, name = topics[0], asked.parts["subscription"]
    layout = await asked.call(rows.GET_METADATA, topic=topic)
    segment = int(next(iter(layout["segments"])))
    whole = str(SegmentName(TopicName.parse(topic), HashRange(0, HASH_RING_SIZE - 1), segment))
    for _ in range(_SKIPS_MAX):  # what is acknowledged between them, one by one, is not counted
        backlog = (await _subscription(asked, topic, name))["backlog"]
        found = await asked.call(rows.GET_SEGMENT_STATS, segment=whole)
        here = found["subscriptions"].get(name)
        # What the segment has not read of the subscription yet, it reads with the first skip.
        first, count = (found["firstOffset"], 1) if here is None else (here["position"], left)
        last = min(first + count, found["nextOffset"]) - 1
        if left <= 0 or not backlog or last < first:
            return
        arguments = {"topic": topic, "subscription": name, "segment_id": segment, "first": first, "last": last}
        await asked.call(rows.SKIP_MESSAGES, **arguments)
        left -= backlog - (await _subscription(asked, topic, name))["backlog"]


async def _subscription(asked: Asked, topic: str, name: str) -> dict[str, Any]:
    """Its statistics. Raises NotFoundError."""
    found: dict[str, Any] | None = (await asked.call(rows.GET_STATS, topic=topic))["subscriptions"].get(name)
    if found is None:
        raise NotFoundError(f"{topic} has no subscription {name!r:.200}")
    return found


def _number(asked: Asked, part: str) -> int:
    return whole(part, asked.request.match_info[part])


async def _reset_to_time(asked: Asked) -> None:
    await asked.on_each(rows.SEEK_SUBSCRIPTION, subscription=asked.parts["subscription"], when=_number(asked, "time"))


async def _reset_to_id(asked: Asked) -> None:
    when = reset_to(await asked.body())
    await asked.on_each(rows.SEEK_SUBSCRIPTION, subscription=asked.parts["subscription"], when=when)


# -- scalable topics, where Apache Pulsar's admin client asks in another form than that of Engine ----------------------


async def _create_scalable(asked: Asked) -> None:
    """Keys are hashed as the clients of the admin client's version do."""
    first = asked.request.headers.get("User-Agent", "").endswith(_FIRST_CLIENT)
    await asked.call(
        rows.CREATE_TOPIC,
        topic=asked.parts["topic"],
        segments=_in_query(asked, "numInitialSegments"),
        properties=named_properties(await asked.body()) or None,
        key_hash="murmur3-low" if first else "murmur3",
    )


async def _subscribe_scalable(asked: Asked) -> None:
    kind = asked.request.query["type"].lower()
    if kind not in KINDS:
        raise InvalidArgumentError(f"type must be one of {', '.join(KINDS)}, got {kind!r:.80}")
    name = asked.parts["subscription"]
    arguments = {"topic": asked.parts["topic"], "subscription": name, "initial_position": "latest", "kind": kind}
    await asked.call(rows.CREATE_SUBSCRIPTION, **arguments)


async def _seek_scalable(asked: Asked) -> None:
    name, when = asked.parts["subscription"], _in_query(asked, "timestamp")
    await asked.call(rows.SEEK_SUBSCRIPTION, topic=asked.parts["topic"], subscription=name, when=when)


async def _skip_all_scalable(asked: Asked) -> None:
    await asked.call(rows.CLEAR_BACKLOG, topic=asked.parts["topic"], subscription=asked.parts["subscription"])


def _in_query(asked: Asked, name: str) -> int:
    return whole(name, asked.request.query[name])


# -- clusters, brokers, tenants, namespaces ----------------------------------------------------------------------------


async def _clusters(asked: Asked) -> list[str]:
    return [asked.broker.config.cluster_name]


async def _cluster(asked: Asked) -> dict[str, Any]:
    _known_cluster(asked)
    service = asked.broker.service_url.partition("://")[2]
    return {"serviceUrl": _web_url(asked), "brokerServiceUrl": f"pulsar://{service}"}


def _known_cluster(asked: Asked) -> None:
    name, known = asked.request.match_info["cluster"], asked.broker.config.cluster_name
    if name != known:
        raise NotFoundError(f"the cluster must be {known}, got {name!r:.80}")


async def _brokers(asked: Asked) -> list[str]:
    _known_cluster(asked)
    return [_address(asked, one["url"]) for one in await asked.call(LIST_BROKERS)]


async def _version(asked: Asked) -> web.Response:
    return web.Response(text="" if asked.broker.rights.on else version("engine"))


async def _ok(asked: Asked) -> web.Response:
    return web.Response(text="ok")


async def _namespaces(asked: Asked) -> list[str]:
    tenant, principal = asked.request.match_info["tenant"] + "/", PRINCIPAL.get()
    found = await asked.call(rows.LIST_NAMESPACES)
    return [name for name in found if name.startswith(tenant) and asked.broker.rights.sees(principal, name)]


async def _no_topics(asked: Asked) -> list[str]:
    """There are none that are not persistent."""
    return []


async def _policies(asked: Asked) -> dict[str, Any]:
    """What of Apache Pulsar's policies is the same here; a namespace that was never named is none."""
    name = asked.parts["namespace"]
    found = await asked.call(rows.GET_NAMESPACE_POLICIES, namespace=name, own=False)
    if name != _DEFAULT and name not in await asked.broker.admin.list_namespaces():
        raise NotFoundError(f"there is no namespace {name}")
    ttl = found["message_ttl_s"]
    return {
        "replication_clusters": [asked.broker.config.cluster_name],
        "message_ttl_in_seconds": None if ttl in (None, -1) else ttl,
        "deduplicationEnabled": True,
        "deleted": False,
    }


async def _unserved(request: web.Request) -> web.StreamResponse:
    what = f"{request.method} {request.path}"
    raise UnsupportedError(f"{what:.300} of Apache Pulsar's admin API has no counterpart here")


_UNSERVED = (
    *(f"/admin/v2/{kind}" + "/{rest:.*}" for kind in ("persistent", "non-persistent", "clusters", "schemas")),
    *(f"/admin/v2/{kind}" + "/{rest:.*}" for kind in ("broker-stats", "bookies", "resource-quotas", "resourcegroups")),
    *(f"/admin/v2/{kind}" + "/{rest:.*}" for kind in ("functions", "sources", "sinks", "worker", "worker-stats")),
    "/admin/v2/namespaces/{tenant}/{namespace}/{rest:(?!policies$|scalableTopicAutoScalePolicy$).+}",
    _SCALABLE_TOPIC + "/migrate",
    "/admin/v3/{rest:.*}",
)

# Lists of topics, and whether they are of those alone that stand for partitions.
LISTS = {
    _NAMESPACE: False,
    _NAMESPACE + "/partitioned": True,
    "/admin/v2/namespaces/{tenant}/{namespace}/topics": False,
}

ROUTES = (
    Route("GET", "/admin/v2/clusters", None, _clusters),
    Route("GET", "/admin/v2/clusters/{cluster}", None, _cluster),
    Route("GET", "/admin/v2/brokers/version", None, _version),
    Route("GET", "/admin/v2/brokers/health", None, _ok),
    Route("GET", "/admin/v2/brokers/ready", None, _ok),
    Route("GET", "/admin/v2/brokers/{cluster}", "list_brokers", _brokers),
    Route("GET", "/admin/v2/namespaces/{tenant}", "list_namespaces", _namespaces),
    Route("GET", "/admin/v2/namespaces/{tenant}/{namespace}", "get_namespace_policies", _policies),
    Route("GET", "/admin/v2/non-persistent/{tenant}/{namespace}", "list_topics", _no_topics),
    Route("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", "list_topics", _no_topics),
    Route("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}", "get_stats", _lookup),
    Route("PUT", _TOPIC, "create_topic", _create_topic),
    Route("DELETE", _TOPIC, "delete_topic", _delete_topic),
    Route("GET", _TOPIC + "/partitions", "get_metadata", _partitions),
    Route("PUT", _TOPIC + "/partitions", "create_topic", _create_partitioned),
    Route("POST", _TOPIC + "/partitions", "set_topic_properties", _update_partitioned),
    Route("DELETE", _TOPIC + "/partitions", "delete_topic", _delete_partitioned),
    Route("GET", _TOPIC + "/properties", "get_metadata", _get_properties),
    Route("PUT", _TOPIC + "/properties", "set_topic_properties", _set_properties),
    Route("DELETE", _TOPIC + "/properties", "set_topic_properties", _remove_property),
    Route("GET", _TOPIC + "/stats", "get_stats", _stats),
    Route("GET", _TOPIC + "/partitioned-stats", "get_stats", _partitioned_stats),
    Route("PUT", _TOPIC + "/unload", "unload_topic", _unload),
    Route("GET", _TOPIC + "/subscriptions", "get_stats", _subscriptions),
    Route("PUT", _SUBSCRIPTION, "create_subscription", _create_subscription),
    Route("DELETE", _SUBSCRIPTION, "delete_subscription", _delete_subscription),
    Route("POST", _SUBSCRIPTION + "/skip_all", "clear_backlog", _skip_all),
    Route("POST", _SUBSCRIPTION + "/skip/{count}", "skip_messages", _skip),
    Route("POST", _SUBSCRIPTION + "/resetcursor/{time}", "seek_subscription", _reset_to_time),
    Route("POST", _SUBSCRIPTION + "/resetcursor", "seek_subscription", _reset_to_id),
    Route("POST", _SCALABLE_TOPIC + "/subscriptions/{subscription}/skip-all", "clear_backlog", _skip_all_scalable),
)


# -- what the server adds to its routes --------------------------------------------------------------------------------


def need_of(verb: str, path: str) -> str | None:
    """The operation whose right a route here needs; None: any role."""
    return _NEEDS.get((verb, path))


_NEEDS = {(route.verb, route.path): route.need for route in ROUTES} | {("GET", path): "list_topics" for path in LISTS}


def classic_routes(broker: Served) -> list[web.RouteDef]:
    """Those of this module; they go behind those of the admin API, which some of them overlap."""
    pages = TopicListPages(broker)
    lists = [web.get(path, partial(_list, pages, only)) for path, only in LISTS.items()]
    served = [web.route(route.verb, route.path, _handler(broker, route)) for route in ROUTES]
    unserved = [web.route("*", path, _unserved) for path in _UNSERVED]
    return [*lists, *served, *unserved]


async def _list(pages: TopicListPages, only: bool, request: web.Request) -> web.StreamResponse:
    """The classic topics of a namespace; `only`: those that stand for partitions."""
    if request.query.get("mode", "PERSISTENT").upper() == "NON_PERSISTENT":
        return web.json_response([])
    return await pages.answer(request, None, partial(_classic, pages.broker, only))


async def _classic(broker: Served, only: bool, names: list[str]) -> list[str]:
    found = [name for name in names if name.startswith(CLASSIC_SCHEME)]
    return [name for name in found if await _stands_for_partitions(broker, name)] if only else found


async def _stands_for_partitions(broker: Served, name: str) -> bool:
    try:
        record = await broker.admin.get_metadata(name)
    except NotFoundError:  # it is gone
        return False
    return PARTITIONS in record["properties"]


def _handler(broker: Served, route: Route) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        found = await route.answer(Asked(broker, request))
        if isinstance(found, web.StreamResponse):
            return found
        return web.Response(status=204) if found is None else web.json_response(found)

    return answer


def create_tenant(broker: Served, ours: Handler) -> Handler:
    """Of a body of Apache Pulsar's kind its roles administer the tenant; of one of ours it is for `ours`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = Asked(broker, request)
        roles = tenant_admins(await asked.body())
        if roles is None:
            return await ours(request)
        tenant = asked.parts["tenant"]
        await asked.call(CREATE_TENANT, tenant=tenant, roles=None)
        for role in roles:
            await asked.call(GRANT, resource=tenant, role=role, rights=["admin"], subscription_prefix=None)
        return web.Response(status=204)

    return answer


def scalable_handlers(broker: Served, ours: Callable[[Operation[Any]], Handler]) -> dict[Operation[Any], Handler]:
    """Of operations that Apache Pulsar's admin client asks for with arguments in the query, by the name of one."""
    theirs: dict[Operation[Any], tuple[str, Answer]] = {
        rows.CREATE_TOPIC: ("numInitialSegments", _create_scalable),
        rows.CREATE_SUBSCRIPTION: ("type", _subscribe_scalable),
        rows.SEEK_SUBSCRIPTION: ("timestamp", _seek_scalable),
    }
    return {row: _by_query(broker, ours(row), *said) for row, said in theirs.items()}


def _by_query(broker: Served, ours: Handler, name: str, answer: Answer) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if name not in request.query:
            return await ours(request)
        await answer(Asked(broker, request))
        return web.Response(status=204)

    return handle
