"""The audit log: a line for each event, whatever is in it, in files that are rotated, or on the standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.broker.rights import audit
from engine.broker.rights.audit import FILES_KEPT, STDOUT, Audit
from engine.broker.rights.principal import Kind, Principal, Proof
from engine.errors import InvalidConfigurationError
from engine.testing.clock import FakeClock

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
