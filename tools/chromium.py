"""Makes a Chromium for the tests of the console: `python chromium.py FOLDER` puts bin/chromium there, or says why not.

It takes the machine's own where there is one. Else Debian's package is unpacked into FOLDER, with the libraries that
the machine lacks; that needs no root, and lists of packages of its own where the machine has none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from debian import unpacked

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


def script_of_package(folder: Path) -> str:
    """A script that starts Debian's package, which is downloaded and unpacked into `folder`; "" without Debian."""
    if (libraries := unpacked(PACKAGE, folder)) is None:
        return ""
    binary = (folder / "usr" / "lib" / "chromium" / PACKAGE).resolve()
    return _UNPACKED.format(binary=binary, libraries=libraries)


def main(folder: Path) -> str | None:
    """What is missing, None for nothing."""
    script = folder / "bin" / "chromium"
    found = (Path(path).absolute() for name in NAMES if (path := shutil.which(name)))
    own = next((one for one in found if one != script.absolute() and runs(one)), None)
    text = _PLAIN.format(binary=own) if own is not None else script_of_package(folder.absolute() / "package")
    if text:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return None if text and runs(script) else "The console's tests need a Chromium: install the package chromium."


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
