"""docker-compose files of tasks: what becomes of them, and what is refused by service, key and reason."""

from __future__ import annotations

import contextlib
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_common.errors import InvalidSpec
from longshore_sandbox_scheduler.runtimes.pod.compose import Compose, find, parse

WHERE = "environment/docker-compose.yaml"


def read(services: str, **variables: str) -> Compose:
    return parse(dedent(services), WHERE, variables)


FULL = """
    version: "3.8"
    services:
      main:
        build: {context: .}
        image: ${MAIN_IMAGE_NAME}
        command: ["sh", "-c", "sleep infinity"]
        environment: {DB: "postgres://db:5432/x", N: 3, ON: true}
        working_dir: /app
        user: agent:agent
        volumes: ["data:/data:ro"]
        depends_on: {db: {condition: service_healthy}, seed: {condition: service_completed_successfully}}
      db:
        image: registry.example/postgres:16
        hostname: database
        environment: ["POSTGRES_PASSWORD=a=b", "EMPTY="]
        user: "999:998"
        mem_limit: 512m
        cpus: "0.5"
        volumes: ["data:/var/lib/data", {type: tmpfs, target: /run/db}]
        tmpfs: /tmp:size=64m
        shm_size: 128mb
        networks: {default: {aliases: [pg.internal]}}
        ports: ["5432"]
        healthcheck: {test: ["CMD-SHELL", "pg_isready -U $$USER"], interval: 10s, timeout: 1m30s, retries: 4,
                      start_period: 20s}
      seed:
        image: registry.example/seed
        entrypoint: /seed.sh
        command: --from 'a file' --fast
        depends_on: [db]
        working_dir: /seed
      debug:
        image: registry.example/debug
        profiles: [debug]
    volumes:
      data: {}
"""


def test_a_whole_file() -> None:
    made = read(FULL, MAIN_IMAGE_NAME="MAIN_IMAGE_NAME")
    assert made.main_image == ""
    assert made.env == {"DB": "postgres://db:5432/x", "N": "3", "ON": "true"}
    assert (made.workdir, made.user) == ("/app", "agent")
    db, seed = made.sidecars
    assert (db.name, db.reference) == ("db", "registry.example/postgres:16")
    assert db.spec["env"] == [{"name": "POSTGRES_PASSWORD", "value": "a=b"}, {"name": "EMPTY", "value": ""}]
    assert db.spec["securityContext"] == {"runAsUser": 999, "runAsGroup": 998}
    assert db.spec["resources"]["limits"] == {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "2048Mi"}
    assert db.spec["startupProbe"] == {
        "exec": {"command": ["/bin/sh", "-c", "pg_isready -U $USER"]},
        "periodSeconds": 5,
        "timeoutSeconds": 90,
        "failureThreshold": 12,
    }
    assert db.spec["aliases"] == ["database", "pg.internal"]
    assert seed.spec["command"] == ["/seed.sh"]
    assert seed.spec["args"] == ["--from", "a file", "--fast"]
    assert seed.spec["workingDir"] == "/seed"
    assert seed.spec["once"] is True
    assert "once" not in db.spec
    mounts = [(v["container"], v["name"], v["path"], v.get("medium"), v.get("read_only")) for v in db.spec["volumes"]]
    assert mounts == [
        ("main", "shared-data", "/data", None, True),
        ("db", "shared-data", "/var/lib/data", None, None),
        ("db", "shared-db-run-db", "/run/db", "Memory", None),
        ("db", "shared-db-tmp", "/tmp", "Memory", None),
        ("db", "shared-db-dev-shm", "/dev/shm", "Memory", None),
    ]
    assert db.spec["volumes"][-1]["size_mb"] == 128


def service(extra: str, main: str = "") -> str:
    return f"services:\n  main: {{image: m{main}}}\n  db:\n    image: d\n    {extra}\n"


