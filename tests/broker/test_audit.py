"""The audit log: a line for each event, whatever is in it, in files that are rotated, or on the standard output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.rights import audit
from engine.broker.rights.audit import FILES_KEPT, STDOUT, Audit
from engine.broker.rights.principal import Kind, Principal, Proof
from engine.broker.rights.table import OPERATIONS
from engine.broker.rights.token_file import line_of
from engine.errors import InvalidConfigurationError, NotFoundError
from engine.model.admin_operations import OPERATIONS as ROWS
from engine.model.admin_requests import NO_BODY
from engine.model.rights import names_of
from engine.testing.clock import FakeClock
from engine.wire.commands import Command
from tests.broker.test_rights_matrix import ARGUMENTS, TOPIC
from tests.broker.transacting import begin
from tests.kit.peer import Peer

ANN = Principal(Kind.ROLE, Proof.TOKEN_FILE, "ann", secret=b"digest-of-a-token")
HOSTILE = 'x"\n{"allowed": true}\r\x1b[2J\u2028' + "y" * 1_000


def note(log: Audit, number: int, resource: str = "a/b/c") -> None:
    log.note(ANN, "tcp://192.0.2.1:1", f"request {number}", "produce", resource, allowed=False)


def test_files_are_rotated_and_five_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_SIZE_MAX", 10_000)
    log = Audit(str(tmp_path / "audit"), FakeClock())
    for number in range(1_000):
        note(log, number)
    log.close()
    names = ["audit", *(f"audit.{number}" for number in range(1, FILES_KEPT + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    newest_first = [json.loads(line) for name in names for line in reversed((tmp_path / name).read_text().splitlines())]
    numbers = [int(facts["request"].split()[1]) for facts in newest_first]
    assert numbers == list(range(999, 999 - len(numbers), -1)), "no line is lost between two files"
    assert len(numbers) > 200
    assert all((tmp_path / name).stat().st_size <= 10_000 for name in names)


def test_a_restart_goes_on_in_the_file(tmp_path: Path) -> None:
    for number in range(3):
        log = Audit(str(tmp_path / "audit"), FakeClock())
        note(log, number)
        log.close()
        log.close()
        note(log, 99)  # closed: it is counted, and written nowhere
    assert [json.loads(line)["request"] for line in (tmp_path / "audit").read_text().splitlines()] == [
        "request 0", "request 1", "request 2",
    ]  # fmt: skip


def test_what_a_peer_names_begins_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    log = Audit(STDOUT, FakeClock())
    note(log, 1, HOSTILE)
    out, _ = capfd.readouterr()
    assert out.count("\n") == 1
    assert out[:-1].isascii()
    assert out[:-1].isprintable()
    facts = json.loads(out)
    assert (facts["resource"], facts["allowed"], facts["role"], facts["peer"]) == (
        HOSTILE, False, "ann", "tcp://192.0.2.1:1",
    )  # fmt: skip
    assert "digest-of-a-token" not in out


def test_without_a_target_denials_are_counted_all_the_same() -> None:
    log = Audit(None, FakeClock())
    note(log, 1)
    assert (log.denials, log.writes) == (1, False)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"audit_log .*missing/audit cannot be written: No such file"):
        Audit(str(tmp_path / "missing" / "audit"), FakeClock())


WRITER = """
import sys
from engine.broker.rights import audit
from engine.broker.rights.principal import Kind, Principal, Proof
from engine.testing.clock import FakeClock
audit.FILE_SIZE_MAX, audit.FILES_KEPT = 20_000, 1_000
log = audit.Audit(sys.argv[1], FakeClock())
print("ready", flush=True)
sys.stdin.readline()
for number in range(500):
    note = f"{sys.argv[2]} {number}"
    log.note(Principal(Kind.ROLE, Proof.JWT, "ann"), None, note, "produce", "x" * (number % 97), allowed=False)
