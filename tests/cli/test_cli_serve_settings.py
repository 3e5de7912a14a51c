"""`engine serve` by options, by a file and by the environment; and what it tells a service manager."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from engine.broker.settings.config import BrokerConfig
from engine.cli import notify
from engine.cli.serve import command
from engine.errors import InvalidConfigurationError
from tests.cli.cli_server import start_server, stop_server
from tests.kit.programs import environment

OPTIONS: list[tuple[str, str, Any, Any]] = [  # key, text, in a file, as it is then
    ("data", "/srv/engine", "/srv/engine", "/srv/engine"),
    ("listen", "0.0.0.0:7000", "0.0.0.0:7000", ("0.0.0.0", 7000)),
    ("admin", "none", "none", None),
    ("metadata", "etcd://a,b/engine", "etcd://a,b/engine", "etcd://a,b/engine"),
    ("processes", "3", 3, 3),
    ("process_port", "7100", 7100, 7100),
    ("one_port", "true", True, True),
    ("log_level", "warning", "warning", "warning"),
    ("log_format", "json", "json", "json"),
]
CLUSTER: list[tuple[str, str, Any, Any]] = [
    ("cluster_name", "blue", "blue", "blue"),
    ("service_url", "engine://b1.example.org:6650", "engine://b1.example.org:6650", "engine://b1.example.org:6650"),
    ("admin_url", "https://b1.example.org:8080", "https://b1.example.org:8080", "https://b1.example.org:8080"),
    ("admin_hosts", "b1,b2", ["b1", "b2"], ("b1", "b2")),
    ("cluster_token", "t0ken", "t0ken", "t0ken"),
    ("session_timeout", "5s", "5s", 5.0),
    ("drain_timeout", "1m", "1m", 60.0),
    ("balance_enabled", "false", False, False),
    ("balance_interval", "10", 10, 10.0),
    ("balance_guard", "30%", "30%", 0.3),
    ("balance_cooldown", "5m", "5m", 300.0),
    ("balance_moves_max", "8", 8, 8),
    ("durability", "interval", "interval", "interval"),
    ("objects", "s3://bucket/prefix", "s3://bucket/prefix", "s3://bucket/prefix"),
    ("object_flush_interval", "50ms", "50ms", 0.05),
]
PATHS = ["tls_cert", "tls_key", "cluster_tls_ca", "cluster_tls_cert", "cluster_tls_key"]


def toml(key: str, value: Any) -> str:
    shown = {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
    return f"{key} = {shown}\n"


def parsed(*arguments: str) -> dict[str, Any]:
    return command.make_context("serve", list(arguments)).params


@pytest.mark.parametrize(("key", "text", "value", "expected"), OPTIONS)
def test_each_option_may_stand_in_the_file_and_in_the_environment(
    key: str, text: str, value: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, option = tmp_path / "engine.toml", f"--{key.replace('_', '-')}"
    data = "" if key == "data" else 'data = "d"\n'
    file.write_text(f"segments = 2\n[serve]\n{data}{toml(key, value)}")
    assert BrokerConfig.load(file).segments == 2
    assert parsed("--config", str(file))[key] == expected
    monkeypatch.setenv("ENGINE_DATA", "d")
    monkeypatch.setenv(f"ENGINE_{key.upper()}", text)
    assert parsed()[key] == expected
    assert parsed(option, *([] if value is True else [text]))[key] == expected
    file.write_text(f"[serve]\n{toml(key, 'nonsense')}")
    assert parsed("--config", str(file))[key] == expected  # the environment counts, and the file is its default


def test_every_option_is_tested_here_or_a_setting_of_the_broker():
    names = {parameter.name for parameter in command.params} - {"config"}
    assert names == {key for key, *_ in OPTIONS} | {"cluster", "advertise", "objects", "auth_token_file", "insecure"}


@pytest.mark.parametrize(("key", "text", "value", "expected"), CLUSTER)
def test_each_setting_of_a_cluster_may_stand_in_the_file_and_in_the_environment(
    key: str, text: str, value: Any, expected: Any, tmp_path: Path
):
    file = tmp_path / "engine.toml"
    more = 'auth_token = "another"\n' if key == "cluster_token" else ""
    file.write_text(more + toml(key, value))
    assert getattr(BrokerConfig.load(file), key) == expected
    variables = {f"ENGINE_{key.upper()}": text} | ({"ENGINE_AUTH_TOKEN": "another"} if more else {})
    assert getattr(BrokerConfig.load(environment=variables), key) == expected


def test_certificates_and_tokens_of_a_cluster_are_files_in_both(tmp_path: Path):
    (tmp_path / "cluster").write_text("between\n")
    (tmp_path / "clients").write_text("outside\n")
    paths = {name: str(tmp_path / name) for name in PATHS}
    paths |= {"cluster_token_file": str(tmp_path / "cluster"), "auth_token_file": str(tmp_path / "clients")}
    file = tmp_path / "engine.toml"
    file.write_text("".join(toml(name, path) for name, path in paths.items()))
    variables = {f"ENGINE_{name.upper()}": path for name, path in paths.items()}
    for loaded in (BrokerConfig.load(file), BrokerConfig.load(environment=variables)):
        assert {name: getattr(loaded, name) for name in PATHS} == {name: paths[name] for name in PATHS}
        assert (loaded.cluster_token, loaded.auth_token) == ("between", "outside")


def test_what_is_no_option_or_has_its_place_elsewhere_is_named(tmp_path: Path):
    file = tmp_path / "engine.toml"
    for text, message in (
        ('[serve]\nlistn = "a"', "listn is no key of [serve] in {file}. Did you mean 'listen'?"),
        ('[serve]\ncluster = "a"', "cluster in [serve] of {file}: write cluster_name above [serve]"),
        ("[serve]\ninsecure = true", "insecure in [serve] of {file}: write insecure above [serve]"),
        ("serve = 1", "serve in {file} must be a section [serve], got 1"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidConfigurationError, match=f"^{re.escape(message.format(file=file))}"):
            parsed("--config", str(file))
    file.write_text('[serve]\ndata = "d"\nlisten = "nowhere"')
    with pytest.raises(click.BadParameter, match="must be HOST:PORT, got 'nowhere'"):
        parsed("--config", str(file))


def test_an_address_to_advertise_is_a_url_or_a_host_and_port():
    for text in ("b1:6650", "engine://b1:6650"):
        assert parsed("--data", "d", "--advertise", text)["advertise"] == "engine://b1:6650"


def test_a_service_manager_may_have_an_abstract_socket_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(notify.ADDRESS, raising=False)
    notify.stopping()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        name = f"engine-{os.getpid()}-{tmp_path.name}"
        manager.bind(f"\0{name}")
        monkeypatch.setenv(notify.ADDRESS, f"@{name}")
        notify.ready("two\nlines")
        assert manager.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_a_service_manager_hears_when_it_serves_reloads_and_stops(tmp_path: Path):
    where = str(tmp_path / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(where)
        file = tmp_path / "engine.toml"
        file.write_text(f'[serve]\ndata = "{tmp_path / "data"}"\n')
        server = start_server(tmp_path / "data", "--config", str(file), environment=environment(NOTIFY_SOCKET=where))
        try:
            told = manager.recv(4096).decode().splitlines()
            assert told[0] == "READY=1"
            assert told[1].startswith("STATUS=serving ")
            server.process.send_signal(signal.SIGHUP)
            reloading, again = (manager.recv(4096).decode().splitlines() for _ in range(2))
            assert reloading[0] == "RELOADING=1"
            assert re.fullmatch(r"MONOTONIC_USEC=\d+", reloading[1])
            assert again == ["READY=1", "STATUS=serving; the configuration was reloaded"]
        finally:
            code, _ = stop_server(server)
        assert code == 0
        assert manager.recv(4096).decode().splitlines() == ["STOPPING=1", "STATUS=closing"]
