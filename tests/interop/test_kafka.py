"""`engine perf compare` with a real node of Apache Kafka (KRaft), of the jars in the folder ENGINE_KAFKA_JARS."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.main import cli
from engine.cli.perf_compare import Measured

JARS = "ENGINE_KAFKA_JARS"
WAIT_S = 120.0
CLUSTER = base64.urlsafe_b64encode(bytes(range(16))).rstrip(b"=").decode()
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
auto.create.topics.enable=false
"""


def free_ports(count: int) -> list[int]:
    """Different ones: all are bound before one is let go."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in found]
    finally:
        for one in found:
            one.close()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that has just been started."""
    jars, java = os.environ.get(JARS), shutil.which("java")
    if not jars:
        pytest.skip(f"{JARS} must name a folder with the jars of Apache Kafka")
    assert java is not None, "Kafka needs java"
    folder = tmp_path_factory.mktemp("kafka")
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder))
    command: list[str | Path] = [java, "-Xmx512m", "-cp", f"{jars}/*"]
    form = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config", settings]
    made = subprocess.run(form, cwd=folder, capture_output=True, text=True, timeout=WAIT_S)
    assert made.returncode == 0, made.stdout + made.stderr
    said = folder / "said.log"
    with said.open("wb") as out:
        node = subprocess.Popen([*command, "kafka.Kafka", settings], cwd=folder, stdout=out, stderr=out)
    try:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert node.poll() is None, said.read_text()
                assert time.monotonic() < end, f"Kafka does not answer: {said.read_text()[-2_000:]}"
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        node.terminate()
        node.wait(WAIT_S)


def has_topics(kafka: str, *wanted: str) -> bool:
    """Whether it has these topics and no others, once it knows: the controller answers before the broker has heard."""
    from confluent_kafka.admin import AdminClient

    admin, end = AdminClient({"bootstrap.servers": kafka}), time.monotonic() + WAIT_S
    while {name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")} != set(wanted):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_it_is_measured_and_its_topics_are_gone(kafka: str, tmp_path: Path):
    words = ("perf", "compare", f"kafka://{kafka}", "--data", str(tmp_path / "data"), "-n", "2000", "--turns", "2")
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert list(found) == ["engine", f"kafka://{kafka}"]
    for each in found.values():
        assert [set(one) for one in each] == [set(Measured._fields)] * 2
        assert all(value > 0 for one in each for value in one.values())
    assert has_topics(kafka)


def test_what_the_broker_refuses_is_said(kafka: str):
    from engine.cli.peers.kafka import KafkaTopic

    topic = KafkaTopic(f"kafka://{kafka}", "t")
    try:
        assert has_topics(kafka, "t")
        with pytest.raises(OSError, match=r"^Kafka: Topic 't' already exists"):
            KafkaTopic(f"kafka://{kafka}", "t")
    finally:
        topic.close()
    assert has_topics(kafka)
