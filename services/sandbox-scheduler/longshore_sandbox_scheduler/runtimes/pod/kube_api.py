"""A thin client of the Kubernetes API: plain dicts, one error type, every call counted.

kubernetes_asyncio reads kubeconfigs and service accounts and keeps their credentials fresh; its generated models are
left out, because building 5,000 pods as model objects costs more than all else that is done with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from prometheus_client import Counter

from longshore_common.errors import InvalidSpec, Unavailable
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import Expired, KubeError, from_status

CALLS = Counter(
    "longshore_sandbox_api_calls", "Calls to the Kubernetes API by outcome (code 0: no answer)",
    ["verb", "resource", "code"],
)  # fmt: skip

Object = dict[str, Any]

__all__ = ["MERGE_PATCH", "Expired", "KubeApi", "KubeError", "KubeOptions", "Page"]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_ATTEMPTS = 4
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 5.0


class Resource(NamedTuple):
    """Where a kind is served."""

    prefix: str
    namespaced: bool = True


RESOURCES: dict[str, Resource] = {
    "pods": Resource("api/v1"),
    "configmaps": Resource("api/v1"),
    "services": Resource("api/v1"),
    "events": Resource("api/v1"),
    "resourcequotas": Resource("api/v1"),
    "limitranges": Resource("api/v1"),
    "namespaces": Resource("api/v1", namespaced=False),
    "nodes": Resource("api/v1", namespaced=False),
    "deployments": Resource("apis/apps/v1"),
    "daemonsets": Resource("apis/apps/v1"),
    "networkpolicies": Resource("apis/networking.k8s.io/v1"),
    "servicecidrs": Resource("apis/networking.k8s.io/v1", namespaced=False),
    "endpointslices": Resource("apis/discovery.k8s.io/v1"),
    "leases": Resource("apis/coordination.k8s.io/v1"),
    "runtimeclasses": Resource("apis/node.k8s.io/v1", namespaced=False),
    "subjectaccessreviews": Resource("apis/authorization.k8s.io/v1", namespaced=False),
    "selfsubjectaccessreviews": Resource("apis/authorization.k8s.io/v1", namespaced=False),
}


@dataclass(frozen=True)
class KubeOptions:
    """How the API server is reached. kubeconfig empty: the pod's service account, else the default kubeconfig."""

    kubeconfig: str = ""
    context: str = ""
    concurrency: int = 64
    """Calls under way at a time, watches and exec streams apart."""
    timeout_s: float = 30.0
    """Longest time of one call, seconds."""


class Page(NamedTuple):
    """A whole list, and the version of the cluster it shows."""

    items: list[Object]
    version: str


