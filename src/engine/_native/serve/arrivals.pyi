from typing import Any

from engine._native.serve.meters import TurnFrames

FRAMES_PER_NOTE: int

class Signs:
    frames: int
    listener: Any

class Arrivals:
    pressure: Any
    pulse: Any
    handlers: dict[Any, Any]
    ready: bool
    stream: Any
    closed: bool
    def __init__(
        self, pressure: Any, pulse: Signs, handlers: dict[Any, Any], intake: TurnFrames, outbound: Any
    ) -> None: ...
    def frame_received(self, header: Any, payload: memoryview) -> None: ...
    def send(self, header: Any, payload: Any = b"") -> None: ...
    @property
    def writable(self) -> bool: ...
    @property
    def block_size(self) -> int: ...
    def shake_hands(self, header: Any) -> None: ...
    def unexpected(self, header: Any) -> None: ...
    def error(self, request_id: int, error: Any) -> None: ...
    def failed(self, header: Any, error: Exception) -> None: ...
