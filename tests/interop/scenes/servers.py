"""The two sides of a scenario: `Ours`, and `Standalone`, Apache Pulsar in one process with its bookie."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from engine.cli.demo_servers import free_ports

ROOT = Path(__file__).parents[3]
JARS = Path(os.environ.get("ENGINE_PULSAR_JAVA", ROOT / ".venv" / "pulsar")) / "server"
START_S_MAX = 600.0
ANSWER_S_MAX = 60.0
STATS_S_MAX = 15.0  # how long a backlog may take to be published

CONFIGURATION = """\
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={port}
webServicePort={admin}
webSocketServiceEnabled=false
httpServerEnabled=false
numHttpServerThreads=8
listeningInterface=lo
allowLoopback=true
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
diskUsageLwmThreshold=0.97
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=64
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=32
dbStorage_rocksDB_blockCacheSize=16777216
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
journalSyncData=true
loadBalancerEnabled=false
brokerDeleteInactiveTopicsEnabled=false
scalableTopicsEnabled=true
transactionCoordinatorEnabled=true
transactionCoordinatorScalableTopicsEnabled=true
acknowledgmentAtBatchIndexLevelEnabled=true
brokerDeduplicationEnabled=true
isAllowAutoUpdateSchemaEnabled=true
"""
_OPENED = (
    *("java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip", "java.base/jdk.internal.misc"),
    *("java.base/jdk.internal.platform", "java.base/sun.net", "java.base/sun.nio.ch"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)


class Side(ABC):
    """A server on a directory and two ports, which can be killed and started again."""

    name = ""
    quiet_ms = 100  # after which nothing more comes
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, data: Path) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self.port, self.admin = free_ports(2)

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """What is run."""

    def ready(self) -> bool:
        """Whether it answers."""
        return self.ask("GET", "/admin/v2/clusters")[0] == 200

    def start(self) -> None:
        """Start, and wait until it answers. Raises AssertionError with the end of its log."""
        with (self.data / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.data)
        until = time.monotonic() + START_S_MAX
        while not self.ready():
            ended = self._process.poll() is not None or time.monotonic() > until
            assert not ended, f"{self.name} did not start:\n{(self.data / 'log').read_text()[-4000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()

    def ask(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Its admin API: (status, answer)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}{path}", data, method=verb)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None
        return status, json.loads(text) if text else None

    @abstractmethod
    def create(self, topic: str, segments: int) -> int:
        """A scalable topic that keeps its shape; the status."""

    @abstractmethod
    def create_partitioned(self, topic: str, partitions: int) -> None:
        """A classic topic of so many partitions."""

    @abstractmethod
    def find_backlog(self, topic: str, subscription: str) -> int:
        """Messages that a subscription has not acknowledged."""

    def backlog(self, topic: str, subscription: str, expected: int) -> int:
        """The same, once it is as expected, or for good."""
        until = time.monotonic() + STATS_S_MAX
        while (found := self.find_backlog(topic, subscription)) != expected and time.monotonic() < until:
            time.sleep(0.05)
        return found


class Ours(Side):
    """`engine serve`."""

    name = "engine"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "engine", "serve", "--data", str(self.data / "data"), "--log-level", "warning"),
            *("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"),
        ]

    def ready(self) -> bool:
        return self.ask("GET", "/admin/v2/scalable/public/default")[0] == 200

    def create(self, topic: str, segments: int) -> int:
        policy = {"enabled": False}
        body = {"segments": segments, "keyHash": "murmur3-low", "autoScalePolicy": policy}
        return self.ask("PUT", scalable(topic), body)[0]

    def create_partitioned(self, topic: str, partitions: int) -> None:
        async def create() -> None:
            import engine

            async with engine.AsyncClient(f"engine://127.0.0.1:{self.port}") as client:
                await client.admin.create_topic(topic, properties={"pulsar.partitions": str(partitions)})

        asyncio.run(create())

    def find_backlog(self, topic: str, subscription: str) -> int:
        _, found = self.ask("GET", f"{scalable(topic)}/stats")
        return int(found["subscriptions"][subscription]["backlog"])


class Standalone(Side):
    """Apache Pulsar's standalone server, of the jars that `make interop` brings."""

    name = "Apache Pulsar"
    quiet_ms = 4_000

    def command(self) -> list[str]:
        configuration = self.data / "standalone.conf"
        configuration.write_text(CONFIGURATION.format(port=self.port, admin=self.admin))
        return [
            *((JARS.parent / "java").read_text().strip(), "-Xms256m", "-Xmx768m", "-XX:MaxDirectMemorySize=384m"),
            *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENED),
            *("-Dio.netty.tryReflectionSetAccessible=true", "-cp", f"{JARS}/*"),
            *("org.apache.pulsar.PulsarStandaloneStarter", "--config", str(configuration), "-nfw", "-nss"),
            *("-a", "127.0.0.1", f"--metadata-dir={self.data / 'metadata'}"),
            f"--bookkeeper-dir={self.data / 'bookkeeper'}",
        ]

    def ready(self) -> bool:
        """It makes its namespaces after it has begun to listen."""
        return (self.ask("GET", "/admin/v2/namespaces/public")[1] or []) == ["public/default"]

    def create(self, topic: str, segments: int) -> int:
        return self.ask("PUT", f"{scalable(topic)}?numInitialSegments={segments}", {})[0]

    def create_partitioned(self, topic: str, partitions: int) -> None:
        status, _ = self.ask("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", partitions)
        assert status == 204, status

    def find_backlog(self, topic: str, subscription: str) -> int:
        path = f"/admin/v2/{topic.replace('://', '/')}/stats?getPreciseBacklog=true"
        return int(self.ask("GET", path)[1]["subscriptions"][subscription]["msgBacklog"])


def scalable(topic: str) -> str:
    """The path of a topic in both admin APIs."""
    scheme, _, name = topic.rpartition("://")
    tenant, namespace, local = name.split("/")
    return f"/admin/v2/scalable/{tenant}/{namespace}/{'persistent:' if scheme == 'persistent' else ''}{local}"
