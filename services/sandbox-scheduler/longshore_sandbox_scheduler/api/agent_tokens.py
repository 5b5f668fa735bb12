"""Agent tokens: JWTs signed by a key that all schedulers of one platform secret share; agents know its public half."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from longshore_common.errors import PermissionDenied

_ISSUER = "longshore-sandbox-scheduler"
_AUDIENCE = "longshore-agent"
_PURPOSE = b"longshore agent token"
_KEY_BYTES = 32
_LEEWAY_S = 30
"""Clocks of nodes differ."""


class JwtAgentTokens:
    """`domain.ports.AgentTokens`. Without a secret the key is this process's own."""

    def __init__(self, secret: str, now_s: Callable[[], float]) -> None:
        seed = secrets.token_bytes(_KEY_BYTES)
        if secret:
            hkdf = HKDF(algorithm=hashes.SHA256(), length=_KEY_BYTES, salt=None, info=_PURPOSE)
            seed = hkdf.derive(secret.encode())
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._public = self._key.public_key()
        self._now_s = now_s

    @property
    def public_key(self) -> str:
        """Base64 of the raw public key, as agents take it."""
        raw = self._public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return base64.b64encode(raw).decode()

    def mint(self, sandbox_id: str, instance: str, deadline_at_ms: int) -> str:
        claims = {
            "iss": _ISSUER,
            "aud": _AUDIENCE,
            "sub": sandbox_id,
            "instance": instance,
            "exp": deadline_at_ms // 1000 + _LEEWAY_S,
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA")

    def sandbox_of(self, token: str) -> tuple[str, str]:
        required = ["exp", "sub", "iss", "aud", "instance"]
        options: jwt.types.Options = {"require": required, "verify_exp": False, "verify_sub": True}
        try:
            claims = jwt.decode(
                token, self._public, algorithms=["EdDSA"], audience=_AUDIENCE, issuer=_ISSUER, options=options
            )
        except jwt.InvalidTokenError as error:
            raise PermissionDenied("the token is not one of this scheduler; claim a sandbox") from error
        if float(claims["exp"]) <= self._now_s():
            raise PermissionDenied("the token has expired with its sandbox")
        return str(claims["sub"]), str(claims["instance"])
