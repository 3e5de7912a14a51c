"""Compiles the messages of other protocols: `python tools/compile_protocols.py`, after a change of one of SOURCES.

Beside each `.proto` goes a `.binpb`, its descriptors (a FileDescriptorSet), which engine/wire/protobuf.py reads. They
hold no comments, so they change only where a message does. Needs grpcio-tools, which has the compiler.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "src/engine/metadata/etcd/etcd.proto", ROOT / "src/engine/pulsar/pulsar.proto")


def compiled(source: Path) -> bytes:
    """The descriptors of a `.proto`. Raises RuntimeError where it does not compile; the compiler says why."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        asked = ["protoc", f"--proto_path={source.parent}", f"--descriptor_set_out={made}", source.name]
        if protoc.main(asked):
            raise RuntimeError(f"{source} must be compiled without an error; what the compiler says is above")
        return made.read_bytes()


if __name__ == "__main__":
    for path in SOURCES:
        path.with_suffix(".binpb").write_bytes(compiled(path))
