"""The command of a metadata store that is served to other processes."""

from __future__ import annotations

from engine.wire.commands.command import Command
from engine.wire.commands.header import Header


class Metadata(Header, frozen=True, kw_only=True):
    """Requests to a served metadata store, or its answers; the payload has them (metadata/protocol.py)."""

    command = Command.METADATA
