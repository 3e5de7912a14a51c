"""Each denial is counted and is one line of the audit log, whatever it is for: none is raised in another way."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.admin import rest
from engine.broker.metrics.exposition import exposition
from engine.broker.metrics.whole import whole_families
from engine.broker.rights import audit, table
from engine.broker.rights.audit import Audit
from engine.broker.rights.principal import UNKNOWN, Kind, Principal, Proof
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.session import guard
from engine.client.admin.admin_http import HttpAdmin
from engine.errors import AuthorizationError, FencedError, TransactionNotFoundError
from engine.model.admin_rights_operations import LIST_TENANTS
from engine.model.generated_names import generated
from engine.testing.clock import FakeClock
from engine.wire import commands
from engine.wire.commands import Command
from tests.broker.transacting import begin
from tests.kit.peer import Peer, listening, until
from tests.kit.raw_http import asked

SOURCES = Path(engine.__file__).parent
ROOMS = ("broker", "proxy", "control", "pulsar", "console", "processes")
MAKERS = {("broker/rights/audit.py", "denial"), ("broker/rights/rights.py", "denial")}  # they write the line

ANN, BOB = "token-of-ann", "token-of-bob"
SHARED = "token-of-all"
TOPIC = "public/default/orders"


def test_no_denial_is_made_without_its_line() -> None:
    made = {found for room in ROOMS for path in (SOURCES / room).rglob("*.py") for found in _made(path)}
    assert made == MAKERS


def _made(path: Path) -> Iterator[tuple[str, str]]:
    """The file and the function of each place that makes an AuthorizationError, or names it to raise it."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                called = node.func if isinstance(node, ast.Call) else node.exc if isinstance(node, ast.Raise) else None
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name == AuthorizationError.__name__:
                    yield path.relative_to(SOURCES).as_posix(), function.name


def test_the_search_finds_each_way_to_raise_it(tmp_path: Path) -> None:
    for line in ("raise AuthorizationError", "raise errors.AuthorizationError('x')", "e = AuthorizationError('x')"):
        path = SOURCES / "broker" / "one.py"
        source = type("Source", (), {"read_text": lambda _, line=line: f"def f():\n    {line}\n"})()
        source.relative_to = path.relative_to
        assert list(_made(source))[:1] == [("broker/one.py", "f")], line


@dataclass
class Stage:
    broker: Broker
    ann: Peer
    bob: Peer
    audit: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    async def denied(self, match: str, asking: Any, error: type[Exception] = AuthorizationError) -> dict[str, Any]:
        """The line of a denial, which is counted once."""
        lines, counted = len(self.lines()), self.counted()
        with pytest.raises(error, match=match):
            await asking
        (line,) = self.lines()[lines:]
        assert self.counted() == counted + 1
        assert line["allowed"] is False
        now = datetime.now(UTC)
        assert abs((now - datetime.fromisoformat(line["time"])).total_seconds()) < 60
        return line

    def counted(self) -> int:
        text = exposition(whole_families(self.broker))
        (value,) = (v for name, v in map(str.split, _samples(text)) if name == "engine_authorization_denials_total")
        return int(float(value))


def _samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("engine_authorization_denials_total")]


@pytest.fixture
async def stage(start_broker: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Stage]:
    path = tmp_path / "roles"
    path.write_text(f"{line_of('ann', ANN)}\n{line_of('bob', BOB)}\n")
    async with start_broker(
        roles_file=str(path), auth_token=SHARED, cluster_token="between-brokers", audit_log=str(tmp_path / "audit")
    ) as broker:
        await broker.service.create_topic("orders", segments=2)
        for role in ("ann", "bob"):
            await broker.admin.grant("public/default", role, ["produce", "consume"])
        (tmp_path / "audit").write_text("")
        yield Stage(broker, await of(broker, ANN), await of(broker, BOB), tmp_path / "audit")


async def of(broker: Broker, token: str) -> Peer:
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    await peer.hello(token=token)
    return peer


def produce(peer: Peer, segment: str, name: str, mode: str = "shared", **more: Any) -> Any:
    said = {"topic": segment, "producer_name": name, "access_mode": mode, **more}
    return peer.ask(Command.PRODUCER, producer_id=peer.next_id(), **said)


