"""Every command of Apache Pulsar's protocol as every kind of principal: what is refused is what the table says.

A case is a frame, the headers of ours that it stands for, and the cases of what has to be attached before it. It must
be answered without an error if the principal may do all of that, and be refused otherwise; what is refused changes
nothing.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.broker.rights.need import Need
from engine.broker.rights.table import COMMANDS, PULSAR
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.model.names import TopicName
from engine.model.rights import Right
from engine.pulsar.recognising import recogniser
from engine.pulsar.server_errors import AUTHORIZATION, TOPIC_NOT_FOUND
from engine.pulsar.session import EMPTY, Session
from engine.pulsar.transactions import COORDINATORS
from engine.wire import commands
from tests.broker.test_rights_matrix import WHO, Who
from tests.kit.certificates import Authority
from tests.pulsar.raw import Raw, framed_send
from tests.reference.pulsar_reference import PulsarMessage

NAMESPACE = "public/default"
TOPICS = CLASSIC, TYPED, SECOND = [f"persistent://{NAMESPACE}/{name}" for name in ("orders", "typed", "second")]
SCALABLE, SEGMENT = f"topic://{NAMESPACE}/orders", f"segment://{NAMESPACE}/orders/0000-ffff-0"
SCHEMA = {"type": 2, "data": b'{"type": "record", "name": "r", "fields": []}'}
DEFINITION = {"type": "json", "definition": SCHEMA["data"].decode()}  # type: ignore[attr-defined]
EXCLUSIVE, SHARED, KEY_SHARED = 0, 1, 3
GARBAGE = "token of nobody"

OF_CLASSIC = Who("classic", {f"{NAMESPACE}/persistent:orders": ("admin",)})
OF_TWO = Who("two", {NAMESPACE: ("consume",), f"{NAMESPACE}/persistent:second": ("admin",)}, "mine-")
ALL = [*WHO, OF_CLASSIC]
ROOT = next(who for who in WHO if who.granted is None)

Asked = tuple[type, dict[str, Any]]  # a header of ours, and its fields


@dataclass(frozen=True)
class Case:
    """`asks`: the headers that need a right. `needs`: what no header says. `error`: the answer where it is allowed.

    `tied`: it may be done only where what comes before it was. `never`: nobody may.
    """

    name: str
    fields: dict[str, Any]
    asks: tuple[Asked, ...] = ()
    before: tuple[Case, ...] = ()
    needs: tuple[Need, ...] = ()
    error: int | None = None
    tied: bool = True
    never: bool = False

    @property
    def of_tokens(self) -> bool:
        """Whether it is allowed or refused by its token alone."""
        said = self.fields.get("response", self.fields)
        return said.get("auth_data", "own") != "own" or self.name == "auth_response"

    def allowed(self, who: Who) -> bool:
        """By the table, and the model of the principal."""
        if self.never or (self.tied and not all(case.allowed(who) for case in self.before)):
            return False
        return all(map(who.may, itertools.chain(self.needs, itertools.starmap(need_of, self.asks))))


def need_of(kind: type, fields: dict[str, Any]) -> Need:
    rule = COMMANDS[kind]
    assert rule is not None
    return rule(kind(request_id=1, **fields))


def looks_up(topic: str, *, create: bool = False) -> Asked:
    return commands.ScalableTopicLookup, {"session_id": 1, "topic": topic, "create": create}


def produces(topic: str) -> Asked:
    return commands.Producer, {"producer_id": 1, "topic": topic, "producer_name": "p", "access_mode": "shared"}


def consumes(topic: str, subscription: str | None) -> Asked:
    fields = {"consumer_id": 1, "topic": topic, "consumer_name": "c", "mode": "queue", "subscription": subscription}
    return commands.Subscribe, fields


def declares(topic: str, *, producer: bool, schema: Any = DEFINITION) -> Asked:
    return commands.TopicSchema, {"topic": topic, "producer": producer, "schema": schema}


def registers(subscription: str) -> Asked:
    fields = {"consumer_id": 1, "topic": SCALABLE, "subscription": subscription, "consumer_name": "c",
              "instance": "i", "kind": "stream", "initial_position": "earliest"}  # fmt: skip
    return commands.ScalableTopicSubscribe, fields


def producer(topic: str, *more: Asked, **fields: Any) -> Case:
    return Case("producer", {"topic": topic, "producer": 1, "request": 1, **fields}, (produces(topic), *more))


def subscribe(topic: str, subscription: str, *more: Asked, kind: int = SHARED, **fields: Any) -> Case:
    said = {"topic": topic, "subscription": subscription, "type": kind, "consumer": 1, "request": 1, "name": "c",
            "initial_position": 1, **fields}  # fmt: skip
    named = subscription if fields.get("durable", True) else None
    return Case("subscribe", said, (consumes(topic, named), *more))


def of_consumer(name: str, *before: Case, **fields: Any) -> list[Case]:
    """A command of a consumer that is attached: of a subscription with the prefix, and of one without."""
    said = {"consumer": 1, **fields}
    if name not in ("flow", "redeliver"):
        said["request"] = 9
    made = [Case(name, said, before=(subscribe(CLASSIC, f"{prefix}{name}"), *before)) for prefix in ("", "mine-")]
    return [*made, Case(name, said, before=(subscribe(SEGMENT, f"mine-{name}", kind=SHARED), *before))]


def registered(subscription: str) -> tuple[Case, ...]:
    fields = {"topic": SCALABLE, "subscription": subscription, "name": "c", "consumer": 2, "request": 2}
    attached = subscribe(SEGMENT, subscription, kind=EXCLUSIVE, name="c-seg-0")
    return Case("scalable_subscribe", fields, (registers(subscription),)), attached


FLOW = Case("flow", {"consumer": 1, "permits": 10})
FIRST = [{"ledger": 0, "entry": 0}]  # the id of the first message
NEW_TXN = Case("new_txn", {"request": 3, "ttl_ms": 60_000, "tc": 0}, ((commands.NewTxn, {"timeout": 60.0}),))
ENDS: tuple[Asked, ...] = ((commands.EndTxn, {"id": "0" * 16, "action": "abort"}),)
MADE = [f"persistent://{NAMESPACE}/made-{number}" for number in range(5)]  # each by one case
EMPTY_LOOKUP = Case("scalable_lookup", {"session": 1, "topic": SCALABLE}, (looks_up(SCALABLE),))
FOLLOWS: tuple[Asked, ...] = ((commands.WatchTopicList, {"session_id": 1, "namespace": NAMESPACE}),)
WATCHED = Case("watch_topics", {"watch": 1, "namespace": NAMESPACE}, FOLLOWS)
PATTERN = f"persistent://{NAMESPACE}/.*"
LISTED = Case("watch_topic_list", {"request": 1, "watcher": 1, "namespace": NAMESPACE, "pattern": PATTERN}, FOLLOWS)

# Each command's cases. Transactions and tokens are put in their places when they are sent: "own", "other".
CASES: dict[str, list[Case]] = {
    "connect": [
        Case("connect", {"auth_data": "own", "auth_method": "token", "client_version": "test", "protocol": 19}),
        Case("connect", {"auth_data": GARBAGE, "auth_method": "token", "client_version": "test"}, never=True),
        Case("connect", {"auth_data": "own", "auth_method": "token", "original_principal": "root"}, never=True),
        Case("connect", {"auth_data": "own", "auth_method": "token", "proxy_to": "127.0.0.1:1"}, never=True),
        Case("connect", {"auth_data": "own", "auth_method": "token", "original_auth_data": "root"}, never=True),
    ],
    "ping": [Case("ping", {})],
    "pong": [Case("pong", {})],
    "auth_response": [
        Case("auth_response", {"response": {"auth_method": "token", "auth_data": "own"}}),
        Case("auth_response", {"response": {"auth_method": "token", "auth_data": "other"}}, never=True),
        Case("auth_response", {"response": {"auth_method": "token", "auth_data": GARBAGE}}, never=True),
    ],
    "lookup": [
        Case("lookup", {"topic": CLASSIC, "request": 1}, (looks_up(CLASSIC),)),
        Case("lookup", {"topic": SEGMENT, "request": 1}, (looks_up(SCALABLE),)),
        Case("lookup", {"topic": f"{CLASSIC}-missing", "request": 1}, (looks_up(f"{CLASSIC}-missing"),)),
        Case("lookup", {"topic": SEGMENT[:-1] + "7", "request": 1}, (looks_up(SCALABLE),), error=TOPIC_NOT_FOUND),
        Case("lookup", {"topic": SCALABLE, "request": 1}),
        Case("lookup", {"topic": f"{COORDINATORS}-partition-0", "request": 1}),
    ],
    "partitioned": [
        Case("partitioned", {"topic": CLASSIC, "request": 1}, (looks_up(CLASSIC),)),
        Case("partitioned", {"topic": f"{CLASSIC}-missing", "request": 1}, (looks_up(f"{CLASSIC}-missing"),)),
        Case("partitioned", {"topic": SEGMENT, "request": 1}),  # none, whatever it is
        Case("partitioned", {"topic": COORDINATORS, "request": 1}),
    ],
    "get_topics": [
        Case("get_topics", {"namespace": NAMESPACE, "mode": mode, "request": 1},
             ((commands.GetTopicsOfNamespace, {"namespace": NAMESPACE}),)) for mode in (0, 2)
    ] + [Case("get_topics", {"namespace": NAMESPACE, "mode": 1, "request": 1})],  # there are none of this kind
    "get_schema": [
        Case("get_schema", {"topic": topic, "request": 1}, (declares(topic, producer=False, schema=None),), error=error)
        for topic, error in ((TYPED, None), (SCALABLE, TOPIC_NOT_FOUND), (SEGMENT, TOPIC_NOT_FOUND))
    ],
    "get_or_create_schema": [
        Case("get_or_create_schema", {"topic": topic, "request": 1, "schema": SCHEMA},
             (declares(topic, producer=True),)) for topic in (SECOND, SEGMENT)
    ],
    "producer": [
        producer(CLASSIC),
        producer(SEGMENT),
        producer(MADE[0], looks_up(MADE[0], create=True)),
        producer(TYPED, declares(TYPED, producer=True), schema=SCHEMA),
        *(producer(CLASSIC, access_mode=mode, producer=mode, name=f"p-{mode}") for mode in (3, 1)),
        *(producer(CLASSIC, consumes(CLASSIC, name), initial_subscription=name) for name in ("s", "mine-s")),
    ],
    "send": [Case("send", {"producer": 1}, before=(producer(topic),)) for topic in (CLASSIC, SEGMENT)],
    "close_producer": [
        Case("close_producer", {"producer": 1, "request": 9}, before=(producer(CLASSIC),), tied=False)
    ],
    "subscribe": [
        *(subscribe(CLASSIC, name) for name in ("s", "mine-s")),
        *(subscribe(CLASSIC, name, kind=KEY_SHARED) for name in ("k", "mine-k")),
        *(subscribe(SEGMENT, name, kind=EXCLUSIVE) for name in ("e", "mine-e")),
        *(subscribe(topic, "reader", durable=False, kind=EXCLUSIVE) for topic in (CLASSIC, SEGMENT)),
        subscribe(MADE[1], "mine-s", looks_up(MADE[1], create=True)),
        subscribe(MADE[2], "s", looks_up(MADE[2], create=True)),
        subscribe(TYPED, "mine-s", declares(TYPED, producer=False), schema=SCHEMA),
        replace(subscribe(f"{CLASSIC}-missing", "mine-s", create=False), error=TOPIC_NOT_FOUND),
    ],
    "flow": [Case("flow", {"consumer": 1, "permits": 10}, before=case.before) for case in of_consumer("flow")],
    "ack": of_consumer("ack", FLOW, type=0, ids=FIRST),
    "redeliver": of_consumer("redeliver", FLOW),
    "seek": of_consumer("seek", message_id={"ledger": 0, "entry": 0}),
    "get_last_message_id": of_consumer("get_last_message_id"),
    "consumer_stats": of_consumer("consumer_stats"),
    "unsubscribe": [
        replace(case, asks=((commands.DeleteSubscription, {"topic": topic, "subscription": name}),))
        for case, topic, name in zip(
            of_consumer("unsubscribe"), (CLASSIC, CLASSIC, SCALABLE), ("unsubscribe", *["mine-unsubscribe"] * 2),
            strict=True,
        )
    ],
    "close_consumer": [
        replace(case, tied=False)  # one that is not attached is closed as well
        for case in (
            *of_consumer("close_consumer"),
            *(Case("close_consumer", {"consumer": 1, "request": 9}, before=registered(n)) for n in ("r", "mine-r")),
        )
    ],
    "scalable_lookup": [
        EMPTY_LOOKUP,
        *(Case("scalable_lookup", {"session": 1, "topic": topic}, (looks_up(topic), looks_up(topic, create=True)))
          for topic in (f"topic://{NAMESPACE}/made-5",)),
    ],
    "scalable_close": [Case("scalable_close", {"session": 1}, before=(EMPTY_LOOKUP,), tied=False)],
    "scalable_subscribe": [registered(name)[0] for name in ("g", "mine-g")],
    "watch_topics": [WATCHED],
    "watch_topics_close": [Case("watch_topics_close", {"watch": 1}, before=(WATCHED,), tied=False)],
    "watch_topic_list": [LISTED],
    "watch_topic_list_close": [
        Case("watch_topic_list_close", {"request": 9, "watcher": 1}, before=(LISTED,), tied=False)
    ],
    "tc_connect": [Case("tc_connect", {"request": 1, "tc": 0})],
    "watch_tcs": [Case("watch_tcs", {"watch": 1})],
    "watch_tcs_close": [Case("watch_tcs_close", {"watch": 1})],
    "new_txn": [NEW_TXN],
    "add_partition": [Case("add_partition", {"request": 1, "txn": "own", "partitions": [CLASSIC]}, before=(NEW_TXN,))],
    "add_subscription": [
        Case("add_subscription",
             {"request": 1, "txn": "own", "subscriptions": [{"topic": CLASSIC, "subscription": "s"}]},
             before=(NEW_TXN,))
    ],
    "end_txn": [
        *(Case("end_txn", {"request": 1, "txn": "own", "action": action}, ENDS, (NEW_TXN,)) for action in (0, 1)),
        Case("end_txn", {"request": 1, "txn": "other", "action": 0}, ENDS, needs=(Need(Right.OPERATE),)),
    ],
}  # fmt: skip

# What a command that was done is answered with; of the others nothing comes but errors.
ANSWERS = {
    "connect": "connected", "ping": "pong", "lookup": "lookup_response", "partitioned": "partitioned_response",
    "get_topics": "get_topics_response", "get_schema": "get_schema_response",
    "get_or_create_schema": "get_or_create_schema_response", "producer": "producer_success", "send": "send_receipt",
    "close_producer": "success", "subscribe": "success", "flow": "message", "ack": "ack_response",
    "redeliver": "message", "seek": "success", "get_last_message_id": "get_last_message_id_response",
    "consumer_stats": "consumer_stats_response", "unsubscribe": "success", "close_consumer": "success",
    "scalable_lookup": "scalable_update", "scalable_subscribe": "scalable_subscribe_response",
    "watch_topics": "watch_topics_update", "watch_topic_list": "watch_topic_list_success",
    "watch_topic_list_close": "success",
    "tc_connect": "tc_connect_response", "watch_tcs": "watch_tcs_update", "new_txn": "new_txn_response",
    "add_partition": "add_partition_response", "add_subscription": "add_subscription_response",
    "end_txn": "end_txn_response",
}  # fmt: skip
UNANSWERED = ("send", "flow", "redeliver")  # of what is not attached
ENDED = -1  # in place of an error: the connection has ended


def test_each_command_that_a_session_takes_is_in_the_table_and_asked_here() -> None:
    assert set(PULSAR) == set(CASES) == set(handlers_of_a_session())


def test_each_case_asks_what_the_table_says_of_its_command() -> None:
    for name, cases in CASES.items():
        assert {kind for case in cases for kind, _ in case.asks} <= set(PULSAR[name]), name


def handlers_of_a_session() -> dict[str, Any]:
    """The commands of one, which needs no connection for that."""
    session = Session(*[Nothing()] * 4)  # type: ignore[arg-type]
    return session._handlers


class Nothing:
    """Whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        return Nothing()


