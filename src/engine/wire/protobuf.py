"""Messages of other protocols by the numbers of their fields, made at run time with the `protobuf` package.

A table of field numbers is all that such an interface is. Compiled stubs would be a generated file that runs only with
the versions of `protobuf` that its compiler allows, and would share the default pool of descriptors with other clients
of the same protocol in the process. Fields that a table does not name are kept by the library, unread. Enumerations are
plain integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def messages(package: str, table: Mapping[str, str], syntax: Literal["proto2", "proto3"]) -> dict[str, Any]:
    """The classes of the messages of a table, by name, in a pool of their own.

    Of each message, its fields: "name number type, …". "[]" behind a type: repeated. Another message's name is a type,
    too.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _field(message, text, package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def _field(message: Any, text: str, package: str) -> None:
    name, number, kind = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _REPEATED if kind.endswith("[]") else _OPTIONAL
    kind = kind.removesuffix("[]")
    field.type = _SCALARS.get(kind, _MESSAGE)
    if field.type == _MESSAGE:
        field.type_name = f".{package}.{kind}"