class KubeApi:
    """One per process; `open` makes it. Raises KubeError only."""

    def __init__(self, client: ApiClient, options: KubeOptions) -> None:
        self._client = client
        self._session: aiohttp.ClientSession = client.rest_client.pool_manager
        self._server_hostname: str | None = client.rest_client.server_hostname
        self._host = str(client.configuration.host).rstrip("/")
        self._options = options
        self._places = asyncio.Semaphore(options.concurrency)

    @classmethod
    async def open(cls, options: KubeOptions | None = None) -> KubeApi:
        """Reads the credentials. Raises Unavailable (not retryable) when there are none."""
        options = options or KubeOptions()
        configuration = Configuration()
        try:
            if options.kubeconfig or not os.environ.get("KUBERNETES_SERVICE_HOST"):
                path = os.path.expanduser(options.kubeconfig) or None
                await config.load_kube_config(path, options.context or None, client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise Unavailable(
                f"no credentials for the Kubernetes API ({error}); set the kubeconfig, or run in a pod with a service "
                "account",
                retryable=False,
            ) from error
        # Watches and exec streams hold connections for as long as they live: `_places` bounds the rest.
        configuration.connection_pool_maxsize = 0
        return cls(ApiClient(configuration), options)

    async def close(self) -> None:
        """Closes all connections; watches end with an error."""
        await self._client.close()

    # -- verbs

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._call("get", "GET", kind, self.path(kind, namespace, name))

    async def list(self, kind: str, namespace: str, selector: str = "", *, page: int = 500, fields: str = "") -> Page:
        """All objects of a label and field selector, by pages; namespace empty: of all namespaces.

        Raises Expired when the list took longer than the server remembers.
        """
        items: list[Object] = []
        params = {"limit": str(page)}
        if selector:
            params["labelSelector"] = selector
        if fields:
            params["fieldSelector"] = fields
        while True:
            answer = await self._call("list", "GET", kind, self.path(kind, namespace), params=params)
            items.extend(answer.get("items") or ())
            metadata = answer["metadata"]
            if not metadata.get("continue"):
                return Page(items, metadata["resourceVersion"])
            params["continue"] = metadata["continue"]

    async def create(self, kind: str, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        params = {"dryRun": "All"} if dry_run else {}
        return await self._call("create", "POST", kind, self.path(kind, namespace), params=params, body=body)

    async def patch(
        self, kind: str, namespace: str, name: str, body: Mapping[str, Any], *, content_type: str = MERGE_PATCH
    ) -> Object:
        """metadata.resourceVersion in the body: only if the object is still that one (409 otherwise)."""
        path = self.path(kind, namespace, name)
        return await self._call("patch", "PATCH", kind, path, body=body, content_type=content_type)

    async def json_patch(self, kind: str, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]) -> Object:
        """Operations of RFC 6902, all or none; a `test` that fails is a 422."""
        path = self.path(kind, namespace, name)
        return await self._call("patch", "PATCH", kind, path, body=operations, content_type=JSON_PATCH)

    async def update(self, kind: str, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Replaces an object; its resourceVersion must be the newest (409 otherwise)."""
        return await self._call("update", "PUT", kind, self.path(kind, namespace, name), body=body)

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        grace_s: int | None = None,
        uid: str = "",
        version: str = "",
    ) -> bool:
        """False when it is gone already, or is not the one of this uid and version. Dependents go in the background."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if preconditions := {k: v for k, v in (("uid", uid), ("resourceVersion", version)) if v}:
            body["preconditions"] = preconditions
        try:
            await self._call("delete", "DELETE", kind, self.path(kind, namespace, name), body=body)
        except KubeError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def log(self, namespace: str, pod: str, container: str = "") -> str:
        params = {"container": container} if container else {}
        path = f"{self.path('pods', namespace, pod)}/log"
        return (await self._send("get", "GET", "pods/log", path, params)).decode(errors="replace")

    async def metrics(self) -> str:
        """The API server's own Prometheus page."""
        return (await self._send("get", "GET", "metrics", "metrics", {})).decode()

    async def version(self) -> str:
        """The server's version, e.g. "v1.34.4"."""
        return str((await self._call("get", "GET", "version", "version"))["gitVersion"])

    async def watch(
        self, kind: str, namespace: str, selector: str, version: str, *, quiet_s: float = 300.0
    ) -> AsyncIterator[Object]:
        """Events {"type": ADDED, MODIFIED, DELETED or BOOKMARK, "object": ...} after `version`, until its end.

        Raises:
            Expired: the server has forgotten that version.
            KubeError: the connection broke, or brought nothing for quiet_s seconds (a bookmark comes every minute).
        """
        params = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "labelSelector": selector}
        what = f"watch {kind}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._options.timeout_s, sock_read=quiet_s)
        path = self.path(kind, namespace)
        try:
            async with self._session.request("GET", self._url(path), **await self._arguments(params, timeout)) as reply:
                CALLS.labels("watch", kind, str(reply.status)).inc()
                if reply.status != 200:
                    raise from_status(reply.status, await reply.read(), what, reply.headers.get("Retry-After", ""))
                async for line in _lines(reply.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise from_status(int(status.get("code") or 0), json.dumps(status).encode(), what)
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(what, error) from error

    async def exec_stream(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> aiohttp.ClientWebSocketResponse:
        """A stream of `pods/exec`: binary messages whose first byte is the channel. The caller closes it."""
        params = [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("container", container)]
        params += [("command", word) for word in command]
        arguments = await self._arguments({}, None)
        what = f"exec pods/{pod}"
        try:
            return await self._session.ws_connect(
                self._url(f"{self.path('pods', namespace, pod)}/exec"),
                params=params,
                headers=arguments["headers"],
                protocols=_EXEC_PROTOCOLS,
                max_msg_size=0,
                server_hostname=self._server_hostname,
            )
        except aiohttp.WSServerHandshakeError as error:
            CALLS.labels("create", "pods/exec", str(error.status)).inc()
            raise KubeError(error.status, "Handshake", f"Kubernetes API: {what}: {error.message}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(what, error) from error

    # -- the wire

    def group(self, kind: str) -> str:
        """API group of a kind; empty for the core."""
        return RESOURCES[kind].prefix.split("/")[1] if RESOURCES[kind].prefix.startswith("apis/") else ""

    def path(self, kind: str, namespace: str, name: str = "") -> str:
        """Path of a collection or an object."""
        resource = RESOURCES.get(kind)
        if resource is None:
            raise InvalidSpec(f"kind {kind!r} is not known to this client", field="kind")
        parts = [resource.prefix]
        if resource.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(kind)
        if name:
            parts.append(name)
        return "/".join(parts)

    def _url(self, path: str) -> str:
        return f"{self._host}/{path}"

    async def _arguments(self, params: Mapping[str, str], timeout: aiohttp.ClientTimeout | None) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "longshore-sandbox-scheduler"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        arguments: dict[str, Any] = {"params": params, "headers": headers, "server_hostname": self._server_hostname}
        if timeout is not None:
            arguments["timeout"] = timeout
        return arguments

    async def _call(
        self,
        verb: str,
        method: str,
        kind: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        raw = await self._send(verb, method, kind, path, params or {}, body, content_type)
        answer: Object = json.loads(raw)
        return answer

    async def _send(
        self,
        verb: str,
        method: str,
        kind: str,
        path: str,
        params: Mapping[str, str],
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Tries again what certainly did not act: refused for load (429), or never sent; a broken GET too."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._places:
                    return await self._once(verb, method, kind, path, params, data, content_type)
            except KubeError as error:
                harmless = error.status == 429 or error.unsent or (error.status == 0 and method == "GET")
                if not harmless or attempt == _ATTEMPTS:
                    raise
                delay = error.retry_after_s or _FIRST_DELAY_S * 2 ** (attempt - 1)
            await asyncio.sleep(min(delay, _LONGEST_DELAY_S) * random.uniform(0.75, 1.25))
        raise AssertionError("unreachable")

    async def _once(
        self,
        verb: str,
        method: str,
        kind: str,
        path: str,
        params: Mapping[str, str],
        data: bytes | None,
        content_type: str,
    ) -> bytes:
        what = f"{verb} {path.partition('/namespaces/')[2] or path}"
        arguments = await self._arguments(params, aiohttp.ClientTimeout(total=self._options.timeout_s))
        if data is not None:
            arguments["data"] = data
            arguments["headers"]["Content-Type"] = content_type
        try:
            async with self._session.request(method, self._url(path), **arguments) as reply:
                raw = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            CALLS.labels(verb, kind, "0").inc()
            raise _no_answer(what, error) from error
        CALLS.labels(verb, kind, str(reply.status)).inc()
        if reply.status >= 400:
            raise from_status(reply.status, raw, what, reply.headers.get("Retry-After", ""))
        return raw


def _no_answer(what: str, error: BaseException) -> KubeError:
    unsent = isinstance(error, aiohttp.ClientConnectorError)
    text = str(error) or type(error).__name__
    return KubeError(0, type(error).__name__, f"Kubernetes API: {what}: no answer ({text})", unsent=unsent)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length; `readline` has a limit that a large object passes."""
    pending = bytearray()
    async for chunk in content.iter_any():
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for line in whole:
                if line:
                    yield line
