"""Checks of a data directory: rights, file system, free space, speed and latency of syncs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from engine.cli.connection import METADATA_FILE
from engine.cli.doctor import disk_probe
from engine.cli.doctor.finding import Finding, State, good, graded, problem, warning
from engine.model.units import size_text

MIB = 1 << 20
FREE_LEAST = 256 * MIB  # one log file
FREE_WANTED = 2_048 * MIB
FREE_SHARE_MIN = 0.05
FILES_WANTED = 10_000
SYNCS = 100
WRITTEN = 64 * MIB
WRITTEN_SHARE = 64  # of the free space, at most one part of so many is written
SYNC_SLOW_S, SYNC_FAULTY_S = 0.02, 0.2
SPEED_WANTED = 20 * MIB  # bytes a second
IN_MEMORY = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuse.sshfs", "overlay")


def data_directory(path: Path, seconds: float) -> Iterator[Finding]:
    """`seconds`: what the writes may take."""
    if not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        yield problem(
            "disk", f"{path} {what}", "Make it, owned by the user of the server, or name another with --data."
        )
        return
    yield from _file_system(path)
    free = os.statvfs(path)
    yield from _space(free)
    unusable = [name for name in ("", METADATA_FILE) if (path / name).exists() and not os.access(path / name, os.W_OK)]
    for name in unusable:
        remedy = "Give the directory and all in it to the user of the server (chown -R), and mount it for writing."
        yield problem("disk.rights", f"{path / name} cannot be written by this user", remedy)
    if not unusable:
        yield from _measured(path, free.f_bavail * free.f_frsize, seconds)


def _file_system(path: Path) -> Iterator[Finding]:
    try:
        kind, options = mount_of(path.resolve(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return
    if "ro" in options:
        yield problem(
            "disk.mount", f"{path} is mounted read-only ({kind})", "Mount it for writing (mount -o remount,rw)."
        )
    elif kind in IN_MEMORY:
        remedy = "Put the data directory on a disk: this one is empty after a restart of the machine."
        yield problem("disk.mount", f"{path} is in memory ({kind})", remedy)
    elif kind in REMOTE:
        remedy = "Use a local disk or a volume with ext4 or XFS, whose syncs and locks are known to hold."
        yield warning("disk.mount", f"{path} is on {kind}", remedy)
    else:
        yield good("disk.mount", kind or "unknown")


def mount_of(path: Path, table: str) -> tuple[str, tuple[str, ...]]:
    """Kind and options of the mount that `path` is in, by the text of a mountinfo table; ("", ()) for none."""
    best: tuple[int, str, tuple[str, ...]] = (-1, "", ())
    for line in table.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if len(fields) < 6:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), kind[0], tuple(fields[5].split(",")))
    return best[1], best[2]


def _space(found: os.statvfs_result) -> Iterator[Finding]:
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    yield graded(
        "disk.free",
        free_state(free, total),
        f"{size_text(free)} of {size_text(total)} free",
        "Free space or add a disk, or keep less: retention_time, retention_size, topics that are not needed.",
    )
    if found.f_files:
        state = State(found.f_favail < FILES_WANTED)
        yield graded(
            "disk.files", state, f"{found.f_favail:,} more files", "Delete files, or use XFS, which has no limit."
        )


def free_state(free: int, total: int) -> State:
    """Of so many free bytes."""
    if free < FREE_LEAST:
        return State.PROBLEM
    return State(free < FREE_WANTED or free < total * FREE_SHARE_MIN)


def _measured(path: Path, free: int, seconds: float) -> Iterator[Finding]:
    written = min(WRITTEN, free // WRITTEN_SHARE)
    command = [sys.executable, "-I", "-S", disk_probe.__file__, str(path), str(SYNCS), str(written), str(seconds / 4)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            found: dict[str, Any] = json.loads(process.communicate(timeout=seconds)[0] or '{"error": "it was killed"}')
        except subprocess.TimeoutExpired:
            process.kill()
            found = {"error": f"the disk has not answered for {seconds:g} s"}
    if "error" in found:
        remedy = "Mend the disk or its mount, or give the directory to the user of the server."
        yield problem("disk.write", f"a file in {path} cannot be written: {found['error']}", remedy)
        return
    yield from measured(found["syncs"], found["bytes"], found["seconds"])


def measured(syncs: list[float], written: int, seconds: float) -> Iterator[Finding]:
    """Of the seconds of each sync, and of bytes that were written and synced once in so many seconds."""
    half, most = median(syncs), sorted(syncs)[int(len(syncs) * 0.99)]
    state = State.PROBLEM if half > SYNC_FAULTY_S else State(half > SYNC_SLOW_S)
    found = f"half within {half * 1000:.2f} ms, 99% within {most * 1000:.2f} ms, of {len(syncs)}"
    remedy = "Use an SSD with power-loss protection, or a topic durability of interval where some loss is allowed."
    yield graded("disk.sync", state, found, remedy)
    if written:
        speed = written / max(seconds, 1e-9)
        remedy = "Use a faster disk, or find what else writes to it."
        yield graded("disk.speed", State(speed < SPEED_WANTED), f"{size_text(speed)}/s, synced once", remedy)
