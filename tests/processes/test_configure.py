"""A configuration that is reloaded reaches all processes of a server, also while they start, and one that is silent."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.errors import AuthenticationError, InvalidConfigurationError
from engine.processes import parent as module
from engine.processes.channel import Answers, Channel
from engine.processes.parent import Parent, Plan, _Child
from engine.processes.spawn import launcher
from engine.wire.url import format_url
from tests.kit.peer import until


def parent_of(data: Path, config: BrokerConfig) -> Parent:
    program = [sys.executable, "-m", "engine.cli.serve_processes", str(os.getpid()), "warning", "text"]
    return Parent(Plan(data, 2, ("127.0.0.1", 0), None, 0), config, launcher(program))


@pytest.mark.timeout(300)
async def test_processes_that_are_starting_serve_with_the_configuration_that_came_meanwhile(tmp_path: Path) -> None:
    config = BrokerConfig(auth_token="old")
    parent = parent_of(tmp_path, config)
    try:
        starting = asyncio.ensure_future(parent.start())
        await until(lambda: len(parent.pids()) == 2)
        await parent.configure(dataclasses.replace(config, auth_token="new"))
        await starting
        assert parent._sockets is not None
        for own in parent._sockets.own:
            url = format_url(*own.addresses[0])
            async with AsyncClient(url, token="new") as client:
                await client.producer("orders")
            with pytest.raises(AuthenticationError):
                async with AsyncClient(url, token="old") as client:
                    await client.producer("orders")
    finally:
        await parent.close()


async def test_a_process_that_does_not_answer_keeps_no_other_from_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CONFIGURE_S_MAX", 0.05)
    parent, got = parent_of(tmp_path, BrokerConfig()), asyncio.Event()
    channels: list[Channel] = []

    async def silent(config: Any) -> None:
        await asyncio.Event().wait()

    async def answers(config: Any) -> None:
        assert config["connections_max"] == 7
        got.set()

    process: Any = None
    for index, configure in enumerate((silent, answers)):
        ours, theirs = socket.socketpair()
        methods: Answers = {"configure": configure}
        channels += [await Channel.open(ours, {}, f"process {index}"), await Channel.open(theirs, methods, "parent")]
        parent._children[index] = _Child(process, channels[-2])
    await parent.configure(BrokerConfig(connections_max=7))
    assert got.is_set()
    assert "process 0 did not apply the configuration within" in caplog.text
    assert "process 1" not in caplog.text
    for channel in channels:
        await channel.close()


async def test_a_configuration_that_the_shared_port_refuses_changes_nothing(tmp_path: Path) -> None:
    old = BrokerConfig()
    parent = parent_of(tmp_path, old)

    class Refusing:
        """As much of a OnePort as is called."""

        def configure(self, config: BrokerConfig) -> None:
            raise InvalidConfigurationError("tls_cert must be a certificate, got none")

    front: Any = Refusing()
    parent._front = front
    with pytest.raises(InvalidConfigurationError):
        await parent.configure(BrokerConfig(connections_max=7))
    assert parent.config is old
