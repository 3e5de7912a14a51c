"""`engine` with a bug in it, for tests that have to find it: `python -m tests.chaos.planted_program BUG serve …`."""

from __future__ import annotations

import sys

from engine.cli.main import main
from tests.kit import backup_bugs, object_bugs

if __name__ == "__main__":
    bug = sys.argv.pop(1)
    getattr(backup_bugs if hasattr(backup_bugs, bug) else object_bugs, bug)(setattr)
    sys.exit(main())
