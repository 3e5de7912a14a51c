"""`engine` with a bug in it, for tests that have to find it: `python -m tests.chaos.planted_program BUG serve …`."""

from __future__ import annotations

import sys

from engine.cli.main import main
from tests.kit import object_bugs

if __name__ == "__main__":
    getattr(object_bugs, sys.argv.pop(1))(setattr)
    sys.exit(main())
