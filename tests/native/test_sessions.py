"""Frames of a connection, handed to the sessions that they are for, beside a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.wire.sessions import SessionEnd, Sessions
from engine.errors import InvalidArgumentError, ProtocolError


class Name:
    name = "RECEIPT"


@dataclass
class One:
    ident: int
    command: Any = Name
    request_id: int | None = None


@dataclass
class Several:
    ident: int
    more: list[One] | None = None
    command: Any = Name


@dataclass
class Other:
    command: Any = Name


class End(Sessions):
    def __init__(self) -> None:
        super().__init__({One: ("ident", None), Several: ("ident", "more")})
        self.seen: list[tuple[int | None, Any]] = []
        self.failed: list[str] = []

    def other_received(self, header: Any, payload: memoryview) -> None:
        self.seen.append((None, header))

    def fail(self, error: Any) -> None:
        self.fault = error
        self.failed.append(str(error))


@dataclass
class Listener:
    end: End
    ident: int
    error: Exception | None = None
    payloads: list[bytes] = field(default_factory=list)

    def frame_received(self, header: Any, payload: memoryview) -> None:
        self.end.seen.append((self.ident, header))
        self.payloads.append(bytes(payload))
        if self.error is not None:
            raise self.error


IDENTS = st.integers(0, 4)
HEADERS = st.one_of(
    st.builds(One, IDENTS), st.builds(Other), st.builds(Several, IDENTS, st.none() | st.lists(st.builds(One, IDENTS)))
)


@given(st.sets(IDENTS), st.lists(HEADERS))
def test_each_session_gets_what_names_it_in_order(idents: set[int], headers: list[Any]):
    end = End()
    for ident in idents:
        end.attached[ident] = Listener(end, ident)
    expected: list[tuple[int | None, Any]] = []
    for header in headers:
        end.heard = False
        end.frame_received(header, memoryview(b"payload"))
        assert end.heard
        if isinstance(header, Other):
            expected.append((None, header))
        else:
            for part in [header, *(getattr(header, "more", None) or ())]:
                expected += [(part.ident, part)] if part.ident in idents else []
    assert end.seen == expected


def test_the_payload_is_that_of_the_first_alone():
    end = End()
    first, second = end.attached[1], end.attached[2] = Listener(end, 1), Listener(end, 2)
    end.frame_received(Several(1, [One(2)]), memoryview(b"payload"))
    assert (first.payloads, second.payloads) == ([b"payload"], [b""])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProtocolError("no"), "no"),
        (InvalidArgumentError("a name must be text"), "RECEIPT is malformed: a name must be text"),
    ],
)
def test_what_is_malformed_is_the_last_frame(error: Exception, said: str):
    end = End()
    end.attached[1] = Listener(end, 1, error)
    end.frame_received(One(1), memoryview(b""))
    assert end.failed == [said]
    end.frame_received(One(1), memoryview(b""))
    end.frame_received(Other(), memoryview(b""))
    assert len(end.seen) == 1


def test_the_frame_that_ends_a_session_does_not_reach_it_unless_it_answers_a_request():
    ended: list[Any] = []

    class Ending(SessionEnd):
        def end_received(self, header: Any) -> None:
            ended.append(header)

    end = End()
    listener = Listener(end, 1)
    ending = Ending(listener, One)
    ending.frame_received(Several(1), memoryview(b"x"))
    ending.frame_received(answer := One(1, request_id=7), memoryview(b""))
    assert [header for _, header in end.seen] == [Several(1), answer]
    ending.frame_received(last := One(1), memoryview(b""))
    assert (len(end.seen), ended) == (2, [last])
