"""`guarded`: the handlers of a connection whose principal does not have all rights.

A handler of the table is called once the need of its header is met: before that, nothing is looked at but the header.
Commands that the table has as ATTACHED keep their handlers, so that the paths of messages have no check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.broker.rights.table import COMMANDS
from engine.errors import AuthorizationError
from engine.wire import commands
from engine.wire.commands import Header

if TYPE_CHECKING:
    from engine.broker.rights.table import Rule
    from engine.broker.session.connection import Connection
    from engine.broker.session.ports import Handler, Handlers


def guarded(handlers: Handlers) -> Handlers:
    """The same commands, each behind its check; one that the table does not have is refused."""
    return {kind: _guarded(kind, handlers) for kind in handlers}


def _guarded(kind: type[Header], handlers: Handlers) -> Handler:
    if kind not in COMMANDS:
        return _refuse
    rule = COMMANDS[kind]
    return handlers[kind] if rule is None else _checked(kind, handlers, rule)


# Those that attach something, and the client's id of it.
_IDENTS: dict[type[Header], Callable[[Any], int]] = {
    commands.ScalableTopicLookup: lambda header: header.session_id,
    commands.ScalableTopicSubscribe: lambda header: header.consumer_id,
    commands.WatchTopicList: lambda header: header.session_id,
    commands.Producer: lambda header: header.producer_id,
    commands.Subscribe: lambda header: header.consumer_id,
}


def _checked(kind: type[Header], handlers: Handlers, rule: Rule) -> Handler:
    ident_of = _IDENTS.get(kind)

    def check(connection: Connection, header: Header, payload: memoryview) -> None:
        need = rule(header)
        connection.host.rights.check(connection.principal, need, header.command.name, connection.origin)
        if ident_of is not None and connection.needs is not None:
            connection.needs.note(ident_of(header), need)
        handlers[kind](connection, header, payload)  # the one that is loaded now

    return check


def _refuse(connection: Connection, header: Header, payload: memoryview) -> None:
    raise AuthorizationError(f"{header.command.name} is not in the table of rights")
