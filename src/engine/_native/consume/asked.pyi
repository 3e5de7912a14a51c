"""What a cumulative acknowledgement asks for."""

from collections.abc import Mapping

from engine._native.consume.message import Message

def vector_of(message: Message[object]) -> dict[int, int]: ...
def by_segment(vector: Mapping[int, int]) -> dict[int, dict[int | None, int]]: ...
def merged(
    one: Mapping[int, dict[int | None, int]], other: Mapping[int, dict[int | None, int]]
) -> dict[int, dict[int | None, int]]: ...
