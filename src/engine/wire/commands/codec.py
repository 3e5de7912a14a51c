"""Headers to bytes and back, and what is said of one that is malformed."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from engine.errors import ProtocolError
from engine.wire.commands.command import Command
from engine.wire.commands.connection import Success
from engine.wire.commands.header import Answer, Answerable, Header, Part
from engine.wire.commands.table import HEADERS

Packed = bytes | bytearray | memoryview

_PLACE = re.compile(r"(?P<said>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(.*?)`( .*?)?(?:, got `?(.*?)`?)?", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+")

DECODERS = {command: msgspec.msgpack.Decoder(kind).decode for command, kind in HEADERS.items()}
CHECKED = frozenset(command for command, kind in HEADERS.items() if kind.fault is not Part.fault)
# How a header of these is known to be sound without a call, see Part. (): fault() is always asked.
SOUND_IF = {command: HEADERS[command].sound_if or () for command in CHECKED}

encode = msgspec.msgpack.Encoder().encode


def decode(command: Command, packed: Packed) -> Header:
    """The header of a command. Raises ProtocolError, naming the command and the field, for one that is malformed."""
    try:
        header: Header = DECODERS[command](packed)
    except msgspec.ValidationError as e:
        raise ProtocolError(f"{command.name} is malformed: {_fault(str(e), packed)}") from None
    except Exception as e:  # several kinds for bytes that are not msgpack
        raise ProtocolError(f"{command.name}: the header is not msgpack: {type(e).__name__} {e}") from e
    if command in CHECKED and (fault := header.fault()) is not None:
        raise ProtocolError(f"{command.name} is malformed: {fault}")
    return header


def answer_to(request: Answerable[Answer], header: Header) -> Answer:
    """What `header` answers to that request. Raises ProtocolError when it is no answer to that, or malformed."""
    wanted = request.answer
    if wanted is None or not issubclass(wanted, Header):
        if type(header) is not Success:
            raise _other(request, Command.SUCCESS, header)
        answer = None if wanted is None else _result(request, wanted, header.result)
    elif type(header) is wanted:
        answer = header
    else:
        raise _other(request, wanted.command, header)
    return cast(Answer, answer)


def _result(request: Header, kind: type[Part], result: Any) -> Part:
    if type(result) is kind:
        return result  # over a connection in memory, it is as the broker has made it
    try:
        part = msgspec.convert(result, kind)
        fault = part.fault()
    except msgspec.ValidationError as e:
        fault = _fault(str(e), result)
    if fault is not None:
        raise ProtocolError(f"the answer to {request.command.name} is malformed: {fault}")
    return part


def _other(request: Header, expected: Command, header: Header) -> ProtocolError:
    return ProtocolError(f"{request.command.name} must be answered by {expected.name}, got {header.command.name}")


def _fault(said: str, value: Any) -> str:
    """What msgspec has said of a value, as "field must be ..., got ..."."""
    place = _PLACE.fullmatch(said)
    assert place is not None
    said, path = place["said"], place["path"] or ""
    name = f"a name in {path or 'the map'}" if place["key"] else path or "it"
    if missing := _MISSING.fullmatch(said):
        return f"{path}{path and '.'}{missing[1]} must be given, got nothing"
    if unknown := _UNKNOWN.fullmatch(said):
        return f"{name} must be one of the words that are known, got {unknown[1]}"
    if expected := _EXPECTED.fullmatch(said):
        kind, bound, got = expected.groups()
        return f"{name} must be {kind}{bound or ''}, got {got or _at(value, path)}"
    return f"{name}: {said}"


def _at(value: Any, path: str) -> str:
    """What is there. `value`: a map that was decoded without a type, or a packed one."""
    try:
        if isinstance(value, Packed):
            value = msgspec.msgpack.decode(value)
        for step in _STEP.findall(path):
            value = value[int(step) if isinstance(value, list | tuple) else step]
    except Exception:  # it cannot be read to its end; or it is in a map whose names msgspec does not tell
        return "another value"
    return f"{value!r:.80}"
