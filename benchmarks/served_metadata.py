"""A process that serves a metadata store over a Unix socket: `python served_metadata.py DIRECTORY`."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from engine import clock as clocks
from engine.metadata.service import MetadataService
from engine.metadata.sqlite import SqliteMetadataStore
from engine.storage.disk.metadata_commits import NativeCommits
from engine.wire import unix
from engine.wire.chunks import ChunkPool


async def serve(directory: str) -> None:
    store = await SqliteMetadataStore.open(
        f"{directory}/metadata.db", clock=clocks.SystemClock(), native=NativeCommits, served=True
    )
    service = MetadataService(store)
    service.start()
    listener = await unix.listen(f"{directory}/metadata.sock", service.accept, pool=ChunkPool())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(f"serving {listener.url}", flush=True)
    await ended.wait()
    listener.close()
    await service.close()
    await store.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