def who(line: dict[str, Any]) -> tuple[str, str, str]:
    assert line["peer"].startswith("tcp://127.0.0.1:")
    return line["role"], line["kind"], line["proof"]


BOB_IS = ("bob", "role", "token file")


@pytest.mark.parametrize("attached", [True, False])
async def test_the_name_of_another_roles_producer(stage: Stage, attached: bool) -> None:
    first = await stage.ann.segment("orders")
    ident = (await produce(stage.ann, first, "p"))["producer_id"]
    if not attached:
        await stage.ann.ask(Command.CLOSE_PRODUCER, producer_id=ident)
    line = await stage.denied("belongs to another role", produce(stage.bob, first, "p"))
    assert who(line) == BOB_IS
    assert (line["request"], line["right"], line["resource"]) == ("PRODUCER", "admin", TOPIC)
    assert line["reason"] == "the producer name 'p' belongs to another role"


async def test_a_name_that_another_client_has_generated(stage: Stage) -> None:
    asking = produce(stage.bob, await stage.bob.segment("orders"), generated(b"a secret of 16 b"))
    line = await stage.denied("that has generated it", asking)
    assert (who(line), line["right"], line["resource"]) == (BOB_IS, "admin", TOPIC)
    assert "that has generated it" in line["reason"]


async def test_fencing_another_roles_producer(stage: Stage) -> None:
    first = await stage.ann.segment("orders")
    await produce(stage.ann, first, "p", "exclusive")
    line = await stage.denied("needed to fence", produce(stage.bob, first, "q", "exclusive_with_fencing"))
    assert (who(line), line["right"], line["resource"]) == (BOB_IS, "admin", TOPIC)
    assert line["reason"] == "the right admin is needed to fence the producer 'p' of another role"


async def test_exclusive_access_at_another_segment(stage: Stage) -> None:
    second = await stage.bob.segment("orders", 1)
    line = await stage.denied("decided at its first segment", produce(stage.bob, second, "p", "exclusive"))
    assert (who(line), line["right"], line["resource"]) == (BOB_IS, None, TOPIC)
    assert "decided at its first segment" in line["reason"]


async def test_a_claim_that_is_made_up(stage: Stage) -> None:
    first = await stage.bob.segment("orders")
    asking = produce(stage.bob, first, "p", "exclusive", claim=[2**62, 0, 0, 1, 2])
    line = await stage.denied("was not issued", asking, FencedError)
    assert (who(line), line["right"], line["resource"]) == (BOB_IS, None, TOPIC)
    assert "was not issued" in line["reason"]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_the_name_of_another_roles_consumer(stage: Stage, mode: str) -> None:
    first = await stage.ann.segment("orders")
    shared = {} if mode == "exclusive" else {"bucketBoundaries": await _boundaries(stage.ann)}
    await stage.ann.consumer(first, mode, name="c", **shared)
    line = await stage.denied("in use by another role", stage.bob.consumer(first, mode, name="c", **shared))
    assert (who(line), line["right"], line["resource"], line["subscription"]) == (BOB_IS, None, TOPIC, "s")
    assert (line["request"], line["reason"]) == ("SUBSCRIBE", "the consumer name 'c' is in use by another role")


async def _boundaries(peer: Peer) -> list[int]:
    (first, _) = (await peer.lookup("orders"))["dag"]["segments"]
    return list(first["bucketBoundaries"])


async def test_the_name_of_another_roles_registration(stage: Stage) -> None:
    said = {"topic": TOPIC, "subscription": "s", "consumer_name": "c", "kind": "stream", "initial_position": "latest"}

    def register(peer: Peer) -> Any:
        return peer.ask(Command.SCALABLE_TOPIC_SUBSCRIBE, consumer_id=peer.next_id(), instance="i", **said)

    await register(stage.ann)
    line = await stage.denied("in use by another role", register(stage.bob))
    assert (who(line), line["right"], line["resource"], line["subscription"]) == (BOB_IS, None, TOPIC, "s")
    assert line["request"] == "SCALABLE_TOPIC_SUBSCRIBE"