class Stage:
    """A broker, its topics with a message in each, and the transaction of another role."""

    def __init__(self, broker: Broker, token: str | None) -> None:
        self.broker = broker
        self.service_url = broker.service_url
        self.token = token  # of what prepares it
        self.tls: ssl.SSLContext | None = None  # for clients
        self.transaction = (0, 0)
        self._known: list[Any] | None = None  # the state, while nothing was done that may change it

    async def prepare(self) -> None:
        admin = self.broker.admin
        await admin.create_topic(SCALABLE, key_hash="murmur3")
        for topic in TOPICS:
            await admin.create_topic(topic)
        async with Raw(self, self.tls) as raw:
            root = Client(self, raw, self.token)
            assert await root.greet() is None
            for number, topic in enumerate((CLASSIC, SEGMENT)):
                for case in (producer(topic, producer=number, name="first"), Case("send", {"producer": number})):
                    assert await root.ask(case, waits=True) is None
            typed = Case("get_or_create_schema", {"topic": TYPED, "request": 1, "schema": SCHEMA})
            assert await root.ask(typed, waits=True) is None
            assert await root.ask(NEW_TXN, waits=True) is None
            self.transaction = root.transaction

    async def state(self) -> list[Any]:
        """What a refused command must leave as it is, as it was last seen."""
        if self._known is None:
            self._known = await self.seen()
        return self._known

    def done(self) -> None:
        """Something was done that may have changed the state."""
        self._known = None

    async def seen(self) -> list[Any]:
        """The state now."""
        service, found = self.broker.service, list[Any]()
        for topic in await service.list_topics(NAMESPACE):
            versions = (await service.schemas.history(TopicName.parse(topic))).versions
            subscriptions = await service.list_subscriptions(topic)
            found.append((topic, len(versions), sorted(one.name for one in subscriptions)))
        return [*found, sorted((str(one.name), one.segment.durable_offset) for one in self.broker.segments)]


