"""Sandboxes as pods: one write to make one, one to claim it, one to delete it; everything else comes by one watch."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from longshore_common.clock import Clock
from longshore_common.errors import InvalidSpec, LongshoreError, PermissionDenied, QuotaExceeded, Unavailable
from longshore_common.log import get_logger
from longshore_sandbox_scheduler.domain import metrics
from longshore_sandbox_scheduler.domain.model import EndReason, Image, NetworkClass, TaskEnvironment, Template
from longshore_sandbox_scheduler.domain.runtime import (
    ClaimTag,
    PreparedImage,
    RemoteAgent,
    Removed,
    SandboxEnd,
    SandboxFailed,
    WarmSandbox,
)
from longshore_sandbox_scheduler.runtimes.pod import pod_spec, reasons
from longshore_sandbox_scheduler.runtimes.pod.agent_prober import AgentProber
from longshore_sandbox_scheduler.runtimes.pod.agent_ways import AgentWays, PodAddresses
from longshore_sandbox_scheduler.runtimes.pod.images import PodImages, layered
from longshore_sandbox_scheduler.runtimes.pod.informer import Informer
from longshore_sandbox_scheduler.runtimes.pod.kube_api import KubeApi
from longshore_sandbox_scheduler.runtimes.pod.kube_errors import KubeError
from longshore_sandbox_scheduler.runtimes.pod.layer_sender import LayerSender
from longshore_sandbox_scheduler.runtimes.pod.placement import NETWORK, Placement
from longshore_sandbox_scheduler.runtimes.pod.pod_view import pod_view
from longshore_sandbox_scheduler.runtimes.pod.prepull import PrePuller
from longshore_sandbox_scheduler.runtimes.pod.startup_checks import sweep_probes
from longshore_sandbox_scheduler.runtimes.pod.warm_index import WarmIndex

log = get_logger(__name__)

Pod = Mapping[str, Any]

ENFORCEMENT = {
    "memory": "cgroup", "cpus": "cgroup", "storage": "kubelet-eviction", "processes": "agent-watchdog",
    "file_size": "rlimit",
}  # fmt: skip
_POD_GRACE_S = 1


class Networks(Protocol):
    """What the runtime needs of network isolation: `NetworkKeeper`."""

    @property
    def supported(self) -> frozenset[NetworkClass]: ...

    async def start(self) -> None: ...

    async def ensure(self, network: Any) -> str: ...

    def proxy_env(self, network: Any) -> Mapping[str, str]: ...

    @property
    def canaries(self) -> Sequence[str]: ...

    def nameservers(self, network: Any) -> Sequence[str]: ...

    def sweep(self, used: Collection[str], dry_run: bool = False) -> Coroutine[Any, Any, Sequence[Removed]]: ...


@dataclass(frozen=True)
class PodRuntimeOptions:
    """Times in seconds."""

    start_timeout_s: float = 120.0
    """From the pod's creation until its agent answers."""
    start_grace_s: float = 180.0
    """Claimed pods that no record names are left alone for so long: their record may be on its way."""
    graces: reasons.Graces = field(default_factory=reasons.Graces)


class PodSandbox:
    """`domain.runtime.RunningSandbox` of a pod, fenced on its UID and container."""

    def __init__(self, runtime: PodRuntime, pod: Pod) -> None:
        self.sandbox_id: str = pod["metadata"]["name"]
        self.instance: str = pod["metadata"]["uid"]
        self.node: str = pod["spec"].get("nodeName", "")
        self.container = reasons.container_id(pod)
        self.image_digest = reasons.image_digest(pod)
        self.ended: asyncio.Future[SandboxEnd] = asyncio.get_running_loop().create_future()
        self._runtime = runtime
        self._pod_ip: str = pod["status"].get("podIP", "")

    @property
    def enforcement(self) -> Mapping[str, str]:
        return ENFORCEMENT

    @property
    def access(self) -> RemoteAgent:
        return self._runtime.way_in(self.sandbox_id, self.instance, self._pod_ip)

    async def usage_over_limit(self) -> str | None:
        return None

    async def stop(self, end: SandboxEnd) -> None:
        if not self.ended.done():
            self.ended.set_result(end)
        await self._runtime.delete_pod(self.sandbox_id, self.instance)

    def note(self, pod: Pod, *, deleted: bool) -> bool:
        """Takes in what the API server says; whether it has ended by itself now."""
        if self.ended.done():
            return False
        end = reasons.end_of(pod, deleted=deleted)
        if end is None and self.container and reasons.container_id(pod) not in ("", self.container):
            end = SandboxEnd(EndReason.LOST, "its container was replaced by another one")
        if end is None:
            return False
        self.ended.set_result(end)
        return True


