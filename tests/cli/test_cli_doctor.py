"""`engine doctor`: what it finds of real damage, that it names a remedy, always ends, and leaves nothing behind."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

import engine as product
from engine.cli.doctor import disk, disk_probe, network
from engine.cli.doctor.configuration import configuration
from engine.cli.doctor.finding import Finding, State, good, run_checks
from engine.client.admin.exposition import Metrics
from tests.cli.cli_server import Server
from tests.kit.programs import prepared

Run = Callable[..., Any]
Found = dict[str, dict[str, str]]
WAIT_S = 60.0
TOKEN = "a-token-that-is-long-enough"
GOOD, WARNING, PROBLEM = State


def read(text: str) -> Found:
    """Findings by check, the worst of each; and that each has a remedy where it needs one, and only there."""
    answer = json.loads(text)
    order = ["good", "warning", "problem"]
    found: Found = {}
    for one in answer["findings"]:
        assert (one["remedy"] == "") is (one["state"] == "good"), one
        assert one["remedy"].endswith(".") or not one["remedy"]
        if order.index(one["state"]) >= order.index(found.get(one["check"], one)["state"]):
            found[one["check"]] = one
    assert answer["state"] == max((one["state"] for one in found.values()), key=order.index)
    return found


def doctor(engine: Run, *arguments: object) -> tuple[int, Found]:
    result = engine("doctor", "--json", *arguments)
    return result.code, read(result.out)


def doctor_process(*arguments: object, restrict: str) -> tuple[int, Found]:
    """In a process that these statements restrict before it begins."""
    command = prepared(restrict, [sys.executable, "-m", "engine", "doctor", "--json", *map(str, arguments)])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.stderr == ""
    return done.returncode, read(done.stdout)


def states(findings: Iterator[Finding]) -> dict[str, State]:
    found: dict[str, State] = {}
    for finding in findings:
        assert bool(finding.remedy) is (finding.state != GOOD)
        found[finding.check] = max(finding.state, found.get(finding.check, GOOD))
    return found


def certified(directory: Path, days: float, host: str = "127.0.0.1") -> dict[str, str]:
    """Files of an authority, and of a certificate that it has signed until so many days from now."""
    authority = trustme.CA()
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    made = authority.issue_cert(host, not_after=until)
    files = {name: str(directory / f"{name}.pem") for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    made.cert_chain_pems[0].write_to_path(files["cert"])
    made.private_key_pem.write_to_path(files["key"])
    os.chmod(files["key"], 0o600)
    return files


# -- servers -----------------------------------------------------------------------------------------------------------


def test_a_server_and_its_directory_that_are_well(engine: Run, server: Server, tmp_path: Path):
    data = tmp_path / "data"
    before = sorted(path for path in data.rglob("*"))
    code, found = doctor(engine, "--url", server.url, "--data", data, "--timeout", 60)
    for check in ("address", "handshake", "admin", "broker", "ready", "memory"):
        assert found[f"server.{check}"]["state"] == "good", found[f"server.{check}"]
    assert found["clock.server"]["state"] == "good"
    assert found["versions.native"]["state"] == "good"
    assert "disk.sync" in found
    assert "disk.rights" not in found
    assert sorted(path for path in data.rglob("*")) == before, "it leaves nothing behind"
    assert code == max(["good", "warning", "problem"].index(one["state"]) for one in found.values())


def test_what_it_prints_for_people(engine: Run):
    result = engine("doctor", "--url", "engine://127.0.0.1:1")
    assert result.code == 2
    assert "PROBLEM" in result.out
    assert "Start engine serve there" in result.out


@pytest.mark.parametrize("option", ["--url", "--proxy"])
def test_a_dead_address(engine: Run, option: str):
    code, found = doctor(engine, option, "engine://127.0.0.1:1")
    assert code == 2
    check = found["server.address" if option == "--url" else "proxy.address"]
    assert "refused" in check["found"]


def test_of_several_addresses_each_is_checked(engine: Run, server: Server):
    alive = server.url.partition("://")[2]
    answer = json.loads(engine("doctor", "--json", "--url", f"engine://127.0.0.1:1,{alive}").out)
    assert [f["state"] for f in answer["findings"] if f["check"] == "server.address"] == ["problem", "good"]
    assert [f["state"] for f in answer["findings"] if f["check"] == "server.admin"] == ["good"]


def test_a_server_that_never_answers_does_not_hold_it_up(engine: Run):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"engine://127.0.0.1:{silent.getsockname()[1]}"
        code, found = doctor(engine, "--url", url, "--timeout", 0.5)
    assert code == 2
    assert found["server.address"]["state"] == "good"
    assert any(one["state"] == "problem" for check, one in found.items() if check.startswith("server"))


def test_a_wrong_token(engine: Run, tmp_path: Path):
    (tmp_path / "wrong").write_text("another\n")
    with product.open(tmp_path / "data", listen="127.0.0.1:0", config={"auth_token": TOKEN}) as served:
        code, found = doctor(engine, "--url", served.service_url, "--token-file", tmp_path / "wrong")
    assert code == 2
    assert found["server.handshake"]["state"] == "problem"
    assert "--token-file" in found["server.handshake"]["remedy"]


@pytest.mark.parametrize(("days", "state"), [(-1, "problem"), (3, "problem"), (20, "warning"), (400, "good")])
def test_the_certificate_of_a_server(engine: Run, tmp_path: Path, days: float, state: str):
    files = certified(tmp_path, days)
    config = {"tls_cert": files["cert"], "tls_key": files["key"]}
    with product.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0", config=config) as served:
        url = f"engines://{served.service_url.partition('://')[2]}?ca={files['ca']}"
        _, found = doctor(engine, "--url", url)
    assert found["server.certificate"]["state"] == state
    assert ("expired" in found["server.certificate"]["found"]) is (days < 0)
    assert ("server.handshake" in found) is (days > 0)
    if days > 0:
        assert found["server.handshake"]["state"] == found["server.ready"]["state"] == "good", found


def test_a_certificate_of_another_authority_or_host(engine: Run, tmp_path: Path):
    files = certified(tmp_path, 400, host="example.org")
    config = {"tls_cert": files["cert"], "tls_key": files["key"]}
    with product.open(tmp_path / "data", listen="127.0.0.1:0", config=config) as served:
        where = served.service_url.partition("://")[2]
        _, untrusted = doctor(engine, "--url", f"engines://{where}")
        _, misnamed = doctor(engine, "--url", f"engines://{where}?ca={files['ca']}")
    assert "--tls-ca" in untrusted["server.certificate"]["remedy"]
    assert "name in the certificate" in misnamed["server.certificate"]["remedy"]


class _Late(BaseHTTPRequestHandler):
    """A broker whose clock is an hour behind."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(int(datetime.datetime.now().timestamp()) - 3_600)

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_a_clock_that_is_an_hour_behind():
    with HTTPServer(("127.0.0.1", 0), _Late) as late:
        threading.Thread(target=late.handle_request).start()
        offset, unsure, reasons = network.asked(f"http://127.0.0.1:{late.server_port}", None, WAIT_S)
    assert reasons == ["HTTP status 503"]
    found = network.skew("clock.server", "it", offset, unsure)
    assert (found.state, "behind" in found.found) == (PROBLEM, True)
    assert [network.skew("clock.server", "it", s, 0.5).state for s in (2.0, -3.0, 31.0)] == [GOOD, WARNING, PROBLEM]