async def test_another_roles_transaction(stage: Stage) -> None:
    """Its answer is that of one that never was, for which there is no line."""
    ident = await begin(stage.ann)
    for asking, request in (
        (stage.bob.ask(Command.END_TXN, id=ident, action="commit"), f"END_TXN {ident}"),
        (stage.bob.ask(Command.TXN_STATE, id=ident), f"TXN_STATE {ident}"),
    ):
        line = await stage.denied("no transaction", asking, TransactionNotFoundError)
        assert (who(line), line["request"], line["right"], line["resource"]) == (BOB_IS, request, "operate", "*")
        assert line["reason"] == "the transaction belongs to another role"
    before = stage.lines()
    with pytest.raises(TransactionNotFoundError):
        await stage.bob.ask(Command.TXN_STATE, id="0" * 16)
    assert stage.lines() == before


@pytest.mark.parametrize(("token", "is_of"), [(BOB, BOB_IS), (SHARED, ("shared", "shared", "token"))])
async def test_a_call_of_brokers_by_a_client(stage: Stage, token: str, is_of: tuple[str, str, str]) -> None:
    client = await of(stage.broker, token)
    asking = client.ask(Command.BROKER_CALL, target="moon", method="land")
    line = await stage.denied("broker is needed|must be a broker", asking)
    assert (who(line), line["right"], line["resource"]) == (is_of, "broker", "*")
    assert line["request"] == ("BROKER_CALL" if token == BOB else "BROKER_CALL moon.land")


async def test_a_call_of_brokers_where_there_are_no_roles(start_broker: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with start_broker(auth_token=SHARED, cluster_token="between-brokers", audit_log=str(path)) as broker:
        client = await of(broker, SHARED)
        with pytest.raises(AuthorizationError, match="must be a broker, by cluster_token"):
            await client.ask(Command.BROKER_CALL, target="moon", method="land")
    (line,) = (json.loads(text) for text in path.read_text().splitlines())
    assert (who(line), line["right"], line["request"]) == (
        ("shared", "shared", "token"), "broker", "BROKER_CALL moon.land"
    )  # fmt: skip
    assert "must be a broker, by cluster_token" in line["reason"]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "evil.example"}, "Host header must be an address"),
        ({"Host": "localhost", "Origin": "https://evil.example"}, "Origin header must be the origin"),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, "must come from the same origin"),
    ],
)
async def test_a_request_of_a_web_page(stage: Stage, headers: dict[str, str], reason: str) -> None:
    """It is denied before its proof is looked at."""
    address = await stage.broker.serve_admin("127.0.0.1", 0)

    async def ask() -> None:
        status = await asked(address, "GET", "/admin/v2/tenants", {**headers, "Authorization": f"Bearer {BOB}"})
        if status == 403:
            raise AuthorizationError(status)

    line = await stage.denied("403", ask())
    assert (line["role"], line["kind"], line["proof"], line["peer"]) == ("unknown", "unknown", "nothing", "127.0.0.1")
    assert (line["request"], line["right"]) == ("GET /admin/v2/tenants", None)
    assert reason in line["reason"]
    assert BOB not in json.dumps(line)


async def test_what_the_table_does_not_have(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "RULES", {k: v for k, v in rest.RULES.items() if k != LIST_TENANTS.name})
    address = await stage.broker.serve_admin("127.0.0.1", 0)

    async def ask() -> None:
        said = {"Host": "localhost", "Authorization": f"Bearer {BOB}"}
        if await asked(address, "GET", LIST_TENANTS.path, said) == 403:
            raise AuthorizationError("403")

    line = await stage.denied("403", ask())
    assert (line["role"], line["right"], line["request"]) == ("bob", None, f"GET {LIST_TENANTS.path}")
    assert "is not in the table of rights" in line["reason"]


async def test_a_command_that_the_table_does_not_have(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "COMMANDS", {k: v for k, v in table.COMMANDS.items() if k is not commands.NewTxn})
    handlers = guard.guarded({commands.NewTxn: lambda *_: None})
    (connection,) = (c for c in stage.broker.connections if c.role == "bob")
    with pytest.raises(AuthorizationError, match="NEW_TXN is not in the table of rights"):
        handlers[commands.NewTxn](connection, commands.NewTxn(request_id=1, timeout=1.0), memoryview(b""))
    (line,) = stage.lines()
    assert (who(line), line["request"], line["right"]) == (BOB_IS, "NEW_TXN", None)


