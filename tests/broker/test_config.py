"""The broker's configuration: sources, names, refusals."""

from __future__ import annotations

import pytest

from engine.broker.config import BrokerConfig
from engine.errors import InvalidConfigurationError


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
        "defaultRetentionTimeInMinutes = 2\nkeepAliveIntervalSeconds = 7\n"
    )
    config = BrokerConfig.load(path)
    assert (config.scalable_topic_enabled, config.auto_create_topics) == (False, True)
    assert (config.retention_time, config.keep_alive) == (120.0, 7)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"segmentz": 1}, "segmentz"),
        ({"segments": 0}, "segments is 0; an integer from 1"),
        ({"segments": True}, "segments"),
        ({"durability": "maybe"}, "durability is 'maybe'; fsync or interval or os"),
        ({"keep_alive": -1}, "keep_alive"),
        ({"retention_time": float("nan")}, "retention_time"),
        ({"service_url": "http://x"}, "service_url"),
        ({"publish_bytes_max": 1}, "publish_bytes_max"),
    ],
)
def test_what_is_wrong_is_named(values, text):
    with pytest.raises(InvalidConfigurationError, match=text):
        BrokerConfig.load(**values)


def test_wrong_files_and_variables(tmp_path):
    with pytest.raises(InvalidConfigurationError, match=r"none\.toml cannot be read"):
        BrokerConfig.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("x = ")
    with pytest.raises(InvalidConfigurationError, match="is not TOML"):
        BrokerConfig.load(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("broker = 3")
    with pytest.raises(InvalidConfigurationError, match="section"):
        BrokerConfig.load(tmp_path / "odd.toml")
    with pytest.raises(InvalidConfigurationError, match="segments is 'four'"):
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