class Client:
    """One connection of a principal."""

    def __init__(self, stage: Stage, raw: Raw, token: str | None) -> None:
        self._stage, self._raw, self._token = stage, raw, token
        self.transaction = (0, 0)
        self.answer: Any = None

    async def greet(self) -> int | None:
        return await self.ask(CASES["connect"][0], waits=True)

    async def ask(self, case: Case, *, waits: bool) -> int | None:
        """The error that a command is answered with; None: it was done. `waits`: it is answered when it is done."""
        fields = self._filled(case.fields)
        if case.name == "send":
            await self._raw.say(framed_send(fields["producer"], [PulsarMessage(b"v", b"k")]))
        else:
            await self._raw.say_command(case.name, **fields)
        answer = ANSWERS.get(case.name) if waits else None
        if answer is None and not case.never:  # behind which nothing comes any more
            await self._raw.say_command("ping")
        while (heard := await self._raw.hear()) is not None:
            name, found = heard
            if name in ("error", "send_error"):
                return int(found.error)
            if case.name == "redeliver" and name == "message" and not found.redelivered:
                continue
            if name in (answer, ANSWERS.get(case.name)):
                return self._answered(name, found)
            if name == "pong" and answer is None:
                return None
            if name == "ping":
                await self._raw.say_command("pong")
        return ENDED

    def _answered(self, name: str, found: Any) -> int | None:
        self.answer = found
        if name == "new_txn_response":
            self.transaction = found.txn_low, found.txn_high
        of = found.DESCRIPTOR.fields_by_name
        return int(found.error) if "error" in of and found.HasField("error") else None

    def _filled(self, fields: dict[str, Any]) -> dict[str, Any]:
        said = dict(fields)
        if (whose := said.pop("txn", None)) is not None:
            low, high = self.transaction if whose == "own" else self._stage.transaction
            said |= {"txn_low": low, "txn_high": high}
        if "response" in said:
            said["response"] = self._with_token(said["response"])
        return self._with_token(said) if "auth_data" in said else said

    def _with_token(self, said: dict[str, Any]) -> dict[str, Any]:
        token = {"own": self._token, "other": "token-stranger"}.get(said["auth_data"], said["auth_data"])
        return said | {"auth_data": (token or "").encode()}


