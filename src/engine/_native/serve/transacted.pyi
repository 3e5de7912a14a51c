"""The transactional entries of a block, by their headers."""

from typing import NamedTuple

from typing_extensions import Buffer

class Transacted(NamedTuple):
    first: int
    last: int
    term: int
    number: int
    attempt: int
    producer: int
    first_sequence: int
    last_sequence: int

def transacted(data: Buffer) -> list[Transacted]: ...
def size_below(data: Buffer, limit: int) -> int: ...
