from collections.abc import Sequence

from typing_extensions import Buffer

FAULT_SHORT: int
FAULTS_DELIBERATE: tuple[int, ...]

class Claim:
    position: int
    size: int
    count: int
    kind: int
    bucket_min: int
    bucket_max: int
    segment_hash_min: int
    segment_hash_max: int
    producer_id: int
    first_sequence: int
    last_sequence: int
    floor: int
    def __init__(
        self,
        position: int,
        size: int,
        count: int,
        kind: int,
        bucket_min: int,
        bucket_max: int,
        segment_hash_min: int,
        segment_hash_max: int,
        producer_id: int,
        first_sequence: int,
        last_sequence: int,
        floor: int = 0,
    ) -> None: ...

def entries(
    data: Buffer,
    check_body: bool = True,
    transaction: tuple[int, int] | None = None,
    producer: int | None = None,
    several: bool = False,
) -> list[Claim]: ...
def stamp(
    data: Buffer,
    salt: int,
    term: int,
    first_offset: int,
    publish_time_ms: int,
    durable_upto: int,
    segment_id: int,
    start: int = 0,
) -> int: ...
def cut(
    data: Buffer,
    salt: int,
    segment_id: int,
    offset: int,
    bytes_max: int,
    check_body: bool = True,
    upto: int | None = None,
) -> tuple[int, int, int, int, int, int]: ...
def find_durable(data: Buffer, salt: int, segment_id: int, above: int) -> int: ...
def offset_at_time(data: Buffer, time_ms: int) -> int: ...
def raise_fault(fault: int, segment_id: int, offset: int) -> None: ...

class Scan:
    segment_id: int
    position: int
    next_offset: int
    fault: int
    durable_upto: int
    time_ms: int
    term: int
    entries: int
    def __init__(
        self,
        salt: int,
        segment_id: int,
        first_offset: int,
        position: int,
        bucket_ends: Sequence[int],
        end_offset: int | None = None,
        step: int = ...,
    ) -> None: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, data: Buffer) -> int: ...
    def marks_list(self) -> list[tuple[int, int, int]]: ...
    def lanes_list(self) -> list[tuple[int, int, int, list[tuple[int, int, int, int]], int]]: ...
