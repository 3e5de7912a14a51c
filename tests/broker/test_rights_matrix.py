"""Every command and every route as every kind of principal: what is refused is what the table of rights says.

What a principal may do is judged by a plain model here: a set of (right, resource) pairs, with what they imply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from engine.broker.rights.table import COMMANDS, OPERATIONS
from engine.broker.rights.token_file import line_of
from engine.errors import AuthorizationError, EngineError
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.model.admin_requests import NO_BODY
from engine.model.rights import Right
from engine.wire import commands
from tests.kit.peer import Peer, listening

TOPIC = "topic://public/default/orders"
SEGMENT = "segment://public/default/orders/0000-ffff-0"
IMPLIED = {
    "produce": {"lookup"},
    "consume": {"lookup"},
    "admin": {"produce", "consume", "lookup"},
    "superuser": {"produce", "consume", "lookup", "admin", "operate", "proxy"},
}


@dataclass(frozen=True)
class Who:
    """`granted`: rights by resource; None: everything but `broker`. `prefix`: of the subscriptions of consume."""

    name: str
    granted: dict[str, tuple[str, ...]] | None
    prefix: str | None = None
    unlimited: bool = False  # its connection is not wrapped in checks

    def may(self, need: Any) -> bool:
        if not need.rights:
            return True
        wanted = {str(right) for right in Right if need.rights & right}
        if self.granted is None:
            return wanted != {"broker"}
        if need.in_part and any(resource.startswith(need.resource + "/") for resource in self.granted):
            return True  # a list of what it may look up
        for resource, rights in self.granted.items():
            below = resource == "*" or need.resource == resource or need.resource.startswith(resource + "/")
            held = set(rights).union(*(IMPLIED.get(right, set()) for right in rights))
            if self.prefix is not None and need.subscription is not None:
                held -= set() if need.subscription.startswith(self.prefix) else {"consume"}
            if below and held & wanted:
                return True
        return False


WHO = [
    Who("nothing", {}),
    Who("neighbour", {"other": ("admin",), "public/defaul": ("admin",), "public/default/order": ("admin",)}),
    *(Who(right, {"public/default": (right,)}) for right in ("produce", "consume", "lookup", "admin")),
    Who("topic", {"public/default/orders": ("admin",)}),
    Who("prefixed", {"public": ("consume",)}, "mine-"),
    Who("tenant", {"public": ("admin",)}),
    Who("operate", {"*": ("operate",)}),
    Who("proxy", {"*": ("proxy",)}),
    Who("granted-all", {"*": ("superuser",)}),
    Who("root", None),
]

# Headers of those commands that need a right; ids are given when they are sent.
HEADERS: dict[type, list[dict[str, Any]]] = {
    commands.ScalableTopicLookup: [{"topic": TOPIC, "create": False}, {"topic": TOPIC, "create": True}],
    commands.ScalableTopicSubscribe: [
        {"topic": TOPIC, "subscription": s, "consumer_name": "c", "instance": "i", "kind": "stream",
         "initial_position": "earliest"} for s in ("s", "mine-s")
    ],
    commands.ScalableTopicUnsubscribe: [
        {"instance": "i"}, {"instance": "i", "topic": TOPIC, "subscription": "s", "consumer_name": "c"}
    ],
    commands.SeekSubscription: [{"topic": TOPIC, "subscription": "s", "when": "latest"}],
    commands.DeleteSubscription: [{"topic": TOPIC, "subscription": "gone"}],
    commands.TopicSchema: [
        {"topic": TOPIC, "producer": True, "schema": None},
        {"topic": TOPIC, "producer": True, "schema": {"type": "json", "definition": "{}"}},
        {"topic": TOPIC, "producer": False, "schema": {"type": "json", "definition": "{}"}},
    ],
    commands.WatchTopicList: [{"namespace": "public/default"}],
    commands.GetTopicsOfNamespace: [{"namespace": "public/default"}],
    commands.Producer: [{"topic": SEGMENT, "producer_name": "p", "access_mode": "shared"}],
    commands.Subscribe: [
        {"topic": SEGMENT, "subscription": s, "consumer_name": "c", "mode": mode}
        for s, mode in (("q", "queue"), ("mine-q", "queue"), (None, "reader"))
    ],
    commands.SegmentOffset: [
        {"topic": SEGMENT, "at": "latest"},
        {"topic": SEGMENT, "at": "latest", "subscription": "q"},
        {"topic": SEGMENT, "at": "latest", "subscription": "mine-q"},
    ],
    commands.SegmentFiles: [
        {"topic": SEGMENT, "start": 0, "stop": 1},
        {"topic": SEGMENT, "start": 0, "stop": 1, "objects": True},
    ],
    commands.BrokerCall: [{"target": "segment", "method": "nothing"}],
    commands.NewTxn: [{"timeout": 1.0}],
    commands.EndTxn: [{"id": "0" * 16, "action": "abort"}],
    commands.TxnState: [{"id": "0" * 16}],
}  # fmt: skip
IDENTS = ("session_id", "consumer_id", "producer_id")

ARGUMENTS: dict[str, Any] = {
    "topic": TOPIC, "segment": SEGMENT, "namespace": "public/default", "subscription": "s", "segment_id": 0,
    "other_id": 1, "buckets": 4, "first": 0, "last": 0, "when": "latest", "ident": "0" * 16, "tenant": "public",
    "resource": "public/default", "role": "eve", "rights": ["lookup"], "name": "lookups_max", "value": "1000",
    "broker": "engine://192.0.2.1:6650", "policies": {}, "policy": {}, "limits": {}, "properties": {}, "dry_run": True,
    "file": "plan.json", "position": 0, "size": 1,
}  # fmt: skip


@pytest.fixture
async def broker(start_broker, tmp_path):
    path = tmp_path / "roles"
    path.write_text("".join(line_of(who.name, f"token-{who.name}") + "\n" for who in WHO))
    async with start_broker(roles_file=str(path), superusers=["root"]) as broker:
        await broker.admin.create_topic(TOPIC)
        for who in WHO:
            for resource, rights in (who.granted or {}).items():
                await broker.admin.grant(resource, who.name, rights, subscription_prefix=who.prefix)
        yield broker


def test_each_command_with_a_need_is_asked_here():
    assert set(HEADERS) == {kind for kind, rule in COMMANDS.items() if rule is not None}


@pytest.mark.parametrize("who", WHO, ids=lambda who: who.name)
async def test_the_wire_refuses_what_the_table_says(broker, who):
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    await peer.hello(token=f"token-{who.name}")
    await every_command(broker, peer, who)


async def every_command(broker: Any, peer: Peer, who: Who) -> None:
    for kind, headers in HEADERS.items():
        for fields in headers:
            denials, segments = broker.rights.denials, len(list(broker.segments))
            ids = {name: peer.next_id() for name in IDENTS if name in kind.__struct_fields__}
            header = {**ids, **fields}
            refused = await _refusal(peer, kind, header)
            need = COMMANDS[kind](kind(request_id=1, **header))
            assert refused is not who.may(need), (who.name, kind.__name__, fields)
            if refused:
                assert broker.rights.denials == denials + (kind is not commands.BrokerCall or not who.unlimited)
                assert len(list(broker.segments)) == segments


async def _refusal(peer: Peer, kind: Any, header: dict[str, Any]) -> bool:
    try:
        await peer.ask(kind.command, **header)
    except AuthorizationError:
        return True
    except EngineError:
        return False
    return False


@pytest.mark.parametrize("who", WHO, ids=lambda who: who.name)
async def test_the_admin_api_refuses_what_the_table_says(broker, who):
    await broker.serve_admin("127.0.0.1", 0)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer token-{who.name}"}) as session:
        await every_operation(broker, session, who)


async def every_operation(broker: Any, session: aiohttp.ClientSession, who: Who, **options: Any) -> None:
    for row in ROWS:
        if row.without_token:
            continue
        arguments = {p.name: ARGUMENTS[p.name] if p.required else p.default for p in row.parameters}
        request = row.request(arguments)
        need = OPERATIONS[row.name](arguments)
        body = {} if request.body is NO_BODY else {"json": request.body}
        url = aiohttp.client.URL(broker.admin_url + request.path, encoded=True)
        async with session.request(request.verb, url, **body, **options) as answer:
            text = await answer.text()
            assert (answer.status == 403) is not who.may(need), (who.name, row.name, answer.status, text)
            assert answer.status < 500 or answer.status == 501, (row.name, text)  # 501: not with this storage


async def test_nothing_of_the_admin_api_is_open(broker):
    await broker.serve_admin("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        for row in ROWS:
            if row.without_token:
                continue
            request = row.request({p.name: ARGUMENTS[p.name] if p.required else p.default for p in row.parameters})
            url = aiohttp.client.URL(broker.admin_url + request.path, encoded=True)
            async with session.request(request.verb, url) as answer:
                assert answer.status == 401, row.name


async def test_a_denied_creation_creates_nothing(broker):
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    await peer.hello(token="token-lookup")
    with pytest.raises(AuthorizationError):
        await peer.ask(commands.ScalableTopicLookup.command, session_id=1, topic="public/default/new", create=True)
    assert await broker.admin.list_topics("public/default") == [TOPIC]
