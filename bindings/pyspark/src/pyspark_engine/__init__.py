"""Engine for Apache Spark: `spark.read.format("engine")`, `spark.readStream`, `df.write` and `df.writeStream` likewise,
and `engine_align`.

Spark finds this package by its name and registers `DefaultSource` by itself.
"""

from __future__ import annotations

from pyspark_engine.align import engine_align
from pyspark_engine.errors import DataLossError
from pyspark_engine.source import DefaultSource

__all__ = ["DataLossError", "DefaultSource", "engine_align"]