async def test_a_proxy_whose_right_is_taken_away(stage: Stage) -> None:
    """Its clients' connections end, with a line that names both."""
    await stage.broker.admin.grant("*", "ann", ["proxy"])
    client = await Peer.connect(stage.broker, await listening(stage.broker), hello=False)
    await client.hello(token=BOB, proxy_token=ANN, forwarded="tcp://192.0.2.7:5")
    before = len(stage.lines())
    await stage.broker.admin.revoke("*", "ann")
    await until(client.lost.done)
    (line,) = [line for line in stage.lines()[before:] if not line["allowed"]]
    assert (line["role"], line["proxy"], line["peer"]) == ("bob", "ann", "tcp://192.0.2.7:5")
    assert (line["request"], line["right"]) == ("revocation", "proxy")


async def test_a_grant_that_the_tenant_forbids_names_the_address(stage: Stage) -> None:
    await stage.broker.admin.create_tenant("t", roles=["ann", "bob"])
    await stage.broker.admin.grant("t/n", "bob", ["admin"])
    await stage.broker.serve_admin("127.0.0.1", 0)
    before = len(stage.lines())
    admin = HttpAdmin(stage.broker.admin_url, token=BOB, timeout=60.0)
    with pytest.raises(AuthorizationError):
        await admin.grant("t/n", "dora", ["produce"])
    await admin.close()
    (line,) = [line for line in stage.lines()[before:] if not line["allowed"]]
    assert (line["role"], line["request"], line["peer"]) == ("bob", "grant to 'dora'", "127.0.0.1")


ROLE = Principal(Kind.ROLE, Proof.JWT, "ann")


def flood(log: Audit, principal: Principal, count: int) -> None:
    for _ in range(count):
        log.denial(principal, None, "GET /", "no")


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_flood_of_denials_is_counted_and_not_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one role does not push what others did out of the files."""
    monkeypatch.setattr(audit, "LINES_MAX", 5)
    clock = FakeClock()
    log = Audit(str(tmp_path / "audit"), clock)
    flood(log, ROLE, 20)
    flood(log, UNKNOWN, 7)
    assert log.denials == 27
    assert [line["role"] for line in written(tmp_path / "audit")] == ["ann"] * 5 + ["unknown"] * 5
    log.note(ROLE, None, "PUT /", "admin", "*", allowed=True)
    assert written(tmp_path / "audit")[-1]["allowed"], "what is done is written all the same"
    clock.advance(2 / audit.LINES_PER_S)
    flood(log, ROLE, 4)
    assert [line.get("unwritten") for line in written(tmp_path / "audit")[-2:]] == [15, None]
    clock.advance(3600)
    flood(log, ROLE, 9)
    lines = written(tmp_path / "audit")
    assert len(lines) == 5 + 5 + 1 + 2 + 5
    assert lines[-5]["unwritten"] == 2
    log.close()


def test_a_role_that_is_called_unknown_has_a_budget_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(audit, "LINES_MAX", 1)
    log = Audit(str(tmp_path / "audit"), FakeClock())
    flood(log, UNKNOWN, 2)
    flood(log, Principal(Kind.ROLE, Proof.JWT, "unknown"), 2)
    assert [line["kind"] for line in written(tmp_path / "audit")] == ["unknown", "role"]
    log.close()


def test_budgets_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "BUDGETS_MAX", 3)
    log = Audit(str(tmp_path / "audit"), FakeClock())
    for number in range(10):
        flood(log, Principal(Kind.ROLE, Proof.JWT, f"role-{number}"), 1)
    assert [role for _, role in log._budgets] == ["role-7", "role-8", "role-9"]
    log.close()


def test_a_line_is_bounded(tmp_path: Path) -> None:
    log = Audit(str(tmp_path / "audit"), FakeClock())
    log.denial(UNKNOWN, "x" * 10**6, "y" * 10**6, "z" * 10**6)
    assert len((tmp_path / "audit").read_text()) < 4 * audit.TEXT_MAX
    log.close()
