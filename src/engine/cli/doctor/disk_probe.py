"""A program of the standard library alone: writes and syncs a file without a name, and prints what that took.

    python disk_probe.py DIRECTORY SYNCS BYTES SECONDS

It is a process of its own, so that `engine doctor` can leave it behind where the disk does not answer. The file never
has a name (or, where the file system has no such files, loses it before anything is written), so nothing is left.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

BLOCK = 4_096
CHUNK = 1 << 20


def opened(directory: str) -> int:
    """A new file without a name."""
    if sys.platform == "linux":
        try:
            return os.open(directory, os.O_RDWR | os.O_TMPFILE, 0o600)
        except (IsADirectoryError, NotADirectoryError):
            pass
        except OSError as e:
            if e.errno != 95:  # EOPNOTSUPP
                raise
    descriptor, path = tempfile.mkstemp(prefix=".doctor-", dir=directory)
    os.unlink(path)
    return descriptor


def sync(descriptor: int) -> None:
    """As the server syncs."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def probe(directory: str, syncs: int, size: int, seconds: float) -> dict[str, object]:
    """Seconds of each write of 4 KiB with its sync; bytes and seconds of a write that is synced once."""
    descriptor = opened(directory)
    took: list[float] = []
    end = time.monotonic() + seconds
    while len(took) < syncs and (not took or time.monotonic() < end):
        began = time.monotonic()
        os.write(descriptor, os.urandom(BLOCK))
        sync(descriptor)
        took.append(time.monotonic() - began)
    chunk, written, began = os.urandom(CHUNK), 0, time.monotonic()
    while written < size and time.monotonic() < began + seconds:
        written += os.write(descriptor, chunk)
    sync(descriptor)
    spent = time.monotonic() - began
    os.close(descriptor)
    return {"syncs": took, "bytes": written, "seconds": spent}


if __name__ == "__main__":
    try:
        found = probe(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    except OSError as e:
        found = {"error": e.strerror or str(e)}
    print(json.dumps(found))
