"""Why a message was handed back, in the form in which a dead letter carries it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from engine.errors import InvalidArgumentError

REASON_SIZE_MAX = 1_000  # characters
PLACE_SIZE_MAX = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """`reason`: one line, of an exception the last line of its traceback. `place`: where it was raised, if known."""

    reason: str
    place: str | None = None

    @classmethod
    def of(cls, reason: str | BaseException) -> Failure:
        """Raises InvalidArgumentError unless it is a str or an exception."""
        if isinstance(reason, BaseException):
            return cls(_cut(last_line(reason), REASON_SIZE_MAX), _place(reason.__traceback__))
        if not isinstance(reason, str):
            raise InvalidArgumentError(f"reason must be a str or an exception, got {type(reason).__name__}")
        return cls(_cut(reason, REASON_SIZE_MAX))

    def properties(self) -> dict[str, str]:
        """As properties of a dead letter."""
        place = {} if self.place is None else {"dead-letter-raised-at": self.place}
        return {"dead-letter-reason": self.reason, **place}

    def __str__(self) -> str:
        return self.reason if self.place is None else f"{self.reason} ({self.place})"


def last_line(error: BaseException) -> str:
    """The last line of the traceback: the type and what the exception says."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception as e:  # of a program's own class: it must not hide that the handler has failed
        text = f"<str() raised {type(e).__qualname__}>"
    return f"{name}: {text}" if text else name


def _place(traceback: TracebackType | None) -> str | None:
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return _cut(f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}", PLACE_SIZE_MAX)


def _cut(text: str, size_max: int) -> str:
    """One line of at most so many characters that UTF-8 can encode."""
    line = " ".join(text.encode(errors="replace").decode().split())
    return line if len(line) <= size_max else f"{line[: size_max - 1]}…"