def test_what_is_not_ready_and_does_not_say_why_is_a_problem():
    """As a broker with roles, which tells a stranger no reasons."""
    assert network._reasons(b'{"ready": false, "broker": "", "reasons": []}', 503) == ["it does not say why"]
    assert network._reasons(b'{"reasons": [{"what": "disk", "why": "full"}]}', 503) == ["disk: full"]


def test_what_metrics_say():
    text = (
        'engine_storage_damaged_segments 2\nengine_memory_pool_used_bytes{pool="publish"} 90\n'
        'engine_memory_pool_limit_bytes{pool="publish"} 100\n'
    )
    found = states(network.conditions(Metrics(text)))
    assert found == {"server.storage_damaged_segments": PROBLEM, "server.pools": WARNING, "server.memory": GOOD}


# -- the machine -------------------------------------------------------------------------------------------------------


TINY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""


def test_tiny_limits(tmp_path: Path):
    code, found = doctor_process("--data", tmp_path, restrict=TINY)
    assert code == 2
    assert found["limits.descriptors"]["state"] == "problem"
    assert "LimitNOFILE" in found["limits.descriptors"]["remedy"]
    assert found["limits.file_size"]["state"] == "problem"
    assert found["disk.write"]["state"] == "problem"
    assert list(tmp_path.iterdir()) == []


