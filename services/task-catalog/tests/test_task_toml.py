"""task.toml: both version keys, old strings, unknown fields, broken files."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_task_catalog.domain.model import Limits, Severity
from longshore_task_catalog.domain.task_toml import TaskConfig, parse, parse_size_mb

DEFAULTS = Limits(cpus=2, memory_mb=111, storage_mb=222, agent_timeout_s=33)

ALLOWLIST = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = [{}]\n'


def parsed(text: str) -> TaskConfig:
    config, findings = parse(text)
    assert config is not None, findings
    return config


@pytest.mark.parametrize("key", ["version", "schema_version"])
def test_both_version_keys_are_known(key: str) -> None:
    assert parse(f'{key} = "1.0"\n')[1] == []


def test_limits_are_resolved_with_defaults() -> None:
    limits = parsed("[environment]\ncpus = 4\nmemory_mb = 512\n[verifier]\ntimeout_sec = 12\n").limits(DEFAULTS)
    assert limits == Limits(4, 512, 222, 33, 12, 600)


def test_old_size_strings_still_count() -> None:
    limits = parsed('[environment]\nmemory = "2G"\nstorage = "512M"\n').limits(DEFAULTS)
    assert (limits.memory_mb, limits.storage_mb) == (2048, 512)


@pytest.mark.parametrize(
    ("text", "mb"),
    [("2G", 2048), ("1.5g", 1536), ("512M", 512), ("1048576K", 1024), ("1048576", 1), ("2GiB", 2048), ("1K", 1)],
)
def test_sizes(text: str, mb: int) -> None:
    assert parse_size_mb(text) == mb


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ("", ""),
        ('network_mode = "public"', "public"),
        ("allow_internet = true", "public"),
        ("allow_internet = false", "no-network"),
        ('allow_internet = true\nnetwork_mode = "no-network"', "no-network"),
        ('network_mode = "allowlist"\nallowed_hosts = ["a.example", "*.b.example", "192.0.2.0/24"]', "allowlist"),
    ],
)
def test_the_network_asked_for(environment: str, asked: str) -> None:
    config, findings = parse(f"[environment]\n{environment}\n")
    assert findings == []
    assert config is not None
    assert config.environment.asked_network() == asked


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "two", "2X", "1e9"])
def test_what_is_no_size(text: str) -> None:
    assert parse_size_mb(text) is None


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        ("[task]\nname = \n", "task.toml:2", "not TOML"),
        ('[task]\nname = "a"\n\n[agent]\ntimeout_sec = "soon"\n', "task.toml:5", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = -1\n", "task.toml:2", "greater than 0"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 1\n', "task.toml:1", "both set; keep memory_mb"),
        ('[environment]\nmemory = "lots"\n', "task.toml:1", "write memory_mb"),
        ('[environment]\nallowed_hosts = ["a.b"]\n', "task.toml:1", "allowlist"),
        ('[environment]\nnetwork_mode = "allowlist"\n', "task.toml:1", "needs allowed_hosts"),
        (ALLOWLIST.format('"https://a.b"'), "task.toml:1", "'https://a.b' is no host"),
        (ALLOWLIST.format('"192.0.2.1/24"'), "task.toml:1", "'192.0.2.1/24' is no host"),
        ('[environment]\nnetwork_mode = "offline"\n', "task.toml:2", "network_mode"),
        ('[task]\nversion = "1"\n', "task.toml:1", "task.name"),
        ("agent = 3\n", "task.toml:1", "agent"),
        ("a = 1\na = 2\n", "task.toml:2", "not TOML"),
    ],
)
def test_errors_name_the_line(text: str, where: str, part: str) -> None:
    config, findings = parse(text)
    assert config is None
    assert [finding.severity for finding in findings] == [Severity.ERROR]
    assert findings[0].where == where
    assert part in findings[0].message


def test_unknown_fields_are_warnings_with_a_near_miss() -> None:
    config, findings = parse("[agent]\ntimeout_secs = 3\n\n[environment]\nflavour = 1\n")
    assert config is not None
    assert [finding.severity for finding in findings] == [Severity.WARNING] * 2
    assert (findings[0].where, findings[0].rule) == ("task.toml:2", "unknown-field")
    assert "did you mean timeout_sec?" in findings[0].message
    assert findings[1].where == "task.toml:5"
    assert "memory_mb" in findings[1].message


def test_metadata_is_free() -> None:
    config, findings = parse("[metadata]\nskill = 'x'\nanything = {a = 1}\n")
    assert findings == []
    assert config is not None
    assert config.metadata["anything"] == {"a": 1}


def test_unknown_fields_in_lists_are_found() -> None:
    _, findings = parse("[[steps]]\nname = 'a'\nmin_rewards = 1\n")
    assert "min_reward?" in findings[0].message


@given(st.text(max_size=200))
def test_any_text_gives_a_config_or_an_error(text: str) -> None:
    config, findings = parse(text)
    assert (config is None) == any(finding.severity is Severity.ERROR for finding in findings)
    assert all(finding.where.startswith("task.toml") for finding in findings)


@given(
    st.sampled_from(["agent", "verifier", "environment"]),
    st.text(string.ascii_lowercase + "_", min_size=1, max_size=20),
)
def test_a_field_is_known_or_warned_about(table: str, name: str) -> None:
    known = type(getattr(TaskConfig(), table)).model_fields
    _, findings = parse(f"[{table}]\n{name} = true\n")
    if name not in known:
        assert [finding.rule for finding in findings] == ["unknown-field"]
        assert findings[0].where == "task.toml:2"
