"""What a long verb says when it is interrupted, whatever the interrupt meets."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import click
import pytest

from engine.cli.interrupts import told
from engine.errors import InvalidArgumentError

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Interrupts are Python's own, though a library that an earlier test has loaded may have put a handler there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def left(interrupted: bool) -> str:
    return "interrupted" if interrupted else "failed"


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def waits() -> None:
    interrupt()
    threading.Event().wait(PATIENCE_S)


def makes_another_error() -> None:
    try:
        waits()
    except KeyboardInterrupt:
        raise InvalidArgumentError("what the end of something made of it") from None


class Finalized:
    """As it goes, it is interrupted."""

    def __del__(self) -> None:
        waits()


def drops_it() -> None:
    Finalized()
    threading.Event().wait(PATIENCE_S)


def test_an_interrupt(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(click.Abort), told(left):
        waits()
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("work", [makes_another_error, drops_it])
def test_one_that_has_become_something_else(capsys: pytest.CaptureFixture[str], work: Callable[[], None]):
    with pytest.raises(click.Abort), told(left):
        work()
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_stays_what_it_is(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(InvalidArgumentError), told(left):
        raise InvalidArgumentError("no row")
    assert capsys.readouterr().err == "failed\n"
    with pytest.raises(InvalidArgumentError), told(lambda interrupted: ""):
        raise InvalidArgumentError("no row")
    assert not capsys.readouterr().err
