"""`engine serve` under the shim, which is armed by lines on the standard input: "n action error kinds part".

usage: LD_PRELOAD=shim.so python -m tests.crash.serve_under_shim shim.so, and what `engine serve` takes
"""

from __future__ import annotations

import ctypes
import sys
import threading

from engine.cli.main import main


def obey(shim: ctypes.CDLL) -> None:
    """Arm the shim as each line says, and say so."""
    for line in sys.stdin:
        *numbers, part = line.split(" ")
        shim.shim_in(part.strip().encode())
        shim.shim_arm(*map(int, numbers))
        print("armed", flush=True)


if __name__ == "__main__":
    threading.Thread(target=obey, args=(ctypes.CDLL(sys.argv.pop(1)),), daemon=True).start()
    sys.exit(main())
