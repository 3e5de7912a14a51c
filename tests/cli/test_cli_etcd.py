"""`engine serve --metadata etcd://…`: several servers on one data directory, whose metadata are in etcd."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.demo_servers import free_ports
from engine.cli.serve import command
from engine.model.positions import Checkpoint
from engine.sync import Client
from tests.cli.cli_server import Server, start_server, stop_server
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.programs import environment

WAIT_S_MAX = 60.0


def serve(data: Path, metadata: str, port: int) -> Server:
    url = f"engine://127.0.0.1:{port}"
    settings = environment(ENGINE_SERVICE_URL=url, ENGINE_SESSION_TIMEOUT="2", ENGINE_METADATA=metadata)
    return start_server(data, "--listen", f"127.0.0.1:{port}", environment=settings)


def read(client: Client, count: int) -> list[int]:
    found: list[int] = []
    with client.checkpoint_consumer("orders", start=Checkpoint.earliest()) as reader:
        while len(found) < count:
            batch = reader.receive_batch(timeout=WAIT_S_MAX)
            assert len(batch), f"{len(found)} of {count} came"
            found += [int(message.value) for message in batch]
    return sorted(found)


def test_two_servers_have_their_metadata_in_etcd_and_one_goes_on_when_the_other_is_killed(
    etcd: Etcd, tmp_path: Path
) -> None:
    metadata, (first, second) = etcd.url(new_prefix()), free_ports(2)
    servers = [serve(tmp_path / "data", metadata, port) for port in (first, second)]
    try:
        with Client(f"engine://127.0.0.1:{first},127.0.0.1:{second}") as client:
            with client.producer("orders") as producer:
                for number in range(200):
                    producer.send(b"%d" % number, key=f"key-{number}")
            assert "engine_etcd_transactions_total" in client.admin.get_metrics()
            servers[0].process.kill()
            assert read(client, 200) == list(range(200))
            with client.producer("orders") as producer:
                for number in range(200, 300):
                    producer.send(b"%d" % number, key=f"key-{number}")
            assert read(client, 300) == list(range(300))
        assert not (tmp_path / "data" / "metadata.db").exists()
        assert stop_server(servers[1])[0] == 0
    finally:
        for server in servers:
            server.process.kill()
            stop_server(server)


def test_brokers_that_share_no_disk_are_refused_without_an_object_store(etcd: Etcd, tmp_path: Path) -> None:
    """With fsync, messages would be lost with the machine that has them."""
    metadata, (first, second) = etcd.url(new_prefix()), free_ports(2)
    server = serve(tmp_path / "one", metadata, first)
    try:
        with pytest.raises(RuntimeError, match=r"two must be the data directory .* --objects URL") as caught:
            serve(tmp_path / "two", metadata, second)
        assert "Traceback" not in str(caught.value)
    finally:
        stop_server(server)
    again = serve(tmp_path / "one", metadata, first)
    assert stop_server(again)[0] == 0


def test_an_object_store_needs_metadata_that_outlive_the_machine(tmp_path: Path) -> None:
    found = CliRunner().invoke(command, ["--objects", "s3://bucket/prefix", "--data", str(tmp_path)])
    assert found.exit_code == 2
    assert "--objects needs --metadata" in found.output
    assert "Missing option '--data'" in CliRunner().invoke(command, []).output


def test_a_password_is_in_no_line_and_an_address_is_needed(etcd: Etcd, tmp_path: Path) -> None:
    settings = environment(ENGINE_METADATA=etcd.url(new_prefix(), login="engine:s3cret@"))
    with pytest.raises(RuntimeError, match="service_url must be set") as caught:
        start_server(tmp_path / "data", environment=settings)
    assert "s3cret" not in str(caught.value)
