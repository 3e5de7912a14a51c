"""Checks of this machine: versions, native modules, limits, memory, kernel settings, and the clock."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import itertools
import os
import platform
import resource
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.machine import machine_memory, usable_cores
from engine.cli.doctor.finding import Finding, State, good, graded, problem, warning
from engine.model.units import size_text

MIB = 1 << 20
DESCRIPTORS_MIN = 256  # below it a broker of a few topics fails
FILES_OPEN = 1_000  # log files and sockets besides those of clients
THREADS_MIN = 64
THREADS_WANTED = 256
MEMORY_WANTED = 512 * MIB
POOLS_SHARE_MAX = 0.8  # of the memory
AVAILABLE_SHARE_MIN = 0.1
BACKLOG_WANTED = 128  # connections that wait to be accepted
FILES_SHARE_MAX = 0.8  # of those that the kernel allows
CLOCK_READS = 2_000
SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies")
UNSYNCHRONISED = 5  # adjtimex(): TIME_ERROR

NATIVE = Path(__file__).parents[2] / "_native"


def versions() -> Iterator[Finding]:
    """Of Python, this package, what it stands on, and whether each native module loads."""
    try:
        own = importlib.metadata.version("engine")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    python = f"Python {platform.python_version()} ({platform.python_implementation()})"
    yield good("versions", f"engine {own}, {python}, SQLite {sqlite3.sqlite_version}, {platform.platform()}")
    faults = list(_native_faults())
    for name, why in faults:
        remedy = "Install engine for this Python again (pip install --force-reinstall engine), or run make build."
        yield problem("versions.native", f"{name} cannot be loaded: {why}", remedy)
    if not faults:
        yield good("versions.native", "all native modules load")
    if platform.python_implementation() == "CPython":
        try:
            importlib.import_module("uvloop")
        except ImportError as e:
            yield warning("versions.uvloop", f"uvloop cannot be loaded: {e}", "Run pip install uvloop.")


def _native_faults() -> Iterator[tuple[str, str]]:
    for stub in sorted(NATIVE.rglob("*.pyi")):
        name = ".".join(("engine", "_native", *stub.relative_to(NATIVE).with_suffix("").parts))
        if stub.stem == "__init__":
            continue
        try:
            importlib.import_module(name)
        except ImportError as e:
            yield name, str(e)


def limits(config: BrokerConfig) -> Iterator[Finding]:
    """Of this process, which a server that is started in the same way has too."""
    descriptors = _soft(resource.RLIMIT_NOFILE)
    wanted = config.connections_max + FILES_OPEN
    found = f"{_count(descriptors)} file descriptors; {wanted:,} for connections_max = {config.connections_max:,}"
    remedy = f"Raise it: LimitNOFILE={max(wanted, 65_536)} in the systemd unit, or ulimit -n before the start."
    state = State.PROBLEM if descriptors < DESCRIPTORS_MIN else State(descriptors < wanted)
    yield graded("limits.descriptors", state, found, remedy)
    yield from _threads()
    largest = _soft(resource.RLIMIT_FSIZE)
    remedy = "Start the server with ulimit -f unlimited (LimitFSIZE=infinity)."
    if largest < config.log_file_size:
        found = f"a file may have {size_text(largest)}, and log_file_size is {size_text(config.log_file_size)}"
        yield problem("limits.file_size", found, remedy)
    mapped = min(_soft(resource.RLIMIT_AS), _soft(resource.RLIMIT_DATA))
    if mapped < machine_memory():
        remedy = "Start the server with ulimit -v unlimited and ulimit -d unlimited, and bound it by a control group."
        yield warning("limits.address_space", f"the process may map {size_text(mapped)} only", remedy)


def _threads() -> Iterator[Finding]:
    allowed = [_soft(resource.RLIMIT_NPROC), *_numbers("/sys/fs/cgroup/pids.max")]
    least = min(allowed)
    state = State.PROBLEM if least < THREADS_MIN else State(least < THREADS_WANTED)
    remedy = f"Allow {THREADS_WANTED} or more: ulimit -u, or TasksMax in the systemd unit (pids limit of a container)."
    yield graded("limits.threads", state, f"{_count(least)} threads and processes", remedy)


def memory(config: BrokerConfig) -> Iterator[Finding]:
    """What there is, beside what the pools of the configuration may take."""
    total, available = machine_memory(), _field("/proc/meminfo", "MemAvailable:")
    free = "" if available is None else f", {size_text(available)} of the machine available"
    low = total < MEMORY_WANTED or (available is not None and available < total * AVAILABLE_SHARE_MIN)
    remedy = f"Give it {size_text(MEMORY_WANTED)} or more that other programs do not use."
    yield graded("memory", State(low), f"{size_text(total)}, {usable_cores(_cores())} usable cores{free}", remedy)
    pools = (
        config.publish_bytes_max, config.read_cache_max, config.reads_in_flight_max, config.receive_buffers_max,
        config.topic_list_heap_max, config.topic_list_direct_max,
    )  # fmt: skip
    state = State(sum(pools) > total * POOLS_SHARE_MAX)
    found = f"the pools may take {size_text(sum(pools))} of {size_text(total)}"
    yield graded("memory.pools", state, found, "Lower publish_bytes_max, reads_in_flight_max or receive_buffers_max.")


def kernel() -> Iterator[Finding]:
    """Settings that a broker meets."""
    for backlog in _numbers("/proc/sys/net/core/somaxconn"):
        remedy = "Set sysctl net.core.somaxconn=4096."
        yield graded("kernel.somaxconn", State(backlog < BACKLOG_WANTED), f"{backlog:,} connections may wait", remedy)
    for mode in _numbers("/proc/sys/vm/overcommit_memory"):
        found = "memory is never overcommitted" if mode == 2 else f"vm.overcommit_memory = {mode}"
        yield graded("kernel.overcommit", State(mode == 2), found, "Set sysctl vm.overcommit_memory=0.")
    used = _numbers("/proc/sys/fs/file-nr")
    if len(used) == 3 and used[2]:
        state = State(used[0] > used[2] * FILES_SHARE_MAX)
        found = f"{used[0]:,} of {used[2]:,} open files of the whole machine"
        yield graded("kernel.files", state, found, "Raise sysctl fs.file-max, or find the program that leaks files.")


def clock() -> Iterator[Finding]:
    """Whether it runs forward, and is kept by a time server."""
    monotonic = [time.monotonic_ns() for _ in range(CLOCK_READS)]
    wall = [time.time_ns() for _ in range(CLOCK_READS)]
    back = any(late < early for times in (monotonic, wall) for early, late in itertools.pairwise(times))
    remedy = "Let one time server slew the clock (chrony), not step it, and look at the machine's clock source."
    found = "it went back while it was read" if back else f"it never went back in {2 * CLOCK_READS:,} reads"
    yield graded("clock.monotonic", State.PROBLEM if back else State.GOOD, found, remedy)
    source = _text("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip()
    if source:
        remedy = "Boot with clocksource=tsc where the processor allows it."
        yield graded("clock.source", State(source in SLOW_CLOCKS), source, remedy)
    synchronised = _synchronised()
    if synchronised is not None:
        found = "kept by a time server" if synchronised else "no time server keeps it"
        yield graded(
            "clock.synchronised", State(not synchronised), found, "Install and start chrony or another NTP client."
        )


def _synchronised() -> bool | None:
    """As the kernel says; None: it does not."""
    try:
        buffer = ctypes.create_string_buffer(1024)  # struct timex, whose first field 0 asks and changes nothing
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != UNSYNCHRONISED)


def _soft(which: int) -> float:
    limit = resource.getrlimit(which)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _count(number: float) -> str:
    return "any number of" if number == float("inf") else f"{number:,.0f}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _numbers(path: str) -> list[int]:
    return [int(word) for word in _text(path).split() if word.isdecimal()]


def _field(path: str, name: str) -> int | None:
    """Bytes of a line of /proc/meminfo."""
    return next((int(line.split()[1]) * 1024 for line in _text(path).splitlines() if line.startswith(name)), None)