@asynccontextmanager
async def started(tmp_path: Path, token: str | None, **config: Any) -> AsyncIterator[Stage]:
    """A broker with these settings, prepared by whatever has the token."""
    broker = Broker(tmp_path / "data", config=BrokerConfig(**config), recognise=recogniser())
    await broker.start()
    try:
        await broker.serve("127.0.0.1", 0)
        stage = Stage(broker, token)
        yield stage
    finally:
        await broker.close()


@asynccontextmanager
async def with_roles(tmp_path: Path, **config: Any) -> AsyncIterator[Stage]:
    """A broker with the roles of the matrix, and their grants."""
    path = tmp_path / "roles"
    names = [*(who.name for who in (*ALL, OF_TWO)), "stranger"]
    path.write_text("".join(line_of(name, f"token-{name}") + "\n" for name in names))
    async with started(tmp_path, "token-root", roles_file=str(path), superusers=["root"], **config) as stage:
        for who in (*ALL, OF_TWO):
            for resource, rights in (who.granted or {}).items():
                prefix = who.prefix if "consume" in rights else None
                await stage.broker.admin.grant(resource, who.name, rights, subscription_prefix=prefix)
        yield stage


async def every_command(
    stage: Stage, who: Who, token: str | None, blind: tuple[str, ...] = (), most: int | None = None
) -> None:
    """`blind`: commands whose tokens are not looked at, or are not of this way in. `most`: cases of each command."""
    for case in itertools.chain.from_iterable(cases[:most] for cases in CASES.values()):
        if case.name not in blind or not case.of_tokens:
            await one_command(stage, who, token, case)


