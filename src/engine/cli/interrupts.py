"""`told`: a verb that may take long, ended by Ctrl-C or by an error, says where it stands."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from engine.cli import lines

AGAIN_S = 0.01


@contextmanager
def told(left: Callable[[bool], str]) -> Iterator[None]:
    """Whatever ends the work early, the sentence `left(interrupted)` is said; "" is none.

    An interrupt is click.Abort here, whatever it has become on its way: the end of what was under way may raise an
    error of its own, as may a module that was being loaded. Where it met a finalizer, which lets nothing out, and
    Python would print a traceback, it comes again a moment later.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def unraisable(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            hook(what)

    hook = sys.unraisablehook
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = unraisable
    try:
        yield
    except BaseException as e:
        interrupted = came or isinstance(e, KeyboardInterrupt | click.Abort)
        if sentence := left(interrupted):
            lines.say(sentence)
        if interrupted:
            raise click.Abort from None
        raise
    finally:
        if ours:
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, signal.default_int_handler)
