"""`guarded`: the handlers of a connection whose principal does not have all rights.

A handler of the table is called once the need of its header is met: before that, nothing is looked at but the header.
Commands that the table has as ATTACHED keep their handlers, so that the paths of messages have no check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.broker.rights.principal import Kind
from engine.broker.rights.table import COMMANDS, any_role
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
    if rule is None:
        return handlers[kind]
    return _of_any_role(kind, handlers) if rule is any_role else _checked(kind, handlers, rule)


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


def _of_any_role(kind: type[Header], handlers: Handlers) -> Handler:
    """What each role may do, as the transactions of a busy client: there is no right to look up."""
    role = Kind.ROLE  # members of enumerations are looked up slowly by Python 3.11

    def check(connection: Connection, header: Header, payload: memoryview) -> None:
        if connection.principal.kind is not role:
            need = any_role(header)
            connection.host.rights.check(connection.principal, need, header.command.name, connection.origin)
        handlers[kind](connection, header, payload)

    return check


def _refuse(connection: Connection, header: Header, payload: memoryview) -> None:
    request = header.command.name
    raise connection.denial(request, f"{request} is not in the table of rights")
