"""Loopback TCP through uvloop on both ends, 64 KiB frames, nothing parsed: what the sockets allow.

Run as a script it is the far end, in a process of its own. The first nine bytes of a connection say what it wants: P
and a byte count: take so many bytes and answer; C and a byte count: be sent so many; E: echo.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from pace import Ticker
from stamps import padding, stamped, unstamped

FRAME = 64 * 1024


class Paced(asyncio.Protocol):
    """A connection that knows whether it may write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    async def push(self, total: int) -> None:
        """Write so many bytes, frame by frame, as fast as they leave."""
        frame = os.urandom(FRAME)
        while total > 0:
            self.transport.write(frame)
            total -= FRAME
            if not self.writable.is_set():
                await self.writable.wait()


class FarSide(Paced):
    """What the script serves."""

    mode, head, left = b"", b"", 0

    def data_received(self, data: bytes) -> None:
        if not self.mode:
            self.head += data
            if len(self.head) < 9:
                return
            self.mode, self.left = self.head[:1], int.from_bytes(self.head[1:9], "little")
            data = self.head[9:]
            if self.mode == b"C":
                self.pushing = asyncio.ensure_future(self.push(self.left))
        if self.mode == b"E":
            self.transport.write(data)
        elif self.mode == b"P":
            self.left -= len(data)
            if self.left <= 0:
                self.transport.write(b"ok")


class NearSide(Paced):
    """Calls the receiver with what the far end returns."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self.on_data = on_data

    def data_received(self, data: bytes) -> None:
        self.on_data(data)


async def dial(port: int, mode: bytes, total: int, on_data: Callable[[bytes], None]) -> NearSide:
    """A connection that has said what it wants."""
    loop = asyncio.get_running_loop()
    transport, near = await loop.create_connection(lambda: NearSide(on_data), "127.0.0.1", port)
    transport.write(mode + total.to_bytes(8, "little"))
    return near


async def push_seconds(port: int, total: int) -> float:
    """Seconds until the far end has confirmed `total` bytes."""
    done = asyncio.Event()
    near = await dial(port, b"P", total, lambda _: done.set())
    started = time.perf_counter()
    await near.push(total)
    await done.wait()
    seconds = time.perf_counter() - started
    near.transport.close()
    return seconds


async def pull_seconds(port: int, total: int) -> float:
    """Seconds until `total` bytes are here."""
    left, done = total, asyncio.Event()

    def take(data: bytes) -> None:
        nonlocal left
        left -= len(data)
        if left <= 0:
            done.set()

    started = time.perf_counter()
    near = await dial(port, b"C", total, take)
    await done.wait()
    seconds = time.perf_counter() - started
    near.transport.close()
    return seconds


async def echo_latencies(port: int, rate: int, count: int, size: int) -> list[float]:
    """Seconds from when each of `count` messages was due to its echo, at `rate` messages a second."""
    waits: list[float] = []
    rest, done = b"", asyncio.Event()

    def take(data: bytes) -> None:
        nonlocal rest
        now, rest = time.monotonic_ns(), rest + data
        while len(rest) >= size:
            waits.append((now - unstamped(rest)[0]) / 1e9)
            rest = rest[size:]
        if len(waits) >= count:
            done.set()

    near = await dial(port, b"E", 0, take)
    ticker, sent, pad = Ticker(rate), 0, padding(size)
    while sent < count:
        for number in range(sent, min(await ticker.wait(), count)):
            near.transport.write(stamped(ticker.due_ns(number), number) + pad)
            sent = number + 1
    ticker.close()
    await asyncio.wait_for(done.wait(), 10)
    near.transport.close()
    return waits


async def serve() -> None:
    """The far end, on a free port of 127.0.0.1, until the process is asked to stop."""
    server = await asyncio.get_running_loop().create_server(FarSide, "127.0.0.1", 0)
    print("listening on", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
