"""What a server has loaded is not looked at for garbage again."""

from __future__ import annotations

import gc
import subprocess
import sys

SCRIPT = """
import gc, weakref
import engine.broker.server
from engine.cli.process import collect_rarely, keep_loaded

class Thing: pass

collect_rarely()
print(gc.get_freeze_count() > 10_000, gc.isenabled())
thing = Thing()
thing.itself = thing
gone = weakref.ref(thing)
del thing
gc.collect()
print(gone() is None)
before = gc.get_freeze_count()
records = [[n] for n in range(50_000)]
keep_loaded()
print(gc.get_freeze_count() - before >= 50_000)
"""


def test_what_is_loaded_is_set_aside_and_what_comes_is_still_collected():
    before = gc.get_threshold(), gc.get_freeze_count()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True"] * 4
    assert (gc.get_threshold(), gc.get_freeze_count()) == before  # of this process, which is somebody else's
