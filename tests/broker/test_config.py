"""The broker's configuration: sources, names, refusals."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from engine.broker.settings.config import CLUSTER_SESSION_S, BrokerConfig
from engine.errors import InvalidConfigurationError
from engine.model.autoscale import AutoScalePolicy


def test_later_sources_win(tmp_path):
    path = tmp_path / "engine.toml"
    path.write_text("segments = 4\ndurability = 'os'\n[broker]\nentryBuckets = 16\nretention_time = 10.5\n")
    environment = {"ENGINE_DURABILITY": "interval", "ENGINE_AUTO_CREATE_TOPICS": "false", "ENGINE_HOME": "/x"}
    config = BrokerConfig.load(path, environment=environment, retention_time=None)
    assert (config.segments, config.durability, config.entry_buckets) == (4, "interval", 16)
    assert config.auto_create_topics is False
    assert config.retention_time is None


def test_names_of_the_specification(tmp_path):
    path = tmp_path / "engine.toml"
    path.write_text(
        "scalableTopicEnabled = false\nallowAutoTopicCreation = false\nautoCreateTopics = true\n"
        "scalableTopicSealedSegmentDrainEnabled = false\n"
        "defaultRetentionTimeInMinutes = 2\nkeepAliveIntervalSeconds = 7\n"
    )
    config = BrokerConfig.load(path)
    assert (config.scalable_topic_enabled, config.auto_create_topics) == (False, True)
    assert (config.retention_time, config.keep_alive) == (120.0, 7)
    assert not config.scalable_topic_sealed_segment_drain_enabled


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"segmentz": 1}, "^segmentz is no argument; did you mean segments?"),
        ({"keepAliv": 1}, "^keepAliv is no argument; did you mean keep_alive?"),
        ({"bogus": 1}, "^bogus is no argument; the known ones are admin_hosts, .*, unix_users$"),
        ({"segmentz": 1, "keepAliv": 1}, "segmentz is no argument; .*; keepAliv is no argument; "),
        ({"segments": 0, "keep_alive": -1}, "^segments must be .*, got 0; keep_alive must be .*, got -1$"),
        ({"segments": 0}, "segments must be an integer from 1 .*, got 0"),
        ({"segments": True}, "segments"),
        ({"durability": "maybe"}, "durability must be fsync or interval or os, got 'maybe'"),
        ({"durability": "object"}, "durability must be fsync or interval or os without `objects`, got 'object'"),
        ({"objects": "s3://b", "durability": "fsync"}, "durability must be object where `objects` is set, .*'fsync'"),
        ({"objects": "http://b"}, "objects must be a URL s3://…, gs://… or az://…"),
        ({"objects": "s3://b", "cluster_name": "A B"}, "cluster_name must be 1 to 64 of a-z, 0-9 and -"),
        ({"object_flush_interval": 0.001}, "object_flush_interval"),
        ({"object_flush_interval": "2s"}, "object_flush_interval must be at most 1 s"),
        ({"keep_alive": -1}, "keep_alive"),
        ({"retention_time": float("nan")}, "retention_time"),
        ({"service_url": "http://x"}, "service_url"),
        ({"publish_bytes_max": 1}, "publish_bytes_max"),
        ({"balance_enabled": "maybe"}, "balance_enabled"),
        ({"balance_interval": 0}, "balance_interval"),
        ({"balance_guard": -0.1}, "balance_guard must be a fraction"),
        ({"balance_cooldown": -1}, "balance_cooldown"),
        ({"balance_moves_max": 0}, "balance_moves_max must be an integer from 1"),
        ({"drain_timeout": -1}, "drain_timeout"),
    ],
)
def test_what_is_wrong_is_named(values, text):
    with pytest.raises(InvalidConfigurationError, match=text):
        BrokerConfig.load(**values)


def test_durability_follows_from_where_messages_are_kept():
    assert BrokerConfig.load().durability == "fsync"
    assert BrokerConfig.load(objects="s3://bucket/prefix").durability == "object"


def test_how_brokers_are_balanced_may_have_units():
    config = BrokerConfig(balance_guard="25%", balance_cooldown="5m", balance_interval="10s", drain_timeout="1m")
    found = (config.balance_guard, config.balance_cooldown, config.balance_interval, config.drain_timeout)
    assert found == (0.25, 300.0, 10.0, 60.0)


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(BrokerConfig)])
def test_every_key_has_a_type(key):
    with pytest.raises(InvalidConfigurationError, match=rf"^(\w+ .*)?\b{key}\b"):
        BrokerConfig(**{key: object()})


@pytest.mark.parametrize("key", [f.name for f in dataclasses.fields(BrokerConfig) if f.type == "bool"])
def test_a_mistyped_switch_is_an_error(key):
    with pytest.raises(InvalidConfigurationError, match=rf"{key}.* 'ture'"):
        BrokerConfig.load(environment={f"ENGINE_{key.upper()}": "ture"})


def test_wrong_files_and_variables(tmp_path):
    with pytest.raises(InvalidConfigurationError, match=r"none\.toml cannot be read"):
        BrokerConfig.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("x = ")
    with pytest.raises(InvalidConfigurationError, match="is not TOML"):
        BrokerConfig.load(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("broker = 3")
    with pytest.raises(InvalidConfigurationError, match="section"):
        BrokerConfig.load(tmp_path / "odd.toml")
    with pytest.raises(InvalidConfigurationError, match=r"segments must be an integer .*, got 'four'"):
        BrokerConfig.load(environment={"ENGINE_SEGMENTS": "four"})


@pytest.mark.parametrize("name", ["ENGINE_SEGMENT", "ENGINE_SEGMNETS", "ENGINE_RETENTION_TIMES"])
def test_a_variable_that_is_nearly_a_key_is_an_error(name):
    near = "ENGINE_RETENTION_TIME" if "TIME" in name else "ENGINE_SEGMENTS"
    with pytest.raises(InvalidConfigurationError, match=rf"{name} in the environment is no setting; .*{near}\b.* is$"):
        BrokerConfig.load(environment={name: "4"})


def test_other_variables_of_the_prefix_are_told_and_ignored(caplog):
    names = ["ENGINE_URL", "ENGINE_TOKEN", "ENGINE_TLS_CA", "ENGINE_EXT", "ENGINE_DEBUG", "ENGINE_BENCH_TINY"]
    foreign = ["ENGINE_SERVICE_HOST", "ENGINE_PORT", "ENGINE_PORT_6650_TCP"]  # of orchestrators, for a service "engine"
    config = BrokerConfig.load(environment=dict.fromkeys([*names, *foreign, "ENGINEERS", "SEGMENTS"], "1"))
    assert config == BrokerConfig()
    assert [r.getMessage().split()[0] for r in caplog.records] == foreign


# The specification's table (PIP-483): property, default as it is written there, and what that is here.
SPECIFICATION = [
    ("scalableTopicAutoScaleEnabled", True, True),
    ("scalableTopicAutoScaleInterval", "60s", 60.0),
    ("scalableTopicMaxSegments", 64, 64),
    ("scalableTopicMinSegments", 1, 1),
    ("scalableTopicMaxDagDepth", 10, 10),
    ("scalableTopicSplitCooldown", "1m", 60.0),
    ("scalableTopicMergeCooldown", "5m", 300.0),
    ("scalableTopicMergeWindow", "5m", 300.0),
    ("scalableTopicSplitMsgRateInThreshold", 10000, 10000),
    ("scalableTopicSplitBytesRateInThreshold", "50MB", 52428800),
    ("scalableTopicSplitMsgRateOutThreshold", 50000, 50000),
    ("scalableTopicSplitBytesRateOutThreshold", "250MB", 262144000),
    ("scalableTopicMergeMsgRateInThreshold", 1000, 1000),
    ("scalableTopicMergeBytesRateInThreshold", "5MB", 5242880),
    ("scalableTopicMergeMsgRateOutThreshold", 5000, 5000),
    ("scalableTopicMergeBytesRateOutThreshold", "25MB", 26214400),
    ("scalableTopicLoadReportInterval", "10s", 10.0),
    ("scalableTopicLoadReportRateChangeThreshold", "25%", 0.25),
]


@pytest.mark.parametrize(("name", "text", "value"), SPECIFICATION)
def test_auto_scale_has_the_specifications_properties_and_defaults(name, text, value, tmp_path):
    key = re.sub(r"([A-Z])", r"_\1", name).lower()
    assert getattr(BrokerConfig(), key) == value
    path = tmp_path / "engine.toml"
    path.write_text(f"{name} = {json.dumps(text)}\n")
    assert BrokerConfig.load(path) == BrokerConfig()


def test_durations_sizes_and_shares_may_be_text_from_everywhere(tmp_path):
    path = tmp_path / "engine.toml"
    path.write_text('scalableTopicMergeWindow = "90s"\nretention_time = "2d"\nretention_size = "1GB"\n')
    environment = {
        "ENGINE_SCALABLE_TOPIC_SPLIT_COOLDOWN": "500ms",
        "ENGINE_SCALABLE_TOPIC_SPLIT_BYTES_RATE_IN_THRESHOLD": "60MB",
        "ENGINE_SCALABLE_TOPIC_LOAD_REPORT_RATE_CHANGE_THRESHOLD": "10%",
        "ENGINE_KEEP_ALIVE": "7",
    }
    config = BrokerConfig.load(path, environment=environment, scalable_topic_rebucket_cooldown="2m")
    assert (config.scalable_topic_merge_window, config.retention_time, config.retention_size) == (90, 172800, 2**30)
    assert (config.scalable_topic_split_cooldown, config.keep_alive) == (0.5, 7.0)
    assert config.scalable_topic_split_bytes_rate_in_threshold == 60 * 2**20
    assert config.scalable_topic_load_report_rate_change_threshold == 0.1
    assert config.auto_scale_policy().rebucket_cooldown == 120.0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scalable_topic_split_cooldown": "soon"}, "scalable_topic_split_cooldown must be .*, got 'soon'"),
        ({"scalable_topic_merge_window": -1}, "scalable_topic_merge_window must be a number of seconds.*, got -1"),
        ({"scalable_topic_max_segments": 0}, "scalable_topic_max_segments must be an integer from 1.*, got 0"),
        ({"scalable_topic_auto_scale_enabled": "on"}, "auto_scale_enabled must be true or false, got 'on'"),
        ({"scalable_topic_auto_scale_interval": 0}, "scalable_topic_auto_scale_interval must be .*, got 0"),
        ({"scalable_topic_load_report_interval": "0s"}, "scalable_topic_load_report_interval must be .*, got 0.0"),
        (
            {"scalable_topic_load_report_rate_change_threshold": 25},
            "must be a fraction from 0 to 10, or text like '25%', got 25",
        ),
        ({"scalable_topic_split_msg_rate_in_threshold": "5MB"}, "msg_rate_in_threshold must be .*, got '5MB'"),
        ({"scalable_topic_split_bytes_rate_in_threshold": "5s"}, "split_bytes_rate_in_threshold must be .*, got '5s'"),
        # Together.
        (
            {"scalable_topic_min_segments": 65},
            "scalable_topic_min_segments is 65, above scalable_topic_max_segments, 64",
        ),
        (
            {"scalable_topic_merge_bytes_rate_out_threshold": "300MB"},
            "scalable_topic_merge_bytes_rate_out_threshold is .*, not below "
            "scalable_topic_split_bytes_rate_out_threshold",
        ),
    ],
)
def test_what_is_wrong_about_auto_scale_is_named(values, text):
    with pytest.raises(InvalidConfigurationError, match=text):
        BrokerConfig.load(**values)


def test_the_policy_is_the_configurations():
    config = BrokerConfig(
        scalable_topic_auto_scale_enabled=False, scalable_topic_max_segments=7, scalable_topic_max_buckets=16
    )
    policy = config.auto_scale_policy()
    assert (policy.enabled, policy.max_segments, policy.max_buckets, policy.problem) == (False, 7, 16, "")
    assert BrokerConfig().auto_scale_policy() == AutoScalePolicy()


def test_defaults_of_the_caller_are_behind_what_is_set(tmp_path: Path) -> None:
    """`engine serve --metadata etcd://…` has a shorter lease, unless it is set, even to the usual value."""
    defaults = {"session_timeout": CLUSTER_SESSION_S}
    assert BrokerConfig.load(defaults=defaults).session_timeout == CLUSTER_SESSION_S == 5.0
    assert BrokerConfig.load(environment={"ENGINE_SESSION_TIMEOUT": "30"}, defaults=defaults).session_timeout == 30.0
    file = tmp_path / "engine.toml"
    file.write_text("session_timeout = 12.5\n")
    assert BrokerConfig.load(file, defaults=defaults).session_timeout == 12.5
