"""Each verb of the command line asks a broker for what the table of rights says, and is refused without a right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from engine.broker.rights.need import Need
from engine.broker.rights.table import LOCAL_VERBS, VERBS
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.cli.main import cli, main
from engine.model.admin_operations import OPERATIONS
from tests.broker.test_rights_matrix import WHO, Who

# Arguments of the verbs, in an order in which each of them can be done.
EXAMPLES = {
    "topics create": "orders --segments 2",
    "topics autoscale get": "orders",
    "topics autoscale history": "orders",
    "topics autoscale set": "orders --max-segments 4",
    "topics autoscale unset": "orders",
    "topics describe": "orders",
    "topics list": "",
    "topics policies get": "orders",
    "topics policies set": "orders --retention-time 1h",
    "topics policies unset": "orders --all",
    "topics properties get": "orders",
    "topics properties set": "orders a=b",
    "topics properties unset": "orders a",
    "topics stats": "orders",
    "topics merge": "orders 0 1",
    "topics split": "orders 2",
    "topics rebucket": "orders 3 8",
    "subscriptions create": "orders s",
    "subscriptions list": "orders",
    "subscriptions seek": "orders s latest",
    "subscriptions stats": "orders s",
    "subscriptions clear-backlog": "orders s --yes",
    "subscriptions skip": "orders s 4 0 --yes",
    "subscriptions delete": "orders s --yes",
    "tenants create": "billing",
    "tenants get": "billing",
    "tenants list": "",
    "tenants roles": "billing --any-role",
    "namespaces create": "billing/one",
    "namespaces list": "",
    "namespaces get": "billing/one",
    "namespaces set": "billing/one --retention-time 1h",
    "namespaces unset": "billing/one --all",
    "namespaces remove": "billing/one",
    "namespaces autoscale get": "billing/one",
    "namespaces autoscale set": "billing/one --max-segments 4",
    "namespaces autoscale unset": "billing/one",
    "namespaces delete": "billing/one --yes",
    "tenants delete": "billing --yes",
    "grants add": "public/default ann lookup",
    "grants check": "public/default",
    "grants list": "public/default",
    "grants remove": "public/default ann",
    "transactions list": "",
    "transactions show": "0000000000000001",
    "transactions abort": "0000000000000001 --yes",
    "brokers list": "",
    "brokers balance": "--dry-run",
    "brokers config list": "",
    "brokers config get": "lookups_max",
    "brokers config set": "lookups_max 1000",
    "brokers config unset": "lookups_max",
    "brokers drain": "engine://192.0.2.1:6650",
    "brokers undrain": "engine://192.0.2.1:6650",
    "brokers unload": "orders",
    "produce": "orders --file FILE",
    "consume": "orders -n 1 --timeout 1",
    "export": "orders OUT",
    "import": "orders IN",
    "dead-letters list": "orders",
    "dead-letters show": "orders 0:0",
    "dead-letters redrive": "orders --yes",
    "perf produce": "--topic perf -n 10",
    "perf consume": "--topic perf -n 10",
    "perf compare": "URL --url URL -n 10 --turns 1",
    "limits list": "",
    "limits set": "public/default total-topics=100",
    "limits get": "public/default",
    "limits unset": "public/default --all",
    "objects sweep": "",
    "backup create": "BACKUPS",
    "top": "--once",
    "doctor": "",
    "migrate": "orders --as copy --from URL --to URL --from-token-file TOKEN --to-token-file TOKEN",
    "topics delete": "orders --yes",
}


def leaves(command: click.Command, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, click.Context(inner, parent=context, info_name=name), (*path, name))


def test_each_verb_is_in_the_table() -> None:
    verbs = set(leaves(cli, click.Context(cli, info_name="engine")))
    assert verbs == set(VERBS) | set(LOCAL_VERBS)
    assert set(EXAMPLES) == set(VERBS)


class Recorded:
    """The requests of a broker whose rights were checked, and what they needed."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: set[str] = set()
        self.needs: list[Need] = []
        check = broker.rights.check

        def recording(principal, need, request, peer):  # type: ignore[no-untyped-def]
            self.asked.add(named(request))
            self.needs.append(need)
            check(principal, need, request, peer)

        monkeypatch.setattr(broker.rights, "check", recording)


_PART = re.compile(r"\\{\w+\\}")


