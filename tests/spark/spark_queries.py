"""Starting streaming queries on a machine that is busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

NOT_CONNECTED = "Python worker failed to connect back"


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query whose source runs.

    Spark gives the Python process of a source ten seconds to connect, which cannot be configured. A process that got
    no processor for so long has done nothing yet, and the query is started again.
    """
    from pyspark.errors import StreamingQueryException

    while True:
        query = start()
        try:
            query.processAllAvailable()
        except StreamingQueryException as e:
            query.stop()
            if NOT_CONNECTED not in str(e):
                raise
        else:
            return query
