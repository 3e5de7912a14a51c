"""The addresses that clients of one of several processes are given."""

from __future__ import annotations

from typing import Any

import pytest

from engine.broker.addresses import Addresses
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.current import CurrentConfig
from engine.broker.settings.shares import ProcessSet

A, B, OTHER = "engine+unix:///data/engine-0.sock", "engine+unix:///data/engine-1.sock", "engine://elsewhere:6650"


class Stream:
    """As much of a FrameStream as addresses need."""

    def __init__(self, local_url: str | None) -> None:
        self.local_url = local_url


def given(stream_url: str | None, ports: tuple[int, ...] = (6651, 6652), **config: Any) -> list[str]:
    """The addresses of this process, the next one, and a broker that is not of the server."""
    addresses = Addresses(CurrentConfig(BrokerConfig(**config)), ProcessSet(0, (A, B), ports))
    stream: Any = Stream(stream_url)
    assert addresses.identity == A
    assert addresses.url_for(stream) == addresses.dial(A, stream)
    return [addresses.dial(url, stream) for url in (A, B, OTHER)]


@pytest.mark.parametrize(
    ("dialled", "found"),
    [
        ("engine://10.0.0.5:6650", ["engine://10.0.0.5:6651", "engine://10.0.0.5:6652", OTHER]),
        ("engine://[::1]:6652", ["engine://[::1]:6651", "engine://[::1]:6652", OTHER]),
        ("engine+unix:///data/engine.sock", [A, B, OTHER]),
        (None, [A, B, OTHER]),
    ],
)
def test_the_host_that_was_dialled_with_the_ports_of_the_processes(dialled: str | None, found: list[str]):
    assert given(dialled) == found


def test_the_host_that_is_configured():
    found = given("engine://10.0.0.5:6650", service_url="engine://broker.example.org:7000")
    assert found == ["engine://broker.example.org:6651", "engine://broker.example.org:6652", OTHER]


def test_processes_without_ports_of_their_own():
    assert given("engine://10.0.0.5:6650", ports=()) == [A, B, OTHER]


@pytest.mark.parametrize(
    ("listening", "config", "found"),
    [
        (None, {}, A),
        (("127.0.0.1", 6651), {}, "engine://127.0.0.1:6651"),
        (("0.0.0.0", 6651), {}, "engine://127.0.0.1:6651"),
        (("0.0.0.0", 6651), {"service_url": "engine://h:6650"}, "engine://h:6651"),
    ],
)
def test_the_name_in_metrics(listening: tuple[str, int] | None, config: dict[str, Any], found: str):
    addresses = Addresses(CurrentConfig(BrokerConfig(**config)), ProcessSet(0, (A, B), (6651, 6652)))
    addresses.listening = listening
    assert addresses.service_url == found
