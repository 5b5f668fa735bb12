"""The docker runtime without an engine: what is asked for, and how answers are understood."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.domain.model import EndReason, Image, Limits, Network, NetworkClass, Template
from longshore_sandbox_scheduler.domain.runtime import ClaimTag, SandboxFailed
from longshore_sandbox_scheduler.runtimes.docker.build_log import instructions, last_step, line_named
from longshore_sandbox_scheduler.runtimes.docker.container_spec import ContainerOptions, container_of
from longshore_sandbox_scheduler.runtimes.docker.ends import create_error, end_of
from longshore_sandbox_scheduler.runtimes.docker.engine_api import EngineError, EngineOptions, RawStream, place_of
from longshore_sandbox_scheduler.runtimes.docker.engine_events import container_name
from longshore_sandbox_scheduler.runtimes.docker.exec_carrier import carry, demultiplexed
from longshore_sandbox_scheduler.runtimes.tunnels import BrokenTunnel

LIMITS = Limits(cpus=0.5, memory_mb=64, storage_mb=100, max_processes=32, max_file_mb=16)
TAG = ClaimTag("run", "attempt", "sha256:task", "key", 60.0)


def _container(
    network: NetworkClass = NetworkClass.NO_NETWORK, image_env: tuple[str, ...] = (), **options: Any
) -> dict[str, Any]:
    template = Template(Image("sha256:i", reference="sha256:i", workdir="/app"), LIMITS, Network(network))
    wanted = ContainerOptions(agent_public_key="key", owner="me", **options)
    return container_of(template, TAG, "sandbox-1", "instance-1", "volume", image_env, wanted)


def test_limits_hold_and_rights_are_dropped() -> None:
    host = _container()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (64 << 20, 64 << 20, 500_000_000)
    assert 32 < host["PidsLimit"] < 1000
    assert host["CapDrop"] == ["ALL"]
    assert not {"SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "NET_RAW", "MKNOD"} & set(host["CapAdd"])
    assert "SecurityOpt" not in host, "set-uid programs of tasks work"
    assert host["Mounts"][0]["ReadOnly"], "a task must not replace the agent"


def test_the_operators_fields_do_not_loosen_ours() -> None:
    wished = {"Privileged": True, "CapDrop": [], "NetworkMode": "host", "Ulimits": [{"Name": "nofile"}]}
    host = _container(host=wished)["HostConfig"]
    assert (host["Privileged"], host["CapDrop"], host["NetworkMode"]) == (False, ["ALL"], "none")
    assert host["Ulimits"] == [{"Name": "nofile"}]


def test_networks() -> None:
    assert _container()["HostConfig"]["NetworkMode"] == "none"
    assert _container(NetworkClass.PUBLIC, public_network="open")["HostConfig"]["NetworkMode"] == "open"


def test_only_what_the_engine_itself_sets_is_hidden_from_commands() -> None:
    def hidden(**options: Any) -> str:
        env = dict(entry.split("=", 1) for entry in _container(**options)["Env"])
        return env["LONGSHORE_AGENT_HIDDEN_ENV"]

    assert hidden() == "TERM,container"
    assert hidden(image_env=("PATH", "TERM")) == "container"


def test_quota_where_the_storage_driver_has_it() -> None:
    assert "StorageOpt" not in _container()["HostConfig"]
    assert _container(storage_quota=True)["HostConfig"]["StorageOpt"] == {"size": "100M"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"Running": True, "Status": "running"}, None),
        ({"Running": False, "Status": "created"}, None),
        ({"Running": False, "Status": "exited", "ExitCode": 137, "OOMKilled": True}, EndReason.OOM),
        # Docker sets it for a container one of whose commands was killed; its init went on, and ended by a signal.
        ({"Running": False, "Status": "exited", "ExitCode": 143, "OOMKilled": True}, EndReason.LOST),
        ({"Running": False, "Status": "exited", "ExitCode": 137, "OOMKilled": False}, EndReason.LOST),
        ({"Running": False, "Status": "dead", "ExitCode": 1, "Error": "exec format error"}, EndReason.LOST),
    ],
)
def test_ends(state: dict[str, Any], reason: EndReason | None) -> None:
    end = end_of({"State": state})
    assert (end.reason if end else None) is reason
    if end is not None and state.get("Error"):
        assert "exec format error" in end.detail


def test_a_removed_container_was_deleted() -> None:
    end = end_of(None)
    assert end is not None
    assert end.reason is EndReason.DELETED


def test_refused_creations() -> None:
    absent = create_error("s", EngineError(404, "POST /containers/create: No such image: a:b"))
    assert isinstance(absent, SandboxFailed)
    assert absent.reason is EndReason.IMAGE_PULL
    refused = create_error("s", EngineError(500, "unknown or invalid runtime name: runsc"))
    assert isinstance(refused, SandboxFailed)
    assert refused.reason is EndReason.START_FAILED
    away = create_error("s", EngineError(0, "no answer"))
    assert not isinstance(away, SandboxFailed)
    assert away.retryable


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ({"Type": "container", "Action": "die", "Actor": {"Attributes": {"name": "a"}}}, "a"),
        ({"Type": "container", "status": "died", "Actor": {"Attributes": {"name": "a"}}}, "a"),
        ({"Type": "container", "Action": "destroy", "Actor": {"Attributes": {"name": "a"}}}, "a"),
        ({"Type": "container", "Action": "exec_start: /bin/die", "Actor": {"Attributes": {"name": "a"}}}, ""),
        ({"Type": "container", "Action": "exec_die", "Actor": {"Attributes": {"name": "a"}}}, ""),
        ({"Type": "image", "Action": "pull"}, ""),
    ],
)
def test_events_of_docker_and_podman(event: dict[str, Any], name: str) -> None:
    assert container_name(event) == name


# -- the engine's address


@pytest.mark.parametrize(
    ("host", "env", "path", "base"),
    [
        ("", {}, "/var/run/docker.sock", "http://engine"),
        ("", {"DOCKER_HOST": "unix:///run/podman/podman.sock"}, "/run/podman/podman.sock", "http://engine"),
        ("tcp://10.0.0.1:2375", {"DOCKER_HOST": "unix:///x"}, "", "http://10.0.0.1:2375"),
        ("tcp://[::1]:2375", {}, "", "http://[::1]:2375"),
    ],
)
def test_addresses(host: str, env: dict[str, str], path: str, base: str) -> None:
    place = place_of(EngineOptions(host), env)
    assert (place.path, place.base) == (path, base)


@pytest.mark.parametrize("host", ["ssh://user@host", "tcp://host", "tcp://host:port", "/var/run/docker.sock", "unix:"])
def test_unusable_addresses_are_named(host: str) -> None:
    with pytest.raises(InvalidSpec, match="DOCKER_HOST") as refused:
        place_of(EngineOptions(host), {})
    assert host in refused.value.message


def test_missing_certificates_are_named(tmp_path: Any) -> None:
    with pytest.raises(InvalidSpec, match="certificates"):
        place_of(EngineOptions("tcp://host:2376"), {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)})


# -- build logs, as Docker and Podman (recorded) write them

DOCKERFILE = """\
# a comment
FROM longshore/base

