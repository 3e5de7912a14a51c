"""What this package raises besides the errors of `engine` and ValueError for options."""

from __future__ import annotations


class DataLossError(RuntimeError):
    """Messages that were to be read are gone: retention deleted them, or the topic is another one of the same name."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. With the option failOnDataLoss=false the query goes on with what is left")
