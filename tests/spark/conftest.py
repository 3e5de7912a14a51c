"""One Spark session and one broker for all tests of the package; topics have names of their own."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA = Path(sys.prefix, "java")  # made by `make test`
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a virtual machine that lives for a minute gains nothing by more


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark warns of versions of pandas that it does not use here, and leaves sockets to the collector."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """What a process needs to run Spark on this interpreter."""
    java = {"JAVA_HOME": str(JAVA)} if JAVA.exists() else {}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**java, **python, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": BRIEF}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]) -> Iterator[SparkSession]:
    """Spark on two cores; tasks have a second attempt."""
    os.environ.update(spark_environment)
    from pyspark.sql import SparkSession

    built = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield built
    built.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    """A broker in this process that Spark's workers reach over TCP."""
    config = {"scalable_topic_auto_scale_enabled": False}
    data = tmp_path_factory.mktemp("data")
    with engine.open(data, listen="127.0.0.1:0", admin="127.0.0.1:0", config=config) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """A name that nobody has used."""
    return f"t{uuid.uuid4().hex[:12]}"


class Reads:
    """`reads(topic, …)` is the DataFrame of a batch query; `reads.stream(topic, …)` of a streaming one."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.url = url

    def __call__(self, topic: str | None = None, schema: str | None = None, **options: object) -> DataFrame:
        return self._of(self.spark.read, topic, schema, options)

    def stream(self, topic: str | None = None, schema: str | None = None, **options: object) -> DataFrame:
        """The same, streaming."""
        return self._of(self.spark.readStream, topic, schema, options)

    def _of(self, reader: object, topic: str | None, schema: str | None, options: dict[str, object]) -> DataFrame:
        reader = reader.format("engine").option("url", self.url)  # type: ignore[attr-defined]
        for name, value in {**({} if topic is None else {"topic": topic}), **options}.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture
def reads(spark: SparkSession, broker: engine.Engine) -> Reads:
    """Reads from the broker."""
    return Reads(spark, broker.service_url)


class Writes:
    """`writes(frame, topic, …)` appends a frame to a topic; `writes.stream(frame, topic, …)` is a streaming writer."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, frame: DataFrame, topic: str | None = None, **options: object) -> None:
        self._of(frame.write, topic, options).mode("append").save()

    def stream(self, frame: DataFrame, topic: str | None = None, **options: object) -> Any:
        """To be started."""
        return self._of(frame.writeStream, topic, options)

    def _of(self, writer: Any, topic: str | None, options: dict[str, object]) -> Any:
        writer = writer.format("engine").option("url", self.url)
        for name, value in {**({} if topic is None else {"topic": topic}), **options}.items():
            writer = writer.option(name, value)
        return writer


@pytest.fixture
def writes(broker: engine.Engine) -> Writes:
    """Writes to the broker."""
    return Writes(broker.service_url)
