r"""Templates of `engine consume -f`: text with %tokens for the parts of a message, and \escapes.

The tokens are mostly those of kcat, so that what is written for the one works with the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.client import Message

Part = Callable[["Message"], bytes]


def _value(message: Message) -> bytes:
    return bytes(message.value)


def _key(message: Message) -> bytes:
    return message.key or b""


def _key_size(message: Message) -> bytes:
    return _number(-1 if message.key is None else len(message.key))


def _properties(message: Message) -> bytes:
    return ",".join(f"{name}={value}" for name, value in message.properties.items()).encode()


def _number(number: int) -> bytes:
    return b"%d" % number


def _milliseconds(when: datetime) -> bytes:
    return _number(round(when.timestamp() * 1000))


TOKENS: dict[str, tuple[str, Part]] = {
    "k": ("key", _key),
    "v": ("value", _value),
    "s": ("value, as %v", _value),
    "h": ("properties, as a=1,b=2", _properties),
    "t": ("topic", lambda message: message.topic.encode()),
    "p": ("segment", lambda message: _number(message.segment_id)),
    "o": ("offset in the segment", lambda message: _number(message.offset)),
    "T": ("publish time, ms since 1970", lambda message: _milliseconds(message.publish_time)),
    "e": ("event time, ms since 1970; -1: none", lambda m: _number(-1 if m.event_time_ms is None else m.event_time_ms)),
    "K": ("bytes in the key; -1: no key", _key_size),
    "S": ("bytes in the value", lambda message: _number(len(bytes(message.value)))),
    "P": ("producer's name", lambda message: message.producer_name.encode()),
    "q": ("sequence id", lambda message: _number(message.sequence_id)),
    "r": ("redelivery count", lambda message: _number(message.redelivery_count)),
}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_SPECIAL = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


class Template:
    """A parsed template. Raises a usage error for an unknown token or escape."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Part] = []
        at = 0
        for found in _SPECIAL.finditer(text):
            self._parts += [text[at : found.start()].encode(), _part(found)]
            at = found.end()
        self._parts.append(text[at:].encode())

    def render(self, message: Message) -> bytes:
        """The bytes for one message; nothing is added behind them."""
        return b"".join([part if isinstance(part, bytes) else part(message) for part in self._parts])


def _part(found: re.Match[str]) -> bytes | Part:
    token, escape = found.groups()
    if token == "%":
        return b"%"
    if token is not None:
        if token not in TOKENS:
            raise click.BadParameter(f"a token must be %% or one of %{' %'.join(TOKENS)}, got '%{token}'")
        return TOKENS[token][1]
    if escape.startswith("x") and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in ESCAPES:
        raise click.BadParameter(rf"an escape must be \n, \t, \r, \0, \\ or \xHH, got '\{escape}'")
    return ESCAPES[escape]