async def one_command(stage: Stage, who: Who, token: str | None, case: Case) -> None:
    rights, allowed = stage.broker.rights, case.allowed(who)
    async with Raw(stage, stage.tls) as raw:
        client = Client(stage, raw, token)
        if case.name != "connect":
            assert await client.greet() is None
        tied = True  # what comes before it was done
        for one in case.before:
            tied = tied and one.allowed(who)
            got = await client.ask(one, waits=tied or one.name not in UNANSWERED)
            assert (got is None) is tied or one.name in UNANSWERED, (who.name, one, got)
            if tied:
                stage.done()
        denials, before = rights.denials, [] if allowed else await stage.state()
        got = await client.ask(case, waits=allowed or case.name not in UNANSWERED)
        if allowed:
            stage.done()
            assert got == case.error, (who.name, case, got)
            assert rights.denials == denials, (who.name, case)
            if case.name == "get_topics" and case.asks:
                seen = {topic for topic in TOPICS if who.may(need_of(*looks_up(topic)))}
                assert seen == set(client.answer.topics) & set(TOPICS), who.name
            return
        assert await stage.seen() == before, (who.name, case)
        if tied and not case.never and not case.needs:
            assert got == AUTHORIZATION, (who.name, case, got)
            assert rights.denials == denials + 1, (who.name, case)
        else:
            assert got is not None or case.name in UNANSWERED, (who.name, case)


