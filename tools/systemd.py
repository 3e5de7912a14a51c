"""Makes a systemd-analyze for the tests of the unit: `python systemd.py FOLDER` puts bin/systemd-analyze there.

It takes the machine's own where there is one. Else Debian's package is unpacked into FOLDER; no systemd has to run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from debian import unpacked

PROGRAM = "systemd-analyze"
_PLAIN = '#!/bin/sh\nexec "{program}" "$@"\n'
# The units that ours names (network-online.target, …) are those of the package.
_UNPACKED = """#!/bin/sh
LD_LIBRARY_PATH="{libraries}" SYSTEMD_UNIT_PATH="{units}:" exec "{program}" "$@"
"""


def runs(program: Path) -> bool:
    """Whether it starts."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def script(folder: Path) -> str:
    """What bin/systemd-analyze says; "" where there is none to be had."""
    if own := shutil.which(PROGRAM):
        return _PLAIN.format(program=own)
    package = folder / "package"
    if (libraries := unpacked("systemd", package)) is None:
        return ""
    (program,) = package.glob(f"**/bin/{PROGRAM}")
    (units,) = (path.parent for path in package.glob("**/system/network-online.target"))
    return _UNPACKED.format(program=program, units=units, libraries=libraries)


def main(folder: Path) -> str | None:
    """What is missing, None for nothing."""
    program, text = folder / "bin" / PROGRAM, script(folder)
    if text:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return (
        None if text and runs(program) else "The tests of the unit need systemd-analyze: install the package systemd."
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
