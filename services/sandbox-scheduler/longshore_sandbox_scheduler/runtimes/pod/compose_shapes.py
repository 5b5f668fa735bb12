"""How a compose file is read: as YAML 1.2, and each part by its shape, so that nonsense is refused by its place."""

from __future__ import annotations

import re
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError


class Yaml12(yaml.SafeLoader):
    """Scalars as compose reads them: `on` and `no` are words, 22:22 is a port mapping and not a number of base 60."""


Yaml12.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))

Scalar = StrictStr | StrictInt | StrictFloat | StrictBool
Number = StrictStr | StrictInt | StrictFloat
Words = StrictStr | list[Scalar] | None


class _Shape(BaseModel):
    # What is not named here is judged by its key alone.
    model_config = ConfigDict(extra="ignore")


class _Healthcheck(_Shape):
    test: StrictStr | list[StrictStr] | None = None
    interval: Number | None = None
    start_interval: Number | None = None
    timeout: Number | None = None
    start_period: Number | None = None
    retries: StrictInt | None = None
    disable: StrictBool | None = None


class _Condition(_Shape):
    condition: StrictStr = "service_started"


class _Volume(_Shape):
    type: StrictStr
    source: StrictStr | None = None
    target: StrictStr
    read_only: StrictBool | None = None


class _Port(_Shape):
    target: StrictStr | StrictInt
    published: StrictStr | StrictInt | None = None


class _Network(_Shape):
    aliases: list[StrictStr] | None = None


class _Limits(_Shape):
    memory: Number | None = None
    cpus: Number | None = None


class _Resources(_Shape):
    limits: _Limits | None = None


class _Deploy(_Shape):
    resources: _Resources | None = None


class _Service(_Shape):
    image: StrictStr | None = None
    command: Words = None
    entrypoint: Words = None
    environment: dict[StrictStr, Scalar | None] | list[StrictStr] | None = None
    healthcheck: _Healthcheck | None = None
    depends_on: list[StrictStr] | dict[StrictStr, _Condition | None] | None = None
    volumes: list[StrictStr | _Volume] | None = None
    tmpfs: StrictStr | list[StrictStr] | None = None
    working_dir: StrictStr | None = None
    user: StrictStr | StrictInt | None = None
    ports: list[StrictStr | StrictInt | _Port] | None = None
    expose: list[StrictStr | StrictInt] | None = None
    networks: list[StrictStr] | dict[StrictStr, _Network | None] | None = None
    network_mode: StrictStr | None = None
    hostname: StrictStr | None = None
    container_name: StrictStr | None = None
    mem_limit: Number | None = None
    cpus: Number | None = None
    shm_size: Number | None = None
    deploy: _Deploy | None = None
    profiles: list[StrictStr] | None = None
    privileged: StrictBool | None = None


def problem_of_service(node: Any) -> tuple[str, str] | None:
    """Dotted key and reason of the first part of a service that has not its shape."""
    try:
        _Service.model_validate(node)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Behind the key come the names of the shapes that were tried.
        return str(first["loc"][0]), first["msg"]
    return None
