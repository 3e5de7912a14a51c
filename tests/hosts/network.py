"""`Network`: hosts as network namespaces, joined by a bridge in another one. The machine's own network has no part.

In a partition two hosts have addresses of the link layer for each other that do not exist: what one sends the other is
lost, and it gets no refusal, as where a cable is cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

from engine.cli.demo_servers import Host

SUBNET = "10.77.0"
BITS = 24
NO_SUCH_CARD = "02:00:00:00:ff:ff"
CALL_S_MAX = 30.0


def missing() -> str | None:
    """Why this machine makes no network namespaces; None where it does."""
    if shutil.which("ip") is None:
        return "there is no program `ip` (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    with Network([]) as tried:
        return tried.refused


class Network:
    """Hosts by name, numbered from 1 on in the subnet. Use it with `with`."""

    def __init__(self, names: list[str]) -> None:
        self.mark = f"e{os.getpid() % 100_000}"
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._made: list[str] = []
        self.refused: str | None = None

    @classmethod
    def of(cls, mark: str, names: list[str]) -> Network:
        """The network that another process has made, which also ends it."""
        found = cls(names)
        found.mark = mark
        return found

    def host(self, name: str) -> Host:
        """Where a server of that host runs."""
        return Host(f"{SUBNET}.{self._numbers[name]}", ("ip", "netns", "exec", self._space(name)))

    def cut(self, one: str, other: str) -> None:
        """From now on neither hears of the other one."""
        for here, there in ((one, other), (other, one)):
            where = (self.host(there).address, "lladdr", NO_SUCH_CARD, "dev", "eth", "nud", "permanent")
            _ip("-n", self._space(here), "neighbour", "replace", *where)

    def heal(self, one: str, other: str) -> None:
        """Undo cut()."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._space(here), "neighbour", "del", self.host(there).address, "dev", "eth")

    def cut_off(self, name: str) -> None:
        """Cut a host off from all others."""
        for other in self._numbers.keys() - {name}:
            self.cut(name, other)

    def heal_all(self, name: str) -> None:
        """Undo cut_off()."""
        for other in self._numbers.keys() - {name}:
            self.heal(name, other)

    def _space(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def _make(self, name: str) -> str:
        space = self._space(name)
        _ip("netns", "add", space)
        self._made.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def __enter__(self) -> Self:
        try:
            switch = self._make("switch")
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for name, number in self._numbers.items():
                space, port = self._make(name), f"p{number}"
                _ip("-n", space, "link", "add", "eth", "type", "veth", "peer", "name", port, "netns", switch)
                _ip("-n", space, "address", "add", f"{SUBNET}.{number}/{BITS}", "dev", "eth")
                _ip("-n", space, "link", "set", "eth", "up")
                _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        except RuntimeError as e:
            self.refused = str(e)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for space in reversed(self._made):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=CALL_S_MAX, check=False)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=CALL_S_MAX, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