"""


def test_several_processes_write_to_one_file_and_rotate_it(tmp_path: Path) -> None:
    """No line is torn, or lost, and those of each process are in their order from the oldest file to the newest."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "audit")]
    writers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n in range(3)
    ]
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
            stack.callback(writer.kill)
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.communicate("go\n", timeout=120)
            assert writer.returncode == 0
    age = {path: int(path.suffix[1:] or 0) for path in tmp_path.iterdir()}
    assert len(age) > 5
    lines = [line for path in sorted(age, key=lambda p: -age[p]) for line in path.read_text().splitlines()]
    found: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    for line in lines:
        writer_of, number = json.loads(line)["request"].split()
        found[writer_of].append(int(number))
    assert found == {name: list(range(500)) for name in found}


def test_a_process_that_is_stopped_in_the_middle_of_a_rotation_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock of the file until it goes on: the others write, and do not rotate."""
    monkeypatch.setattr(audit, "FILE_SIZE_MAX", 1_000)
    log = Audit(str(tmp_path / "audit"), FakeClock())
    note(log, 0)
    with (tmp_path / "audit").open("a") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        for number in range(1, 20):
            note(log, number)
        assert [path.name for path in tmp_path.iterdir()] == ["audit"]
        assert len((tmp_path / "audit").read_text().splitlines()) == 20
    note(log, 20)
    log.close()
    assert len((tmp_path / "audit.1").read_text().splitlines()) == 20
    assert len((tmp_path / "audit").read_text().splitlines()) == 1


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = Audit(str(tmp_path / "audit"), FakeClock())
    note(log, 1)
    (tmp_path / "audit").rename(tmp_path / "kept")  # as logrotate does
    note(log, 2)
    (tmp_path / "audit").unlink()
    note(log, 3)
    log.close()
    assert "request 1" in (tmp_path / "kept").read_text()
    (line,) = (tmp_path / "audit").read_text().splitlines()
    assert json.loads(line)["request"] == "request 3"


def test_a_file_that_cannot_be_opened_again_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.raiseExceptions", False)  # a report on standard error
    (tmp_path / "logs").mkdir()
    log = Audit(str(tmp_path / "logs" / "audit"), FakeClock())
    note(log, 1)
    (tmp_path / "logs").rename(tmp_path / "kept")
    note(log, 2)
    note(log, 3)
    (tmp_path / "logs").mkdir()
    note(log, 4)
    log.close()
    (line,) = (tmp_path / "logs" / "audit").read_text().splitlines()
    assert json.loads(line)["request"] == "request 4"


async def test_what_the_program_itself_changes_is_a_line(tmp_path: Path) -> None:
    """By an engine that it has opened, and by a second one that joins it; what is only read is none."""
    config = {"audit_log": str(tmp_path / "audit")}
    async with engine.open_async(tmp_path / "data", config=config) as one:
        await one.admin.create_topic("orders")
        await one.admin.get_stats("orders")
        async with engine.open_async(tmp_path / "data", config=config) as other:
            await other.admin.split_segment("orders", 0)
        with pytest.raises(NotFoundError):
            await one.admin.delete_topic("nothing")
        await one.admin.delete_topic("orders")
    facts = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert {(f["right"], f["role"], f["proof"], f["peer"], f["allowed"]) for f in facts} == {
        ("admin", "owner", "local", None, True)
    }
    orders, nothing = "public/default/orders", "public/default/nothing"
    assert [(f["request"], f["resource"], f.get("error")) for f in facts] == [
        ("create_topic", orders, None),
        ("split_segment", orders, None),
        ("delete_topic", nothing, "NotFoundError"),
        ("delete_topic", orders, None),
    ]


@pytest.mark.parametrize("who", ["root", "nothing"])
async def test_each_operation_that_changes_something_and_each_denial_is_one_line(
    start_broker: Any, tmp_path: Path, who: str
) -> None:
    """Over HTTP, with the error where it failed; what is only read is a line where it is denied."""
    roles, path = tmp_path / "roles", tmp_path / "audit"
    roles.write_text("".join(line_of(name, f"token-{name}") + "\n" for name in ("root", "nothing")))
    changed = 0
    async with (
        start_broker(roles_file=str(roles), superusers=["root"], audit_log=str(path)) as broker,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer token-{who}"}) as session,
    ):
        await broker.serve_admin("127.0.0.1", 0)
        await broker.service.create_topic(TOPIC)
        for row in ROWS:
            if row.without_token:
                continue
            arguments = {p.name: ARGUMENTS[p.name] if p.required else p.default for p in row.parameters}
            request, before = row.request(arguments), len(path.read_text().splitlines())
            body = {} if request.body is NO_BODY else {"json": request.body}
            url = aiohttp.client.URL(broker.admin_url + request.path, encoded=True)
            async with session.request(request.verb, url, **body) as answer:
                done = answer.status < 400
            lines = [json.loads(line) for line in path.read_text().splitlines()[before:]]
            need = OPERATIONS[row.name](arguments)
            changes = request.verb not in ("GET", "HEAD") and answer.status != 403
            assert len(lines) == (changes or answer.status == 403), (row.name, answer.status, lines)
            for line in lines:
                said = line["role"], line["right"], line["resource"], line["allowed"]
                assert said == (who, names_of(need.rights), need.resource, who == "root"), row.name
                assert ("error" in line) == (changes and not done), (row.name, line)
                changed += changes
    assert changed > 15 or who == "nothing"


async def test_what_is_done_to_a_subscription_over_the_wire_is_a_line(start_broker: Any, tmp_path: Path) -> None:
    roles, path = tmp_path / "roles", tmp_path / "audit"
    roles.write_text(line_of("root", "token-root") + "\n")
    async with start_broker(roles_file=str(roles), superusers=["root"], audit_log=str(path)) as broker:
        await broker.service.create_topic(TOPIC)
        peer = await Peer.connect(broker, hello=False)
        await peer.hello(token="token-root")
        of_it = {"topic": TOPIC, "subscription": "s"}
        with pytest.raises(NotFoundError):
            await peer.ask(Command.SEEK_SUBSCRIPTION, **of_it, when="earliest")
        await broker.service.create_subscription(TOPIC, "s")
        await peer.ask(Command.SEEK_SUBSCRIPTION, **of_it, when="earliest")
        await peer.ask(Command.DELETE_SUBSCRIPTION, **of_it)
        await peer.close()
    facts = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(f["role"], f["right"], f["subscription"], f["allowed"]) for f in facts} == {("root", "consume", "s", True)}
    assert [(f["request"], f.get("error")) for f in facts] == [
        ("SEEK_SUBSCRIPTION", "NotFoundError"),
        ("SEEK_SUBSCRIPTION", None),
        ("DELETE_SUBSCRIPTION", None),
    ]


async def test_the_end_of_another_roles_transaction_is_a_line(start_broker: Any, tmp_path: Path) -> None:
    roles, path = tmp_path / "roles", tmp_path / "audit"
    roles.write_text("".join(line_of(name, f"token-{name}") + "\n" for name in ("root", "ann")))
    async with start_broker(roles_file=str(roles), superusers=["root"], audit_log=str(path)) as broker:
        ann, root = [await Peer.connect(broker, hello=False) for _ in range(2)]
        await ann.hello(token="token-ann")
        await root.hello(token="token-root")
        own, foreign = await begin(ann), await begin(ann)
        await ann.ask(Command.END_TXN, id=own, action="abort")
        await root.ask(Command.END_TXN, id=foreign, action="abort")
        await Peer.end_all()
    (line,) = path.read_text().splitlines()
    facts = json.loads(line)
    assert (facts["role"], facts["request"], facts["right"]) == ("root", f"END_TXN {foreign}", "operate")
