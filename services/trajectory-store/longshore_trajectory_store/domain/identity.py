"""What an attempt was made of, its digest, and which field differs between two of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from longshore_common.digests import digest
from longshore_common.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. top_p 1.0 and top_k 0 mean off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptIdentity:
    """Every field counts for the digest, except the seed of `sampling`: it differs inside a group."""

    task_digest: str = ""
    harness_name: str = ""
    harness_version: str = ""
    harness_config_digest: str = ""
    base_digest: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    policy_alias: str = ""
    image_digest: str = ""
    limits_digest: str = ""
    verifier_digest: str = ""


def identity_values(identity: AttemptIdentity) -> dict[str, Any]:
    """The identity as a flat JSON object with dotted names; numbers normalised, the seed left out."""
    values = {f.name: getattr(identity, f.name) for f in fields(identity) if f.name != "sampling"}
    sampling = asdict(identity.sampling)
    sampling.pop("seed")
    sampling["temperature"] = float(identity.sampling.temperature)
    sampling["top_p"] = float(identity.sampling.top_p)
    return values | {f"sampling.{name}": value for name, value in sampling.items()}


def identity_digest(identity: AttemptIdentity) -> str:
    """sha256 over the canonical JSON of `identity_values`."""
    return digest(identity_values(identity))


def first_difference(expected: AttemptIdentity, actual: AttemptIdentity) -> tuple[str, Any, Any] | None:
    """(field, expected value, actual value) of the first field that differs; None when the digests are equal."""
    left, right = identity_values(expected), identity_values(actual)
    for name, value in left.items():
        if right[name] != value:
            return name, value, right[name]
    return None


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidSpec when a number is not finite: it has no canonical form."""
    for name in ("temperature", "top_p"):
        if not math.isfinite(getattr(sampling, name)):
            raise InvalidSpec(f"sampling.{name} is not finite", field=f"identity.sampling.{name}")


def check_complete(identity: AttemptIdentity, task_digest: str) -> None:
    """A scored attempt must say everything it was made of.

    Raises:
        InvalidSpec: a field is empty, or the task is not the group's.
    """
    check_sampling(identity.sampling)
    for name, value in identity_values(identity).items():
        if value == "":
            raise InvalidSpec(
                f"identity.{name} is empty: a scored attempt must name all it was made of", field=f"identity.{name}"
            )
    if identity.task_digest != task_digest:
        raise InvalidSpec(
            f"identity.task_digest is {identity.task_digest}, the group's task is {task_digest}",
            field="identity.task_digest",
        )
