"""Engine for Apache Spark: `spark.read.format("engine")`, `spark.readStream.format("engine")`.

Spark finds this package by its name and registers `DefaultSource` without being told.
"""

from __future__ import annotations

from pyspark_engine.errors import DataLossError
from pyspark_engine.source import DefaultSource

__all__ = ["DataLossError", "DefaultSource"]