def named(request: str) -> str:
    """The command of the wire, or the operation of the admin API."""
    verb, _, path = request.partition(" ")
    if not path:
        return request
    for part in ("[^/]+", ".+"):  # some names of resources have slashes
        fits = [
            row for row in OPERATIONS if row.verb == verb and re.fullmatch(_PART.sub(part, re.escape(row.path)), path)
        ]
        if fits:
            return min(fits, key=lambda row: row.path.count("{")).name
    return request


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(who.name, f"token-of-{who.name}") + "\n" for who in WHO))
    made = Broker(tmp_path / "data", config=BrokerConfig(roles_file=str(path), superusers=("root",)))
    await made.start()
    await made.serve_admin("127.0.0.1", 0)
    for who in WHO:
        for resource, rights in (who.granted or {}).items():
            await made.admin.grant(resource, who.name, rights, subscription_prefix=who.prefix)
    yield made
    await made.close()


Run = Callable[[str, str], Awaitable[tuple[int, str]]]


@pytest.fixture
async def run(broker: Broker, monkeypatch: Any, capfd: Any, tmp_path: Path) -> Run:
    """`run(verb, role)`: (exit code, what it said)."""
    url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    (tmp_path / "in.csv").write_text("key,value\na,b\n")
    places = {"FILE": __file__, "TOKEN": str(tmp_path / "token"), "URL": url, "BACKUPS": str(tmp_path / "backups")}
    places |= {"OUT": str(tmp_path / "out.csv"), "IN": str(tmp_path / "in.csv")}

    async def run(verb: str, role: str) -> tuple[int, str]:
        monkeypatch.setenv("ENGINE_TOKEN", f"token-of-{role}")
        (tmp_path / "token").write_text(f"token-of-{role}")
        words = [*verb.split(), *(places.get(word, word) for word in EXAMPLES[verb].split())]
        words += [] if url in words else ["--url", url]
        code = await asyncio.to_thread(main, words)
        return code, capfd.readouterr().err

    return run


def declared(verb: str) -> set[str]:
    return {one if isinstance(one, str) else one.command.name for one in VERBS[verb]}


async def test_a_verb_asks_for_what_the_table_says(broker: Broker, monkeypatch: Any, run: Run) -> None:
    recorded = Recorded(broker, monkeypatch)
    for verb in EXAMPLES:
        recorded.asked.clear()
        _, said = await run(verb, "root")
        assert " ".join(sorted(recorded.asked)) == " ".join(sorted(declared(verb))), (verb, said)


async def test_without_a_right_no_verb_does_anything(broker: Broker, monkeypatch: Any, run: Run) -> None:
    recorded = Recorded(broker, monkeypatch)
    for verb in EXAMPLES:
        recorded.asked.clear()
        code, said = await run(verb, "nothing")
        if any(needs(one) for one in VERBS[verb]):
            assert code == (2 if verb == "doctor" else 1), (verb, said)
            assert "is needed on" in said or verb == "doctor", (verb, said)
            assert recorded.asked <= declared(verb), verb
        else:
            assert code == 0, (verb, said)


# They go on without what they may not see: a report that says so, and origins that are given less exactly.
GO_ON = ("doctor", "topics policies get", "namespaces get", "topics autoscale get")


@pytest.mark.parametrize("who", WHO, ids=lambda who: who.name)
async def test_every_verb_as_every_kind(broker: Broker, monkeypatch: Any, run: Run, who: Who) -> None:
    """Each is denied if, and only if, one of its requests needs what the principal has not been granted."""
    await broker.admin.create_topic("orders")
    recorded = Recorded(broker, monkeypatch)
    denied = set()
    for verb in EXAMPLES:
        recorded.asked.clear()
        recorded.needs.clear()
        code, said = await run(verb, who.name)
        assert recorded.asked <= declared(verb), verb
        refused = [need for need in recorded.needs if not who.may(need)]
        if verb in GO_ON and refused:
            continue
        assert ("is needed on" in said) == bool(refused), (verb, said, refused)
        if refused:
            assert code == 1, (verb, said)
            denied.add(verb)
    assert len(denied) > 20 or who.name in ("root", "granted-all", "tenant", "admin"), denied
    assert not denied or who.granted is not None


def needs(one: type | str) -> bool:
    """Whether it needs a right at all: a list shows what may be looked up."""
    return one not in ("list_tenants", "list_namespaces", "get_permissions")
