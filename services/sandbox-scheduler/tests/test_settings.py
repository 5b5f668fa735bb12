"""Settings from the environment, as a chart gives them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from longshore_sandbox_scheduler.settings import Settings

PREFIX = "LONGSHORE_SANDBOX_SCHEDULER"


def test_single_fields_of_nested_groups_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("PODS__NAMESPACE", "boxes"),
        ("PODS__IMAGES__BASES", '{"longshore/base": "registry.example/base:1"}'),
        ("PODS__NETWORK__POLICY__GATEWAY", '[{"cidr": "10.0.0.1/32"}]'),
        ("PODS__NETWORK__POLICY__GATEWAY_PORT", "7403"),
        ("PODS__POD", '{"nodeSelector": {"pool": "cpu"}}'),
        ("POOL__MAX_PER_TEMPLATE", "7"),
    ):
        monkeypatch.setenv(f"{PREFIX}_{name}", value)
    settings = Settings()
    assert settings.pods.namespace == "boxes"
    assert settings.pods.images.bases == {"longshore/base": "registry.example/base:1"}
    assert [peer.cidr for peer in settings.pods.network.policy.gateway] == ["10.0.0.1/32"]
    assert settings.pods.network.policy.gateway_port == 7403
    assert settings.pods.pod == {"nodeSelector": {"pool": "cpu"}}
    assert settings.pool.max_per_template == 7


def test_a_whole_group_may_be_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}_PODS", '{"namespace": "boxes", "images": {"repository": "r"}}')
    assert (Settings().pods.namespace, Settings().pods.images.repository) == ("boxes", "r")


def test_text_that_is_no_json_is_refused_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}_PODS__IMAGES__BASES", "{longshore/base: x}")
    with pytest.raises(ValidationError, match=r"pods\.images\.bases"):
        Settings()
