"""A broker and a client in one process: `open` for code that blocks, `open_async` for code that awaits.

A data directory is shared by all that open it: other threads and loops of the process, and other processes of the
machine, which are clients of the one that has the directory's lock (`shared.py`).
"""

from __future__ import annotations

from engine.embedded.alone import MEMORY, open_engine
from engine.embedded.engine import AsyncEngine
from engine.embedded.handles import Engine, Opening, open, open_async
from engine.embedded.terms import Config

__all__ = ["MEMORY", "AsyncEngine", "Config", "Engine", "Opening", "open", "open_async", "open_engine"]
