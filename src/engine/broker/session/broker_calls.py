"""Calls of other brokers, and of processes that have joined the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.broker.cluster.joinable import TARGET
from engine.broker.cluster.segment_calls import pack, unpack_args
from engine.broker.session.identity import check_broker
from engine.errors import UnsupportedError
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


def broker_call(connection: Connection, header: commands.BrokerCall, payload: memoryview) -> None:
    """BROKER_CALL. Raises AuthorizationError, NotOwnerError: see check_broker()."""
    check_broker(connection, f"BROKER_CALL {header.target}.{header.method}")
    connection.start(header.request_id, _answer(connection, header, unpack_args(payload)))


async def _answer(connection: Connection, header: commands.BrokerCall, args: dict[str, Any]) -> None:
    host = connection.host
    if header.target != TARGET:
        value = await host.calls.answer(header.target, header.method, args)
    elif host.joinable is None or not connection.trusted:
        raise UnsupportedError("a data directory is joined over its own socket only, and where it is open as shared")
    else:
        value = await host.joinable.answer(header.method, args)
    connection.send(commands.Success(request_id=header.request_id), pack(value))