REFUSED: list[tuple[str, str, str]] = [
    (service("privileged: true"), "services.db.privileged", "never privileged"),
    (service("network_mode: host"), "services.db.network_mode", "'host'"),
    (service("network_mode: 'service:main'"), "services.db.network_mode", "leave"),
    (service("volumes: ['./data:/data']"), "services.db.volumes", "host"),
    (service("volumes: ['/var/run/docker.sock:/var/run/docker.sock']"), "services.db.volumes", "docker.sock"),
    (service("volumes: [{type: bind, source: /etc, target: /etc}]"), "services.db.volumes", "host"),
    (service("volumes: ['data:relative']"), "services.db.volumes", "absolute"),
    (service("ports: [22:22]"), "services.db.ports", "22:22 publishes"),
    (service("ports: ['8080:80']"), "services.db.ports", "8080:80 publishes"),
    (service("ports: [{target: 80, published: 8080}]"), "services.db.ports", "publishes"),
    (service("cap_add: [SYS_ADMIN]"), "services.db.cap_add", "cannot be honoured"),
    (service("devices: [/dev/kvm]"), "services.db.devices", "cannot be honoured"),
    (service("pid: host"), "services.db.pid", "cannot be honoured"),
    (service("env_file: .env"), "services.db.env_file", "cannot be honoured"),
    (service("extends: {service: main}"), "services.db.extends", "cannot be honoured"),
    (service("environment: [SECRET]"), "services.db.environment.SECRET", "host"),
    (service("environment: {SECRET: null}"), "services.db.environment.SECRET", "host"),
    (service("command: run ${TOKEN}"), "services.db.command", "TOKEN"),
    (service("user: postgres"), "services.db.user", "numbers"),
    (service("depends_on: [nobody]"), "services.db.depends_on", "nobody"),
    (service("depends_on: {main: {condition: service_perfect}}"), "services.db.depends_on.main", "service_perfect"),
    (service("mem_limit: lots"), "services.db.mem_limit", "lots"),
    (service("cpus: many"), "services.db.cpus", "many"),
    (service("healthcheck: {test: [PING]}"), "services.db.healthcheck.test", "CMD"),
    (service("healthcheck: {test: x, interval: soon}"), "services.db.healthcheck.interval", "soon"),
    (service("command: 'unclosed \"quote'"), "services.db.command", "cannot be read"),
    (service("networks: [back]", ", networks: [front]"), "services.db.networks", "no network with main"),
    (service("ports: ['80']", ", expose: ['80']"), "services.db.ports", "port 80 is main's"),
    (service("hostname: A_B"), "services.db", "'A_B' is no host name"),
    ("services:\n  main: {image: m}\n  db: {build: ./db}\n", "services.db.build", "only main is built"),
    ("services:\n  main: {image: m}\n  db: {}\n", "services.db.image", "pulled"),
    ("services:\n  main: {image: m}\n  Data_Base: {image: d}\n", "services.Data_Base", "lower-case"),
    ("services:\n  main: {image: m, depends_on: [a]}\n  a: {image: d, depends_on: [b]}\n"
     "  b: {image: d, depends_on: [a]}\n", "services", "goes round"),
    ("services: {web: {image: m}}\n", "services", "no service 'main'"),
    ("services: []\n", "services", "must be a mapping"),
    ("services: {main: {image: m}}\nsecrets: {a: {file: b}}\n", "secrets", "not supported"),
    ("services: {main: {image: m}}\nvolumes: {a: {external: true}}\n", "volumes.a", "outside"),
    ("{", "file", "not YAML"),
    ("services: {main: {image: m, tmpfs: /x}}\n", "services.main.tmpfs", "second service"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "path", "word"), REFUSED, ids=[f"{path}-{i}" for i, (_, path, _) in enumerate(REFUSED)]
)
def test_what_cannot_be_honoured_is_refused_by_service_and_key(text: str, path: str, word: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(text, WHERE)
    assert refused.value.field == f"{WHERE}:{path}"
    assert word in refused.value.message


def test_start_order_follows_depends_on_and_else_the_name() -> None:
    made = read("""
        services:
          main: {image: m, depends_on: [z]}
          a: {image: d, depends_on: [z, c]}
          c: {image: d}
          z: {image: d}
    """)
    assert [one.name for one in made.sidecars] == ["c", "z", "a"]


@pytest.mark.parametrize("check", ["{disable: true}", "{test: [NONE]}", "{test: NONE, disable: true}"])
def test_a_check_can_be_off(check: str) -> None:
    assert "startupProbe" not in parse(service(f"healthcheck: {check}")).sidecars[0].spec


@pytest.mark.parametrize(
    ("text", "value"),
    [("${A}", "one"), ("$A", "one"), ("$$A", "$A"), ("${B:-two}", "two"), ("${EMPTY:-x}", "x"), ("${EMPTY-x}", ""),
     ("${A:+y}", "y"), ("${B:+y}", "")],
)  # fmt: skip
def test_variables_are_filled_in_as_compose_does(text: str, value: str) -> None:
    made = parse(service(f"working_dir: 'p{text}'"), WHERE, {"A": "one", "EMPTY": ""})
    assert made.sidecars[0].spec["workingDir"] == f"p{value}"


def test_the_file_is_found_under_both_names() -> None:
    text = b"services: {main: {image: m}}\n"
    assert find({"environment/Dockerfile": b""}, {}) is None
    for name in ("environment/docker-compose.yaml", "environment/docker-compose.yml"):
        found = find({name: text}, {})
        assert found is not None
        assert found.main_image == "m"
    with pytest.raises(InvalidSpec, match="UTF-8"):
        find({WHERE: b"\xff"}, {})


SCALARS: Any = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("${X}"))
NODES: Any = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
)
KEYS = st.sampled_from(
    ["image", "command", "environment", "healthcheck", "depends_on", "volumes", "tmpfs", "ports", "networks", "user",
     "mem_limit", "cpus", "deploy", "shm_size", "hostname", "expose", "profiles"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, NODES, max_size=4), st.dictionaries(KEYS, NODES, max_size=4))
def test_nonsense_is_refused_and_never_a_crash(main: dict[str, Any], db: dict[str, Any]) -> None:
    text = yaml.safe_dump({"services": {"main": main, "db": {"image": "d", **db}}}, allow_unicode=True)
    with contextlib.suppress(InvalidSpec):
        parse(text, WHERE)
