"""The columns of the broker's log lines: topic, subscription, message."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.basic_types import LoggerProto
from faststream._internal.context import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

_COLUMNS = ("topic", "subscription")
_ID_WIDTH = 10


class EngineLoggerStorage(DefaultLoggerStorage):
    """Makes the logger when it is first used, when all subscribers are known, with columns as wide as they need."""

    __slots__ = ("_widths",)

    def __init__(self) -> None:
        super().__init__()
        self._widths = dict.fromkeys(_COLUMNS, 4)
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """Of the logger that is made later."""
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns to what this subscriber logs."""
        for column in _COLUMNS:
            self._widths[column] = max(self._widths[column], len(params.get(column) or ""))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The broker's logger."""
        if (found := self._get_logger_ref()) is not None:
            return found
        columns = " | ".join(f"%({column})-{width}s" for column, width in self._widths.items())
        made = get_broker_logger(
            name="engine",
            default_context=dict.fromkeys(_COLUMNS, ""),
            message_id_ln=_ID_WIDTH,
            fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-{_ID_WIDTH}s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(made)
        return made


make_engine_logger_state = partial(make_logger_state, default_storage_cls=EngineLoggerStorage)
