"""What a service manager is told: systemd's notification protocol, of units with Type=notify.

It is one datagram of lines NAME=VALUE to the socket that NOTIFY_SOCKET names. Without that nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
import time

log = logging.getLogger(__name__)

ADDRESS = "NOTIFY_SOCKET"


def ready(status: str) -> None:
    """The server serves."""
    _send("READY=1", f"STATUS={_line(status)}")


def reloading() -> None:
    """The configuration is read again; ready() follows."""
    _send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def stopping() -> None:
    """The end has begun."""
    _send("STOPPING=1", "STATUS=closing")


def _line(text: str) -> str:
    return " ".join(text.split())


def _send(*lines: str) -> None:
    where = os.environ.get(ADDRESS)
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where  # an abstract name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto("\n".join(lines).encode(), address)
    except OSError as e:
        log.warning("the service manager at %s cannot be told %s: %s", where, lines[0], e)
