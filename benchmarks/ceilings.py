"""What the machine allows without a broker: system calls and a plain Python loop over the same bytes."""

from __future__ import annotations

import os
import struct
import time

from support import POOL, Rows, directory

CHUNK = 64 * 1024
CHUNKS_PER_CALL = 16
HEADER = struct.Struct("<II")
PUBLISHERS = 64


def writev_seconds(total: int) -> float:
    """Seconds to write `total` bytes by writev of 64 KiB chunks, with one fdatasync at the end."""
    chunk = os.urandom(CHUNK)
    with directory() as path:
        started = time.perf_counter()
        fd = os.open(f"{path}/raw", os.O_WRONLY | os.O_CREAT)
        while total > 0:
            total -= os.writev(fd, [chunk] * min(CHUNKS_PER_CALL, -(-total // CHUNK)))
        os.fdatasync(fd)
        os.close(fd)
        return time.perf_counter() - started


def write_file(path: str, rows: Rows) -> float:
    """Seconds for a Python loop that writes length-prefixed records through a buffered file."""
    pack = HEADER.pack
    started = time.perf_counter()
    with open(path, "wb", buffering=1 << 20) as file:
        write = file.write
        for key, value in rows:
            write(pack(len(key), len(value)) + key + value)
    return time.perf_counter() - started


def file_write_seconds(rows: Rows) -> float:
    """The same into a file of its own."""
    with directory() as path:
        return write_file(f"{path}/records", rows)


def file_read_seconds(rows: Rows) -> float:
    """Seconds for a Python loop that reads such records back, each value a `bytes`."""
    with directory() as path:
        write_file(f"{path}/records", rows)
        started = time.perf_counter()
        count = read_file(f"{path}/records")
        seconds = time.perf_counter() - started
    assert count == len(rows)
    return seconds


def read_file(path: str) -> int:
    """How many records there are."""
    unpack, count, rest, sizes = HEADER.unpack_from, 0, b"", 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            data, at = rest + data, 0
            end = len(data)
            while at + 8 <= end:
                key_size, value_size = unpack(data, at)
                stop = at + 8 + key_size + value_size
                if stop > end:
                    break
                value = data[at + 8 + key_size : stop]
                sizes += len(value)
                count += 1
                at = stop
            rest = data[at:]
    return count


def synced_groups_rate(rows: Rows, seconds: float) -> float:
    """Records per second when each fdatasync covers 64 of them: what 64 publishers could have at best."""
    pool, done = rows[:POOL], 0
    with directory() as path, open(f"{path}/records", "wb", buffering=1 << 20) as file:
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for i in range(done, done + PUBLISHERS):
                key, value = pool[i % len(pool)]
                file.write(HEADER.pack(len(key), len(value)) + key + value)
            file.flush()
            os.fdatasync(file.fileno())
            done += PUBLISHERS
        return done / (time.perf_counter() - started)