@dataclass(eq=False)
class _Starting:
    """Somebody waits for this pod to run."""

    settled: asyncio.Future[Pod | SandboxEnd]


@dataclass(frozen=True)
class _Unseen:
    """A pod that was asked for and that the watch has not brought yet: without these, lag would make pods twice."""

    template_key: str
    warm: bool
    asked_at: float


class PodRuntime:
    """`domain.runtime.WarmRuntime`."""

    outlives_scheduler = True

    def __init__(
        self,
        api: KubeApi,
        place: Placement,
        networks: Networks,
        images: PodImages,
        prober: AgentProber,
        sender: LayerSender,
        clock: Clock,
        pods: pod_spec.PodOptions,
        options: PodRuntimeOptions,
        checks: Callable[[], Awaitable[None]] | None = None,
        ways: AgentWays | None = None,
        prepuller: PrePuller | None = None,
    ) -> None:
        """checks: what must hold before anything starts; raises Unavailable. ways: none: the pods' own addresses."""
        self._api = api
        self._place = place
        self._networks = networks
        self._images = images
        self._prober = prober
        self._sender = sender
        self._clock = clock
        self._pods = pods
        self._options = options
        self._checks = checks
        self._ways: AgentWays = ways or PodAddresses()
        self._prepuller = prepuller
        selector = place.selector(pod_spec.COMPONENT)
        self._informer = Informer(api, "pods", place.namespace, selector, self._pod_changed, pod_view)
        self._claimed: dict[str, PodSandbox] = {}
        self._starting: dict[str, _Starting] = {}
        self._ready: dict[str, str] = {}
        self._index = WarmIndex()
        self._unseen: dict[str, _Unseen] = {}
        self._ends: dict[str, SandboxEnd] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    # -- life

    @property
    def name(self) -> str:
        return self._ways.runtime_name

    @property
    def networks(self) -> frozenset[NetworkClass]:
        return self._networks.supported

    @property
    def default_network(self) -> NetworkClass:
        return NetworkClass.GATEWAY_ONLY

    @property
    def population(self) -> int:
        """Pods that have not ended; terminating ones still hold their resources."""
        return len(self._informer.objects) + len(self._unseen)

    async def start(self) -> None:
        if self._checks is not None:
            await self._checks()
        await self._networks.start()
        self._watching = asyncio.create_task(self._informer.run())
        self._ticking = asyncio.create_task(self._look_at_starts())
        async with asyncio.timeout(self._options.start_timeout_s):
            await self._informer.synced()
        if self._prepuller is not None:
            await self._prepuller.start()

    async def stop(self) -> None:
        for task in (self._watching, self._ticking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for work in list(self._background):
            work.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._ways.close()
        await self._sender.close()
        if self._prepuller is not None:
            await self._prepuller.stop()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- what the watch brings

    def _pod_changed(self, name: str, before: Pod | None, now: Pod | None) -> None:
        pod = now if now is not None else before
        assert pod is not None
        self._unseen.pop(name, None)
        deleted = now is None
        if deleted or not self._is_warm(pod):
            self._index.remove(name)
        self._tell_start(name, pod, deleted)
        sandbox = self._claimed.get(name)
        if sandbox is not None and sandbox.instance == pod["metadata"]["uid"]:
            if sandbox.note(pod, deleted=deleted) and not deleted:
                self._spawn(self.delete_pod(name, sandbox.instance))
        elif not deleted and self._state(pod) == pod_spec.WARM:
            self._warm_changed(name, pod)
        if deleted:
            self._forget(name, pod)

    def _forget(self, name: str, pod: Pod) -> None:
        self._claimed.pop(name, None)
        self._ready.pop(name, None)
        self._ways.forget(pod["metadata"]["uid"])
        end = reasons.end_of(pod, deleted=True)
        if end is not None:
            self._ends[pod["metadata"]["uid"]] = end
            while len(self._ends) > 10_000:
                self._ends.pop(next(iter(self._ends)))

    def _warm_changed(self, name: str, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        if reasons.end_of(pod, deleted=False) is not None:
            self._ready.pop(name, None)
            self._spawn(self.delete_pod(name, uid))
        elif reasons.is_running(pod) and name not in self._ready:
            self._ready[name] = ""  # Being asked.
            self._spawn(self._note_ready(name, uid, pod["status"]["podIP"]))

    async def _note_ready(self, name: str, uid: str, address: str) -> None:
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._prober.answers(self.way_in(name, uid, address).address, name, uid)
        except (TimeoutError, PermissionDenied) as error:
            log.warning("a warm sandbox never became ready", sandbox_id=name, error=str(error))
            await self.delete_pod(name, uid)
            return
        pod = self._informer.objects.get(name)
        if name in self._ready and pod is not None and pod["metadata"]["uid"] == uid:
            self._ready[name] = uid
            if self._is_warm(pod):
                self._index.add(pod["metadata"]["labels"][pod_spec.TEMPLATE], name)

    def _is_warm(self, pod: Pod) -> bool:
        return self._state(pod) == pod_spec.WARM and "deletionTimestamp" not in pod["metadata"]

    def _state(self, pod: Pod) -> str:
        return str(pod["metadata"]["labels"].get(pod_spec.STATE, ""))

    def _tell_start(self, name: str, pod: Pod, deleted: bool) -> None:
        starting = self._starting.get(name)
        if starting is None or starting.settled.done():
            return
        end = reasons.end_of(pod, deleted=deleted) or reasons.start_problem(
            pod, self._clock.now_ms() / 1000, self._options.graces
        )
        if end is not None:
            starting.settled.set_result(end)
        elif reasons.is_running(pod):
            starting.settled.set_result(pod)

    async def _look_at_starts(self) -> None:
        """Graces end without the API server saying anything."""
        while True:
            await self._clock.sleep(1.0)
            for name in list(self._starting):
                pod = self._informer.objects.get(name)
                if pod is not None:
                    self._tell_start(name, pod, deleted=False)
            await self._give_up_warm_starts()
            self._spawn(self._sender.tidy())
            since = self._clock.monotonic() - self._options.start_timeout_s
            # Made and gone again while the watch was broken.
            self._unseen = {name: one for name, one in self._unseen.items() if one.asked_at > since}

    async def _give_up_warm_starts(self) -> None:
        now_s = self._clock.now_ms() / 1000
        for name, pod in list(self._informer.objects.items()):
            if self._state(pod) != pod_spec.WARM or name in self._ready:
                continue
            problem = reasons.start_problem(pod, now_s, self._options.graces)
            if problem is not None and "deletionTimestamp" not in pod["metadata"]:
                log.warning("a warm sandbox did not start", sandbox_id=name, reason=problem.reason, why=problem.detail)
                await self.delete_pod(name, pod["metadata"]["uid"])

    # -- images

    async def prepare(self, task: TaskEnvironment, bundle: Callable[[], Awaitable[bytes]]) -> PreparedImage:
        prepared = await self._images.prepare(task, bundle)
        if self._prepuller is not None:
            self._prepuller.ask(prepared.image)
        return prepared

    # -- starting and claiming

    async def launch(self, sandbox_id: str, template: Template, tag: ClaimTag) -> PodSandbox:
        tar = await self._images.layer(template.image)
        starting = _Starting(asyncio.get_running_loop().create_future())
        self._starting[sandbox_id] = starting
        try:
            uid = await self._create(sandbox_id, template, tag)
            try:
                async with asyncio.timeout(self._options.start_timeout_s):
                    sandbox = await self._started(starting, sandbox_id, uid)
                    await self._fill(sandbox, template.image, tar)
                    return sandbox
            except TimeoutError:
                text = f"its agent did not answer within {self._options.start_timeout_s:.0f} s"
                raise SandboxFailed(EndReason.START_FAILED, f"sandbox {sandbox_id}: {text}") from None
        except BaseException:
            await asyncio.shield(self.delete_pod(sandbox_id, ""))
            raise
        finally:
            del self._starting[sandbox_id]

    async def _started(self, starting: _Starting, sandbox_id: str, uid: str) -> PodSandbox:
        found = await starting.settled
        if isinstance(found, SandboxEnd):
            raise SandboxFailed(found.reason, f"sandbox {sandbox_id} did not start: {found.detail or found.reason}")
        sandbox = self._sandbox(found)
        if sandbox.instance != uid:
            raise SandboxFailed(EndReason.LOST, f"sandbox {sandbox_id} was replaced by another pod of its name")
        await _unless_ended(sandbox, self._prober.answers(sandbox.access.address, sandbox_id, uid))
        return sandbox

    async def _fill(self, sandbox: PodSandbox, image: Image, tar: bytes) -> None:
        """Puts the image's layer into a sandbox whose agent answers.

        Raises InvalidSpec when the layer cannot be put over this base, SandboxFailed.
        """
        if not image.layer:
            return
        began = self._clock.monotonic()
        address = sandbox.access.address
        sending = self._sender.send(address, sandbox.sandbox_id, sandbox.instance, image.layer, tar)
        try:
            await _unless_ended(sandbox, sending)
        except InvalidSpec as error:
            raise InvalidSpec(
                f"environment/Dockerfile: COPY over its base: {error.message}", field=error.field
            ) from error
        except QuotaExceeded as error:
            raise SandboxFailed(EndReason.START_FAILED, f"the task's files do not fit: {error.message}") from error
        sandbox.image_digest = layered(sandbox.image_digest or image.base_digest, image.layer)
        metrics.LAYER_SECONDS.observe(self._clock.monotonic() - began)

    def _sandbox(self, pod: Pod) -> PodSandbox:
        name = pod["metadata"]["name"]
        known = self._claimed.get(name)
        if known is None or known.instance != pod["metadata"]["uid"]:
            known = self._claimed[name] = PodSandbox(self, pod)
        return known

    async def _create(self, sandbox_id: str, template: Template, tag: ClaimTag | None) -> str:
        label = await self._networks.ensure(template.network)
        claim = None
        if tag is not None:
            claim = pod_spec.claim_annotations(tag, self._clock.now_ms() / 1000)
        body = pod_spec.pod_of(
            sandbox_id,
            template,
            self._place,
            label,
            self._networks.proxy_env(template.network),
            self._pods,
            claim,
            deadline_s=math.ceil(tag.deadline_s) if tag else 0,
            canaries=self._networks.canaries,
            nameservers=self._networks.nameservers(template.network),
        )
        self._unseen[sandbox_id] = _Unseen(template.key, tag is None, self._clock.monotonic())
        try:
            made = await self._api.create("pods", self._place.namespace, body)
        except BaseException as error:
            self._unseen.pop(sandbox_id, None)
            if isinstance(error, KubeError):
                raise _create_error(sandbox_id, error) from error
            raise
        if sandbox_id in self._informer.objects:
            self._unseen.pop(sandbox_id, None)
        return str(made["metadata"]["uid"])

    def warm(self) -> Sequence[WarmSandbox]:
        found = [pod for pod in self._informer.objects.values() if self._is_warm(pod)]
        found.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        unseen = [WarmSandbox(name, one.template_key, ready=False) for name, one in self._unseen.items() if one.warm]
        return [*(self._warm_sandbox(pod) for pod in found), *unseen]

    def _warm_sandbox(self, pod: Pod) -> WarmSandbox:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        return WarmSandbox(name, pod["metadata"]["labels"][pod_spec.TEMPLATE], self._ready.get(name) == uid)

    def ready(self, template_key: str) -> Iterable[str]:
        return self._index.ready(template_key)

    async def start_warm(self, sandbox_id: str, template: Template) -> None:
        await self._create(sandbox_id, template, None)

    async def claim(self, sandbox_id: str, template: Template, tag: ClaimTag) -> PodSandbox | None:
        pod = self._informer.objects.get(sandbox_id)
        if pod is None or self._state(pod) != pod_spec.WARM:
            return None
        tar = await self._images.layer(template.image)  # Before the pod is taken: making it again may fail.
        state = pod_spec.STATE.replace("/", "~1")
        now_s = self._clock.now_ms() / 1000
        # Counted from the pod's own start, not from the claim.
        deadline_s = math.ceil(reasons.age_s(pod, now_s) + tag.deadline_s)
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
            {"op": "test", "path": f"/metadata/labels/{state}", "value": pod_spec.WARM},
            {"op": "replace", "path": f"/metadata/labels/{state}", "value": pod_spec.CLAIMED},
            {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": deadline_s},
        ]
        # One by one: others (network plugins) annotate pods too.
        operations += [
            {"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}
            for key, value in pod_spec.claim_annotations(tag, now_s).items()
        ]
        self._index.remove(sandbox_id)
        try:
            claimed = await self._api.json_patch("pods", self._place.namespace, sandbox_id, operations)
        except KubeError as error:
            if error.status in (404, 409, 422):
                return None
            raise
        if "deletionTimestamp" in claimed["metadata"] or reasons.end_of(claimed, deleted=False) is not None:
            await self.delete_pod(sandbox_id, claimed["metadata"]["uid"])
            return None
        return await self._filled(self._sandbox(claimed), template.image, tar)

    async def _filled(self, sandbox: PodSandbox, image: Image, tar: bytes) -> PodSandbox | None:
        """A claimed warm sandbox with its layer; None when it broke on the way, and is deleted."""
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._fill(sandbox, image, tar)
        except BaseException as error:
            await asyncio.shield(self.delete_pod(sandbox.sandbox_id, sandbox.instance))
            if isinstance(error, InvalidSpec) or not isinstance(error, LongshoreError | TimeoutError):
                raise
            log.warning("a warm sandbox broke at its claim", sandbox_id=sandbox.sandbox_id, error=str(error))
            return None
        return sandbox

    async def discard(self, sandbox_id: str) -> None:
        pod = self._informer.objects.get(sandbox_id)
        if pod is not None and self._state(pod) == pod_spec.WARM:
            # By version: not if somebody claims it at this moment.
            version = pod["metadata"]["resourceVersion"]
            await self._api.delete(
                "pods",
                self._place.namespace,
                sandbox_id,
                grace_s=_POD_GRACE_S,
                uid=pod["metadata"]["uid"],
                version=version,
            )

    async def find(self, sandbox_id: str, instance: str) -> PodSandbox | SandboxEnd:
        pod: Pod | None = self._informer.objects.get(sandbox_id)
        if pod is None or pod["metadata"]["uid"] != instance:
            if instance in self._ends:
                return self._ends[instance]
            # Another scheduler may have made it just now, before our watch tells.
            pod = await self._read(sandbox_id)
            if pod is None or pod["metadata"]["uid"] != instance:
                return self._ends.get(instance, SandboxEnd(EndReason.LOST, "its pod is gone"))
        end = reasons.end_of(pod, deleted=False)
        if end is not None:
            self._spawn(self.delete_pod(sandbox_id, instance))
            return end
        return self._sandbox(pod)

    async def _read(self, name: str) -> Pod | None:
        try:
            return pod_view(await self._api.get("pods", self._place.namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def way_in(self, sandbox_id: str, instance: str, pod_ip: str) -> RemoteAgent:
        """The way to a pod's agent."""
        host = f"[{pod_ip}]" if ":" in pod_ip else pod_ip
        return self._ways.way_in(sandbox_id, instance, f"{host}:{pod_spec.AGENT_PORT}")

    # -- ending

    async def delete_pod(self, name: str, uid: str) -> None:
        """Deletes a pod of this uid (empty: of any); one that is gone is no error."""
        pod = self._informer.objects.get(name)
        if pod is not None and uid in ("", pod["metadata"]["uid"]) and "deletionTimestamp" in pod["metadata"]:
            return
        with contextlib.suppress(Unavailable):  # A sweep gets it.
            await self._api.delete("pods", self._place.namespace, name, grace_s=_POD_GRACE_S, uid=uid)

    async def sweep(self, keep: Collection[str], dry_run: bool = False) -> Sequence[Removed]:
        removed = []
        kept = set(keep) | self._starting.keys()
        now_s = self._clock.now_ms() / 1000
        for name, pod in list(self._informer.objects.items()):
            why = self._orphaned(name, pod, kept, now_s)
            if why:
                removed.append(Removed("Pod", name, why))
                if not dry_run:
                    await self.delete_pod(name, pod["metadata"]["uid"])
        for what, part in self._other_sweeps(dry_run).items():
            try:
                removed += await part
            except LongshoreError as error:
                log.warning("a part could not be swept", part=what, error=error.message)
        return removed

    def _other_sweeps(self, dry_run: bool) -> Mapping[str, Coroutine[Any, Any, Sequence[Removed]]]:
        used = {pod["metadata"]["labels"].get(NETWORK, "") for pod in self._informer.objects.values()}
        parts: dict[str, Coroutine[Any, Any, Sequence[Removed]]] = {
            "networks": self._networks.sweep(used, dry_run),
            "start-up probes": sweep_probes(self._api, self._place, dry_run),
        }
        if self._prepuller is not None:
            parts["pre-pulled images"] = self._prepuller.sweep(dry_run)
        return parts

    def _orphaned(self, name: str, pod: Pod, keep: Collection[str], now_s: float) -> str:
        if name in keep or "deletionTimestamp" in pod["metadata"]:
            return ""
        if self._state(pod) == pod_spec.WARM:
            ended = reasons.end_of(pod, deleted=False)
            return f"a warm pod that ended: {ended.detail}" if ended else ""
        claimed_at = pod["metadata"].get("annotations", {}).get(pod_spec.CLAIMED_AT, "0")
        if now_s - float(claimed_at) > self._options.start_grace_s:
            return "claimed, and on no record"
        return ""


async def _unless_ended(sandbox: PodSandbox, work: Coroutine[Any, Any, None]) -> None:
    """Raises SandboxFailed when the sandbox ends first."""
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, sandbox.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if sandbox.ended.done():
            end = sandbox.ended.result()
            raise SandboxFailed(end.reason, f"sandbox {sandbox.sandbox_id} ended as it started: {end.detail}")
        task.result()
    finally:
        task.cancel()


def _create_error(sandbox_id: str, error: KubeError) -> LongshoreError:
    if error.status == 403 and "exceeded quota" in error.message:
        return SandboxFailed(EndReason.QUOTA, f"sandbox {sandbox_id}: {error.message}", retryable=True)
    if error.status in (400, 403, 404, 422):
        return SandboxFailed(EndReason.START_FAILED, f"sandbox {sandbox_id} was refused: {error.message}")
    return error
