"""A small ext4 file system on a loop device that can lose its power: for tests that run as root."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
NO_LOG_FLUSH = 2  # what the journal has not written yet is lost as well
MNT_DETACH = 2


def missing() -> str | None:
    """Why there can be no such file system here, or None."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    lost = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    return f"not installed: {', '.join(lost)}" if lost else None


class Ext4Image:
    """`size_mib` of ext4 at `mount_point`. Raises RuntimeError with the tool's words when it cannot be mounted."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        self.image = folder / "disk.img"
        self.mount_point = folder / "mnt"
        self.mount_point.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(size_mib << 20)
        run("mkfs.ext4", "-q", str(self.image))
        self.mount()

    def mount(self) -> None:
        """Mount it, replaying its journal."""
        run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def unmount(self) -> None:
        """Let go of it; what still has files open there is not waited for."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(self.mount_point), MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), f"umount {self.mount_point}")

    def cut_power(self) -> None:
        """From this instant on nothing reaches the disk; every call on the file system fails."""
        directory = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(directory)


def run(*command: str) -> None:
    """Run a tool to its end."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
