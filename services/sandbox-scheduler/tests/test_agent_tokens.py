"""Agent tokens name one incarnation of one sandbox, end with it, and cannot be made by who knows the public key."""

from __future__ import annotations

import base64

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from longshore_common.errors import PermissionDenied
from longshore_sandbox_scheduler.api.agent_tokens import JwtAgentTokens

NOW = 1_900_000_000.0


def tokens(secret: str = "platform", now: float = NOW) -> JwtAgentTokens:
    return JwtAgentTokens(secret, lambda: now)


def test_replicas_of_one_secret_accept_each_other() -> None:
    token = tokens().mint("sandbox-1", "uid", int(1000 * (NOW + 60)))
    assert tokens().sandbox_of(token) == ("sandbox-1", "uid")
    for other in (tokens("another"), tokens("")):
        with pytest.raises(PermissionDenied):
            other.sandbox_of(token)


def test_a_token_ends_with_its_sandbox() -> None:
    token = tokens().mint("sandbox-1", "uid", int(1000 * NOW))
    assert tokens(now=NOW + 1).sandbox_of(token)[0] == "sandbox-1", "clocks of nodes differ a little"
    with pytest.raises(PermissionDenied, match="expired"):
        tokens(now=NOW + 31).sandbox_of(token)


def test_agents_can_check_with_the_public_key_alone() -> None:
    mine = tokens()
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(mine.public_key))
    token = mine.mint("sandbox-1", "uid", int(1000 * (NOW + 60)))
    claims = jwt.decode(token, public, ["EdDSA"], audience="longshore-agent", options={"verify_exp": False})
    assert (claims["sub"], claims["instance"], claims["iss"]) == ("sandbox-1", "uid", "longshore-sandbox-scheduler")


def _forged(key: object, algorithm: str, **changes: object) -> str:
    claims = {
        "iss": "longshore-sandbox-scheduler", "aud": "longshore-agent", "sub": "sandbox-1", "instance": "uid",
        "exp": NOW + 60, **changes,
    }  # fmt: skip
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, key, algorithm)


def test_forgeries_are_refused() -> None:
    mine = tokens()
    whole = mine.mint("sandbox-1", "uid", int(1000 * (NOW + 60)))
    head, body, signature = whole.split(".")
    forged = [
        "", "x", "a.b.c", f"{head}.{body}.", f"{head}.{body}.{signature[::-1]}",
        _forged(Ed25519PrivateKey.generate(), "EdDSA"), _forged(mine.public_key * 2, "HS256"), _forged("", "none"),
        _forged(mine._key, "EdDSA", aud="longshore-gateway"), _forged(mine._key, "EdDSA", iss="somebody"),
        _forged(mine._key, "EdDSA", instance=None), _forged(mine._key, "EdDSA", exp=None),
    ]  # fmt: skip
    for token in forged:
        with pytest.raises(PermissionDenied):
            mine.sandbox_of(token)
