"""What a subscription has acknowledged in a segment."""

from typing import Any

class Acked:
    position: int
    above: Any
