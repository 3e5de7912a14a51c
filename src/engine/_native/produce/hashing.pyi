from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

XXH64: int
MURMUR3: int
MURMUR3_LOW: int
KEY_HASHES: dict[str, int]

def xxh64(data: Buffer, seed: int = 42) -> int: ...
def murmur3_32(data: Buffer, seed: int = 0) -> int: ...
def key32(key: Buffer | str, algorithm: int = 0) -> int: ...
def hash_keys(keys: Any, algorithm: int = 0) -> npt.NDArray[np.uint32]: ...