@pytest.mark.parametrize("who", ALL, ids=lambda who: who.name)
async def test_what_is_refused_is_what_the_table_says(tmp_path: Path, who: Who) -> None:
    async with with_roles(tmp_path) as stage:
        await stage.prepare()
        await every_command(stage, who, f"token-{who.name}")


async def test_a_command_asks_what_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[type] = set()
    native, check = Session.native, Session.check

    def received(self: Session, header: Any, payload: memoryview = EMPTY) -> None:
        asked.add(type(header))
        native(self, header, payload)

    def checked(self: Session, header: Any) -> None:
        asked.add(type(header))
        check(self, header)

    monkeypatch.setattr(Session, "native", received)
    monkeypatch.setattr(Session, "check", checked)
    async with with_roles(tmp_path) as stage:
        await stage.prepare()
        for name, cases in CASES.items():
            found: set[type] = set()
            for case in cases:
                async with Raw(stage) as raw:
                    client = Client(stage, raw, "token-root")
                    if name != "connect":
                        assert await client.greet() is None
                    for one in case.before:
                        assert await client.ask(one, waits=True) is None
                    asked.clear()
                    await client.ask(case, waits=True)
                    found |= asked - {commands.Ping, commands.Pong, commands.Connect}
            declared = set(PULSAR[name]) - {commands.Ping, commands.Pong}
            by_chance = {commands.EndTxn} if name == "new_txn" else set()  # where the number of one does not fit
            assert found | by_chance == declared, name


class Anyone(Who):
    def may(self, need: Any) -> bool:
        return True


async def test_anonymous_clients_may_do_everything_where_there_are_no_roles(tmp_path: Path) -> None:
    async with started(tmp_path, None) as stage:
        await stage.prepare()
        await every_command(stage, Anyone("anyone", None), None, ("connect", "auth_response"))


class OfBrokers(Who):
    """Calls between brokers, and nothing else."""

    def may(self, need: Any) -> bool:
        return bool(need.rights == Right.BROKER)


async def test_the_shared_token_is_a_superusers_and_that_of_the_brokers_opens_nothing(tmp_path: Path) -> None:
    async with with_roles(tmp_path, auth_token="token of all", cluster_token="token of the brokers") as stage:
        await stage.prepare()
        await every_command(stage, Anyone("shared", None), "token of all", ("auth_response",))
        await every_command(stage, OfBrokers("broker", {}), "token of the brokers", ("auth_response",))


async def test_a_certificate_may_do_what_its_role_may(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.certify("127.0.0.1")
    async with with_roles(tmp_path, tls_cert=cert, tls_key=key, tls_client_ca=authority.file) as stage:
        for who in (ROOT, next(who for who in WHO if who.name == "prefixed")):  # the first one prepares it
            stage.tls = ssl.create_default_context(cafile=authority.file)
            stage.tls.load_cert_chain(*authority.certify("laptop.example.org", name=who.name, subject=who.name))
            if who is ROOT:
                await stage.prepare()
            else:
                await every_command(stage, who, None, ("connect",), most=2)
