"""Sets of offsets, from the ranges of a frame's header and back."""

from array import array
from typing import Any

from typing_extensions import Buffer

def parse(ranges: list[Any], end: int) -> tuple[array[int], list[tuple[int, int]]]: ...
def runs_of(offsets: Buffer) -> list[list[int]]: ...
