"""Calls of other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.broker.cluster.segment_calls import pack, unpack_args
from engine.broker.session.identity import check_broker
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection


def broker_call(connection: Connection, header: commands.BrokerCall, payload: memoryview) -> None:
    """BROKER_CALL. Raises AuthorizationError, NotOwnerError: see check_broker()."""
    check_broker(connection)
    connection.start(header.request_id, _answer(connection, header, unpack_args(payload)))


async def _answer(connection: Connection, header: commands.BrokerCall, args: dict[str, Any]) -> None:
    value = await connection.host.calls.answer(header.target, header.method, args)
    connection.send(commands.Success(request_id=header.request_id), pack(value))
