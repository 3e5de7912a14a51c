"""Where Spark runs: Connect, a cluster of processes, the oldest version; and brokers that want to know who comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import engine

OLDEST = Path(sys.prefix, "spark-oldest")  # made by `make test`
TLS = Path(__file__).resolve().parents[1] / "broker" / "tls"  # self-signed, for 127.0.0.1

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark_engine import engine_align

where, url, token, ca = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
spark = (builder.remote("local[2]") if where == "connect" else builder.master(where)).getOrCreate()
reader = spark.read.format("engine").option("url", url).option("topic", "numbers").option("minPartitions", 2)
frame = reader.option("token", token).option("tlsCa", ca).schema("key STRING, value STRING").load()
print("version", spark.version, "connect" if "connect" in type(spark).__module__ else "classic")
print("found", frame.selectExpr("count(*)", "count(distinct key)", "sum(cast(value as bigint))").first())
stream = spark.readStream.format("engine").option("url", url).option("subscribe", "numbers").option("token", token)
stream = stream.option("tlsCa", ca).option("startingOffsets", "earliest").schema("key BINARY, value BINARY").load()
secrets = {"url": url, "token": token, "tlsCa": ca}
writer = stream.writeStream.format("engine").options(topic="copy", checkpointLocation="checkpoint", **secrets)
query = writer.trigger(availableNow=True).start()
query.awaitTermination(200)
aligned = engine_align(frame, "numbers", **secrets)
aligned.write.format("engine").options(topic="copy", **secrets).mode("append").save()
copies = spark.read.format("engine").options(topic="copy", **secrets).schema("key STRING, value STRING")
print("written", copies.load().groupBy("key", "value").count().where("count = 2").count())
"""


@pytest.mark.parametrize(
    ("where", "path", "version"),
    [
        pytest.param("connect", None, "4.3", id="connect"),
        pytest.param("local-cluster[2,1,1024]", None, "4.3", id="cluster"),
        pytest.param("local[2]", OLDEST, "4.0.0", id="oldest"),
    ],
)
def test_a_process_of_its_own(
    where: str, path: Path | None, version: str, tmp_path: Path, spark_environment: dict[str, str]
):
    """With TLS and a token; certificates travel as text."""
    config = {"auth_token": "sesame", "tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", config=config) as broker:
        with broker.producer("numbers") as producer:
            producer.send_batch([b"%d" % n for n in range(1000)], keys=[b"k%d" % (n % 50) for n in range(1000)])
            producer.flush()
        environment = {**os.environ, **spark_environment}
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
        (tmp_path / "program.py").write_text(PROGRAM)
        call = [sys.executable, "program.py", where, broker.service_url, "sesame", (TLS / "cert.pem").read_text()]
        done = subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    kind = "connect" if where == "connect" else "classic"
    assert any(line.startswith(f"version {version}") and line.endswith(kind) for line in lines), done.stdout
    assert any(line.startswith("found") and "1000" in line and "=50" in line and "499500" in line for line in lines)
    assert "written 1000" in lines, done.stdout  # each by a stream and by a batch
