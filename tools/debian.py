"""Unpacks Debian's packages into a folder: without root, and beside what the machine has installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path


def unpacked(package: str, folder: Path) -> str | None:
    """Put `package` and what the machine lacks of its needs into `folder`; the folders of their libraries, as
    LD_LIBRARY_PATH has them. None where Debian's tools or its packages are missing.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        lists, cache = Path(scratch, "lists"), Path(scratch, "cache")
        (lists / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        options = (f"Dir::State::Lists={lists}", f"Dir::Cache={cache}", "Debug::NoLocking=1", "APT::Sandbox::User=")
        apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        try:
            _run([*apt, "update"], scratch)
            planned = _run([*apt, "--simulate", "--no-install-recommends", "install", package], scratch)
            missing = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
            _run([*apt, "download", *(missing or [package])], scratch)
            for archive in sorted(Path(scratch).glob("*.deb")):
                _run(["dpkg-deb", "-x", str(archive), str(folder)], scratch)
        except (OSError, subprocess.SubprocessError):
            return None
    found = (folder / place for place in ("lib", "usr/lib"))
    libraries = {str(one.parent.resolve()) for place in found for one in place.glob("*-linux-gnu*/**/*.so*")}
    return ":".join(sorted(libraries))


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout
