from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

class RangeTable:
    values: list[Any]
    def __init__(self, starts: Sequence[int], values: Sequence[Any]) -> None: ...
    def __len__(self) -> int: ...
    def lookup(self, hash: int) -> Any: ...  # noqa: A002
    def lookup_many(self, hashes: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]: ...

class Routes:
    builders: int
    def __init__(
        self, starts: Sequence[int], segment_ids: Sequence[int], bucket_ends: Sequence[Sequence[int]], seed: int = 0
    ) -> None: ...
    def find(self, hash: int) -> tuple[int, int]: ...  # noqa: A002
    def turn_keyless(self) -> tuple[int, int, int]: ...
