"""Messages of other protocols, made at run time with the `protobuf` package of descriptors beside their `.proto`.

Compiled stubs would run only with the versions of `protobuf` that their compiler allows; descriptors are data, which
every version reads (`python tools/compile_protocols.py` makes them). Each protocol has a pool of its own: other clients
of it in the same process have their messages in the default pool. Fields that a `.proto` does not name are kept by the
library, unread. Enumerations are plain integers.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def messages(package: str, name: str) -> dict[str, Any]:
    """The classes of the messages of `name`.proto in a package, by name. It stands in one file, without imports."""
    found = descriptor_pb2.FileDescriptorSet.FromString((files(package) / f"{name}.binpb").read_bytes())
    (file,) = found.file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        one.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{one.name}"))
        for one in file.message_type
    }
