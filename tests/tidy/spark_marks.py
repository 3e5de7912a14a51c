"""Marks of tests outside of tests/spark that run Spark."""

from __future__ import annotations

import pytest

SPARK_MARKS = (
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)