# Root without the capabilities to pass over the modes of files; of other users, nothing.
OBEY_MODES = """
import ctypes
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
"""


def test_a_directory_that_cannot_be_written(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o555)
    code, found = doctor_process("--data", data, restrict=OBEY_MODES)
    assert code == 2
    assert found["disk.rights"]["state"] == "problem"
    assert "chown" in found["disk.rights"]["remedy"]
    data.chmod(0o755)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_is_none(engine: Run, tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    code, found = doctor(engine, "--data", tmp_path / name)
    assert (code, found["disk"]["state"]) == (2, "problem")


def test_a_disk_that_does_not_answer(engine: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The program that writes is left waiting for ever in place of a disk that does."""
    waits = tmp_path / "waits.py"
    waits.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(disk_probe, "__file__", str(waits))
    code, found = doctor(engine, "--data", tmp_path, "--timeout", 1)
    assert code == 2
    assert "has not answered" in found.get("disk.write", {}).get("found", "has not answered")
    assert {"disk", "disk.write"} & found.keys()


def test_a_check_that_hangs_or_fails_keeps_what_the_others_found():
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield good("slow", "its first part")
        never.wait(WAIT_S)

    def fails() -> Iterator[Finding]:
        raise OSError("it is gone")

    found = run_checks({"slow": hangs, "failing": fails, "fine": lambda: [good("fine", "it is")]}, 0.2)
    never.set()
    assert [(f.check, f.state) for f in found] == [
        ("slow", GOOD),
        ("slow", PROBLEM),
        ("failing", PROBLEM),
        ("fine", GOOD),
    ]


@pytest.mark.parametrize(
    ("syncs", "written", "expected"),
    [
        ([0.001] * 100, 1 << 30, {"disk.sync": GOOD, "disk.speed": GOOD}),
        ([0.05] * 100, 1 << 20, {"disk.sync": WARNING, "disk.speed": WARNING}),
        ([0.5], 0, {"disk.sync": PROBLEM}),
    ],
)
def test_what_a_disk_should_do(syncs: list[float], written: int, expected: dict[str, State]):
    assert states(disk.measured(syncs, written, 1.0)) == expected


def test_free_space_and_mounts():
    gib = 1 << 30
    assert [disk.free_state(free, 100 * gib) for free in (gib // 8, gib, 4 * gib, 50 * gib)] == [
        PROBLEM, WARNING, WARNING, GOOD,
    ]  # fmt: skip
    table = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/a\\040b ro,nosuid - nfs4 host:/x rw\nrubbish\n"
    assert disk.mount_of(Path("/mnt/a b/c"), table) == ("nfs4", ("ro", "nosuid"))
    assert disk.mount_of(Path("/mnt/a"), table) == ("ext4", ("rw",))
    assert disk.mount_of(Path("/mnt"), "") == ("", ())


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "check", "state"),
    [
        ("insecure = true", "insecure", PROBLEM),
        ("", "auth_token", WARNING),
        ("auth_token = 'short'", "auth_token", PROBLEM),
        (f"auth_token = '{TOKEN}'", "cluster_token", WARNING),
        (f"auth_token = '{TOKEN}'", "roles", WARNING),
        (f"auth_token = '{TOKEN}'", "secrets", WARNING),
        (f"auth_token = '{TOKEN}'\nservice_url = 'engine://b.example.org:6650'", "tls", WARNING),
        (f"auth_token = '{TOKEN}'\nservice_url = 'engine://localhost:6650'", "service_url", WARNING),
        ("durability = 'os'", "durability", WARNING),
        ("durability = 'interval'", "durability", WARNING),
        ("retention_time = 0.0", "retention", WARNING),
        ("", "retention", GOOD),
        ("admin_hosts = ['*']", "admin_hosts", WARNING),
        ("keep_alive = 0.0", "keep_alive", WARNING),
    ],
)
def test_what_would_be_wrong_in_production(tmp_path: Path, text: str, check: str, state: State):
    file = tmp_path / "engine.toml"
    file.write_text(text)
    assert states(configuration(str(file), {}))[f"configuration.{check}"] == state


def test_without_any_retention(tmp_path: Path):
    assert states(configuration(None, {"ENGINE_RETENTION_TIME": "none"}))["configuration.retention"] == WARNING


def test_a_configuration_that_is_well(tmp_path: Path):
    files = certified(tmp_path, 400, host="b.example.org")
    for name in ("clients", "brokers"):
        (tmp_path / name).write_text(f"{TOKEN}-of-{name}\n")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "roles").write_text(f"shop: sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    file = tmp_path / "engine.toml"
    file.write_text(
        f"roles_file = '{tmp_path / 'roles'}'\n"
        f"auth_token_file = '{tmp_path / 'clients'}'\ncluster_token_file = '{tmp_path / 'brokers'}'\n"
        f"tls_cert = '{files['cert']}'\ntls_key = '{files['key']}'\nservice_url = 'engine://b.example.org:6650'\n"
    )
    assert set(states(configuration(str(file), {})).values()) == {GOOD}
    (tmp_path / "clients").chmod(0o644)
    assert states(configuration(str(file), {}))["configuration.secrets"] == PROBLEM


def test_a_configuration_that_no_broker_takes(engine: Run, tmp_path: Path):
    (tmp_path / "engine.toml").write_text("segmnets = 4\n")
    code, found = doctor(engine, "--config", tmp_path / "engine.toml")
    assert code == 2
    assert "segmnets" in found["configuration"]["found"]


@pytest.mark.parametrize(("days", "state"), [(-1, PROBLEM), (20, WARNING), (400, GOOD)])
def test_certificates_of_a_configuration(tmp_path: Path, days: float, state: State):
    files = certified(tmp_path, days)
    file = tmp_path / "engine.toml"
    file.write_text(f"tls_cert = '{files['cert']}'\ntls_key = '{files['key']}'\n")
    assert states(configuration(str(file), {}))["configuration.tls"] == state


def test_a_key_of_another_certificate(tmp_path: Path):
    (tmp_path / "other").mkdir()
    files, others = certified(tmp_path, 400), certified(tmp_path / "other", 400)
    file = tmp_path / "engine.toml"
    file.write_text(f"tls_cert = '{files['cert']}'\ntls_key = '{others['key']}'\n")
    assert states(configuration(str(file), {}))["configuration.tls"] == PROBLEM


def test_it_loads_no_network_where_none_is_asked_for():
    command = (
        "import sys; from engine.cli.main import main; main(['doctor', '--json']); "
        "sys.exit('engine.cli.doctor.network' in sys.modules or 'textual' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, check=False).returncode == 0
