"""What a user's program does: the set that `make bench-history` runs over the releases, alone in its folder.

asv loads all modules of a folder, and the others need what older releases do not have.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
