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
    "file": "plan.json", "position": 0, "size": 1, "roles": ["eve"],
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


# Who may do what, said once more, by names and not by the table: what is wrong there must not be expected here.
ROOTS = {"granted-all", "root"}
OPERATORS = ROOTS | {"operate"}
OF_TENANT = ROOTS | {"tenant"}
OF_NAMESPACE = OF_TENANT | {"admin"}
OF_TOPIC = OF_NAMESPACE | {"topic"}
WRITERS, READERS = OF_TOPIC | {"produce"}, OF_TOPIC | {"consume"}
OF_MINE = READERS | {"prefixed"}  # readers, of a subscription of its own or of none
LOOKERS = WRITERS | OF_MINE | {"lookup"}
LISTED = LOOKERS | {"neighbour"}  # it has a grant on a topic of the namespace, and sees this one alone
ALL, NONE = {who.name for who in WHO}, set[str]()

MAY: dict[type, list[set[str]]] = {
    commands.ScalableTopicLookup: [LOOKERS, WRITERS | OF_MINE],
    commands.ScalableTopicSubscribe: [READERS, OF_MINE],
    commands.ScalableTopicUnsubscribe: [ALL, READERS],
    commands.SeekSubscription: [READERS],
    commands.DeleteSubscription: [READERS],
    commands.TopicSchema: [LOOKERS, WRITERS, OF_MINE],
    commands.WatchTopicList: [LISTED],
    commands.GetTopicsOfNamespace: [LISTED],
    commands.Producer: [WRITERS],
    commands.Subscribe: [READERS, OF_MINE, OF_MINE],
    commands.SegmentOffset: [OF_MINE, READERS, OF_MINE],
    commands.SegmentFiles: [ROOTS, OF_MINE],
    commands.BrokerCall: [NONE],
    commands.NewTxn: [ALL],
    commands.EndTxn: [ALL],
    commands.TxnState: [ALL],
}

_SAID: list[tuple[set[str], str]] = [
    (ALL, "list_namespaces list_tenants get_description get_permissions"),
    (LISTED, "list_topics"),
    (LOOKERS, """
        get_metadata get_stats get_segment_stats get_topic_policies get_auto_scale_policy get_auto_scale_history
    """),
    (LOOKERS - {"topic"}, "get_namespace_policies get_namespace_auto_scale_policy get_limits"),
    (READERS, "create_subscription delete_subscription seek_subscription clear_backlog skip_messages"),
    (OF_TOPIC, """
        create_topic delete_topic set_topic_properties set_topic_policies remove_topic_policies split_segment
        merge_segments rebucket_segment set_auto_scale_policy remove_auto_scale_policy
    """),
    (OF_NAMESPACE, """
        set_namespace_policies replace_namespace_policies remove_namespace_policies set_namespace_auto_scale_policy
        remove_namespace_auto_scale_policy list_grants grant revoke
    """),
    (OF_TENANT, "get_tenant create_namespace delete_namespace"),
    (OF_TENANT | OPERATORS, "set_limits replace_limits remove_limits"),
    (OPERATORS, """
        list_transactions get_transaction abort_transaction list_brokers get_metrics list_dynamic_configuration
        get_dynamic_configuration get_runtime_configuration set_dynamic_configuration remove_dynamic_configuration
        list_limits drain_broker undrain_broker balance_brokers sweep_objects unload_topic unload_segment
    """),
    (ROOTS, """
        create_segment terminate_segment delete_segment create_tenant set_tenant_roles delete_tenant begin_backup
        read_backup renew_backup end_backup
    """),
]  # fmt: skip
MAY_CALL = {name: who for who, names in _SAID for name in names.split()}


def _allowed(need: Any) -> set[str]:
    return {who.name for who in WHO if who.may(need)}


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
def test_the_table_has_of_each_command_what_is_said_here(kind):
    """A role that may only consume gets no file of a segment (SEGMENT_FILES), which would outlive its right."""
    ids = {name: 1 for name in IDENTS if name in kind.__struct_fields__}
    needs = [COMMANDS[kind](kind(request_id=1, **ids, **fields)) for fields in HEADERS[kind]]
    assert [_allowed(need) for need in needs] == MAY[kind]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.without_token], ids=lambda row: row.name)
def test_the_table_has_of_each_operation_what_is_said_here(row):
    arguments = {p.name: ARGUMENTS[p.name] if p.required else p.default for p in row.parameters}
    assert _allowed(OPERATIONS[row.name](arguments)) == MAY_CALL[row.name]


@pytest.mark.parametrize(
    ("name", "resource", "who"),
    [
        ("grant", "*", ROOTS), ("revoke", "*", ROOTS), ("list_grants", "*", ROOTS), ("grant", "public", OF_TENANT),
        ("grant", "public/default/orders", OF_TOPIC), ("grant", "public/defaul", {"neighbour"} | OF_TENANT),
        ("get_limits", "*", OPERATORS), ("get_limits", "role:*", OPERATORS),
        ("get_limits", "public/default/orders", LOOKERS),
        ("set_limits", "*", OPERATORS), ("set_limits", "role:eve", OPERATORS), ("set_limits", "public", OPERATORS),
        ("set_limits", "public/default/orders", OF_NAMESPACE | OPERATORS),
    ],
)  # fmt: skip
def test_who_grants_and_limits_at_each_level(name, resource, who):
    assert _allowed(OPERATIONS[name]({"resource": resource, "role": "eve", "rights": ["lookup"], "limits": {}})) == who


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
                assert broker.rights.denials == denials + 1
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
