"""Addresses and settings of the all-in-one mode."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from longshore_cli.errors import CliError
from longshore_cli.local.home import Home
from longshore_cli.local.settings import SERVICES, build_settings, by_name, check_ports, fixed_layout, free_layout


def test_ports_are_distinct() -> None:
    for layout in (fixed_layout(7400), free_layout()):
        ports = list(layout.all().values())
        assert len(ports) == len(set(ports))


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_is_named(shared: bool) -> None:
    """gRPC servers bind with SO_REUSEPORT and would share a port silently: two controllers, half of the calls each."""
    layout = free_layout()
    with socket.socket() as taken:
        if shared:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        host, _, port = layout.grpc["controller"].rpartition(":")
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(CliError, match=f"port {port} on {host}, wanted by controller") as error:
            check_ports(layout, SERVICES)
        assert "--port-base" in error.value.message
        check_ports(layout, by_name(["task-catalog"]))


def test_a_port_that_does_not_exist() -> None:
    with pytest.raises(CliError, match="does not exist"):
        check_ports(fixed_layout(65534), SERVICES)


@pytest.mark.parametrize("service", SERVICES, ids=lambda s: s.name)
def test_each_service_is_told_where_the_others_are(service, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    layout = free_layout()
    home = Home(tmp_path / "h")
    settings = build_settings(service, home, layout, "s3cret", "warning")
    assert settings.grpc_address == layout.grpc[service.name]
    assert settings.data_dir == home.service_dir(service.name)
    assert settings.secret.get_secret_value() == "s3cret"
    own = {other.key: layout.grpc[other.name] for other in SERVICES}
    told = {
        name
        for name in type(settings).model_fields
        if name.removesuffix("_address") in own and name.endswith("_address")
    }
    for name in told:
        assert getattr(settings, name) == own[name.removesuffix("_address")]
    assert not home.path.exists()
