"""Benchmarks, one file for each native module or room; `make bench` runs and publishes them.

With ENGINE_BENCH_TINY=1 each shrinks its sizes, and the suite runs every one of them once. What several of them need
stands in a module beside them, imported by its bare name, so that a benchmark also runs as a script.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
