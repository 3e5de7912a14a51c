"""Makes a Python for aarch64 that runs on this machine: `python aarch64.py FOLDER` says by which command, or why not.

Debian's packages of that architecture, and its emulator (QEMU for programs), are unpacked into FOLDER. That needs no
root, and leaves the machine's own packages and lists of packages alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGURATION = """
Dir::State "{scratch}";
Dir::State::status "{scratch}/status";
Dir::Cache "{scratch}";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "";
Debug::NoLocking "1";
"""
EMULATOR = "qemu-aarch64-static"


def made(folder: Path) -> list[str] | None:
    """The command of that Python, unpacked into `folder` where it is not there yet; None where Debian is missing."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    emulator, root = folder / "emulator", folder / "root"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        host = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
        unpack("qemu-user-static", host.strip(), emulator, alone=True)
        unpack("python3", "arm64", root)
        (folder / "made").touch()
    (python,) = (path for path in root.glob("usr/bin/python3.*") if path.name.count(".") == 1 and "-" not in path.name)
    return [str(emulator / "usr" / "bin" / EMULATOR), "-L", str(root), str(python)]


def unpack(package: str, architecture: str, folder: Path, *, alone: bool = False) -> None:
    """A package of an architecture and, unless `alone`, all that it depends on. Raises CalledProcessError."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for needed in ("lists/partial", "archives/partial", "debs"):
            (scratch / needed).mkdir(parents=True)
        (scratch / "status").touch()
        (scratch / "apt.conf").write_text(CONFIGURATION.format(scratch=scratch, architecture=architecture))
        apt = ("env", f"APT_CONFIG={scratch / 'apt.conf'}", "apt-get", "-qq")
        _run(*apt, "update", at=scratch)
        planned = _run(*apt, "--simulate", "--no-install-recommends", "install", package, at=scratch)
        names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
        _run(*apt, "download", *([package] if alone else names), at=scratch / "debs")
        for archive in sorted((scratch / "debs").glob("*.deb")):
            _run("dpkg-deb", "-x", str(archive), str(folder), at=scratch)


def _run(*command: str, at: Path) -> str:
    return subprocess.run(command, cwd=at, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    found = made(Path(sys.argv[1]).absolute())
    print("Debian's apt-get and dpkg-deb are needed" if found is None else " ".join(found))
    sys.exit(found is None)
