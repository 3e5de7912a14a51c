"""Makes a Chromium for the tests of the console: `python chromium.py FOLDER` puts bin/chromium there, or says why not.

It takes the machine's own where there is one. Else Debian's package is unpacked into FOLDER, with the libraries that
the machine lacks; that needs no root, and lists of packages of its own where the machine has none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-headless-shell", "google-chrome")
PACKAGE = "chromium-headless-shell"
_PLAIN = '#!/bin/sh\nexec "{binary}" "$@"\n'
_UNPACKED = """#!/bin/sh
LD_LIBRARY_PATH="{libraries}" exec "{binary}" "$@"
"""


def runs(binary: Path) -> bool:
    """Whether it starts."""
    try:
        return subprocess.run([binary, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def unpacked(folder: Path) -> str:
    """A script that starts Debian's package, which is downloaded and unpacked into `folder`; "" without Debian."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return ""
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
            planned = _run([*apt, "--simulate", "--no-install-recommends", "install", PACKAGE], scratch)
            missing = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
            _run([*apt, "download", *missing], scratch)
            for package in sorted(Path(scratch).glob("*.deb")):
                _run(["dpkg-deb", "-x", str(package), str(folder)], scratch)
        except (OSError, subprocess.SubprocessError):
            return ""
    libraries = sorted({str(one.parent.resolve()) for one in (folder / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")})
    binary = (folder / "usr" / "lib" / "chromium" / PACKAGE).resolve()
    return _UNPACKED.format(binary=binary, libraries=":".join(libraries))


def main(folder: Path) -> str | None:
    """What is missing, None for nothing."""
    script = folder / "bin" / "chromium"
    found = (Path(path).absolute() for name in NAMES if (path := shutil.which(name)))
    own = next((one for one in found if one != script.absolute() and runs(one)), None)
    text = _PLAIN.format(binary=own) if own is not None else unpacked(folder.absolute() / "package")
    if text:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return None if text and runs(script) else "The console's tests need a Chromium: install the package chromium."


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
