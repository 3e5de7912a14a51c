"""From a directory into a cluster on etcd and object storage, of which a broker is lost with its disk, and back."""

from __future__ import annotations

import shutil
from pathlib import Path

import engine
from engine.cli.demo_servers import HERE, running_cluster
from tests.kit.etcd import binaries
from tests.kit.s3_server import binary

COUNT = 1_500


def test_a_topic_moves_into_a_cluster_and_back_although_a_broker_is_lost_with_its_disk(tmp_path: Path):
    binaries()  # without these two the test is over
    binary()
    with (
        running_cluster(tmp_path, 2 * (HERE,)) as cluster,
        engine.Client(cluster.url) as there,
        engine.open(tmp_path / "source") as here,
    ):
        here.admin.create_topic("orders", segments=2)
        with here.producer("orders") as producer:
            for number in range(COUNT):
                producer.send_nowait(b"%d" % number, key=f"k{number % 40}")
                if number == COUNT // 2:
                    producer.flush()
                    here.admin.split_segment("orders", 0)
        with here.stream_consumer("orders", "billing", initial_position="earliest") as consumer:
            consumer.acknowledge_cumulative(consumer.receive_batch(max_messages=300, timeout=60))
        backlog = here.admin.get_stats("orders")["subscriptions"]["billing"]["backlog"]
        into = engine.migrate(here, there, "orders", verify=True, subscriptions=True)
        assert into.sent == COUNT
        assert there.admin.get_metadata("orders")["durability"] == "object"
        assert there.admin.get_stats("orders")["subscriptions"]["billing"]["backlog"] == backlog
        cluster.brokers[0].kill()
        shutil.rmtree(cluster.brokers[0].folder)
        back = engine.migrate(there, here, "orders", to="returned", verify=True, subscriptions=True)
        assert back.verified is not None
        assert back.verified.messages == COUNT
        assert here.admin.get_metadata("returned")["durability"] == "fsync"
        assert here.admin.get_stats("returned")["subscriptions"]["billing"]["backlog"] == backlog