RUN echo one
RUN echo two && \\
    # in between
    false
RUN echo one
"""


def test_instructions_have_the_line_that_they_begin_at() -> None:
    assert instructions(DOCKERFILE) == [
        (2, "FROM longshore/base"),
        (4, "RUN echo one"),
        (5, "RUN echo two && false"),
        (8, "RUN echo one"),
    ]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("Step 1/4 : FROM longshore/base\n ---> 0a1b\nStep 2/4 : RUN echo one\n", 4),
        ("STEP 1/4: FROM longshore/base\nSTEP 2/4: RUN echo one\none\nSTEP 3/4: RUN echo two &&     false\n", 5),
        ("STEP 2/4: RUN echo one\nSTEP 3/4: RUN echo two && false\nSTEP 4/4: RUN echo one\n", 8),
        ("[1/2] STEP 1/4: FROM longshore/base\n", 2),
        ("STEP 2/4: RUN echo $other\n", 0),
        ("nothing of the kind", 0),
    ],
)
def test_the_line_of_the_last_step(log: str, line: int) -> None:
    assert last_step(DOCKERFILE, log)[0] == line


def test_the_line_that_a_parser_names() -> None:
    assert line_named("dockerfile parse error line 3: unknown instruction: FRUM") == 3
    assert line_named("online 24 hours") == 0


# -- the exec's stream


def _frame(stream: int, data: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


async def _pair() -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], ...]:
    accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
        asyncio.get_running_loop().create_future()
    )
    server = await asyncio.start_server(lambda r, w: accepted.set_result((r, w)), "127.0.0.1", 0)
    near = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    far = await accepted
    server.close()
    return near, far


async def test_frames_cut_anywhere_carry_the_same_bytes() -> None:
    sent = b"".join(_frame(1, bytes([n]) * n) for n in range(1, 60))
    engine_near, engine_far = await _pair()
    ours_near, ours_far = await _pair()
    carrying = asyncio.create_task(carry(RawStream(*engine_near), *ours_near))
    ours_far[1].write(b"request")
    assert await engine_far[0].readexactly(7) == b"request"
    for at in range(0, len(sent), 7):
        engine_far[1].write(sent[at : at + 7])
        await engine_far[1].drain()
        await asyncio.sleep(0)
    engine_far[1].close()
    await carrying
    ours_near[1].close()
    assert await ours_far[0].read() == b"".join(bytes([n]) * n for n in range(1, 60))


async def test_our_half_close_reaches_the_engine_and_its_last_word_us() -> None:
    engine_near, engine_far = await _pair()
    ours_near, ours_far = await _pair()
    carrying = asyncio.create_task(carry(RawStream(*engine_near), *ours_near))
    ours_far[1].write_eof()
    assert await engine_far[0].read() == b""
    engine_far[1].write(_frame(1, b"bye"))
    engine_far[1].close()
    await carrying
    ours_near[1].close()
    assert await ours_far[0].read() == b"bye"


async def test_what_the_bridge_complains_of_is_said() -> None:
    engine_near, engine_far = await _pair()
    ours_near, _ = await _pair()
    engine_far[1].write(_frame(2, b"longshore-agent connect: connection refused\n"))
    engine_far[1].close()
    with pytest.raises(BrokenTunnel, match="connection refused"):
        await carry(RawStream(*engine_near), *ours_near)


def test_log_frames() -> None:
    assert demultiplexed(_frame(1, b"a") + _frame(2, b"bc") + b"\x01\0") == b"abc"


def test_an_engine_error_can_be_sent_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(EngineError(503, "busy")))
    assert (type(error), error.status, error.retryable) == (EngineError, 503, True)
    assert isinstance(error, Unavailable)
