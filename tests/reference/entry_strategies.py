"""Hypothesis strategies for the messages of one entry."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.reference.entry_reference import PlainMessage

TIMES = st.none() | st.integers(-(2**62), 2**62)
TEXT = st.text("aZ é日𝄞\x00", max_size=20)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)


@st.composite
def messages(draw: st.DrawFn, max_size: int = 20) -> list[PlainMessage]:
    """Messages that can share an entry: all keyed or none, sequence ids rising."""
    count = draw(st.integers(1, max_size))
    keyed, rich = draw(st.booleans()), draw(st.booleans())
    sequence, found = draw(st.integers(0, 2**63)), []
    for _ in range(count):
        found.append(
            PlainMessage(
                value=draw(st.binary(max_size=64)),
                key=draw(st.binary(max_size=16)) if keyed else None,
                properties=draw(PROPERTIES) if rich else {},
                event_time_ms=draw(TIMES) if rich else None,
                sequence_id=sequence,
                deliver_at_ms=draw(TIMES) if rich else None,
            )
        )
        sequence += draw(st.integers(1, 5)) if rich else 1
    return found
