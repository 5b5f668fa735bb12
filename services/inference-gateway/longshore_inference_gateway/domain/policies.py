"""Policy versions: the persisted state machine behind PublishPolicy, and what lives in memory per alias."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from longshore_common.clock import Clock
from longshore_common.errors import Conflict, InvalidSpec, LongshoreError, NotFound, Unavailable
from longshore_common.log import get_logger
from longshore_inference_gateway.domain.engine_pool import EnginePool, EngineSlot
from longshore_inference_gateway.domain.engines import ServingSet
from longshore_inference_gateway.domain.models import (
    AliasRecord,
    ModelIdentity,
    PolicyKind,
    PolicyState,
    PolicyVersion,
    ServedBase,
    served_name,
)
from longshore_inference_gateway.domain.ports import Codec, EngineLauncher, GatewayStore
from longshore_inference_gateway.domain.weights import WeightsReader

log = get_logger(__name__)


@dataclass(slots=True)
class Alias:
    """One alias in memory. codec and engines: None until version 0 is there."""

    record: AliasRecord
    versions: dict[int, PolicyVersion] = field(default_factory=dict)
    codec: Codec | None = None
    engines: ServingSet | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: int | None = None
    """The version that engines are loading now: one that restarts meanwhile must hold it too."""


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What a publisher asks for. uri: a folder; digest: its tree digest."""

    run_id: str
    alias: str
    version: int
    incarnation: int
    kind: PolicyKind
    uri: str
    digest: str


@dataclass(frozen=True, slots=True)
class Published:
    """What came of it. engines: how many confirmed. seconds: how long it took."""

    policy: PolicyVersion
    engines: int
    seconds: float


class Policies:
    """Publishes, restores and retires policy versions.

    `in_use(alias)` gives the versions that open sessions are pinned to.
    """

    def __init__(
        self,
        *,
        store: GatewayStore,
        launcher: EngineLauncher,
        weights: WeightsReader,
        clock: Clock,
        make_pool: Callable[[], EnginePool],
        in_use: Callable[[str], set[int]],
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._weights = weights
        self._clock = clock
        self._make_pool = make_pool
        self._in_use = in_use
        self.aliases: dict[str, Alias] = {}

    def alias(self, name: str) -> Alias:
        """Raises NotFound when nothing was ever published under this name."""
        alias = self.aliases.get(name)
        if alias is None:
            raise NotFound(f"no alias {name!r}: publish version 0 (full weights) first")
        return alias

    def serving(self, name: str, version: int | None = None) -> tuple[Alias, PolicyVersion, Codec, ServingSet]:
        """The alias with a version that can be sampled from: the current one, or the given one.

        Raises:
            NotFound: no such alias or version.
            Conflict: that version has been unloaded, or the alias is retired.
            Unavailable: its engines are starting.
        """
        alias = self.alias(name)
        if alias.record.retired:
            raise Conflict(f"alias {name!r} is retired: its run is over")
        number = alias.record.current_version if version is None else version
        policy = alias.versions.get(number) if number is not None else None
        if policy is None:
            raise NotFound(f"alias {name!r} has no version {number}; publish it first")
        if policy.state is not PolicyState.SERVING:
            raise Conflict(f"{policy.served_name} is {policy.state}: only a serving version can be sampled from")
        if alias.codec is None or alias.engines is None:
            raise Unavailable(f"the engines of alias {name!r} are starting; try again")
        return alias, policy, alias.codec, alias.engines

    def find(self, name: str, version: int | None) -> tuple[PolicyVersion, int | None]:
        """A version (none given: the current one), and where the alias points. Raises NotFound."""
        alias = self.alias(name)
        current = alias.record.current_version
        number = current if version is None else version
        policy = alias.versions.get(number) if number is not None else None
        if policy is None:
            raise NotFound(f"alias {name!r} has no version {'yet' if number is None else number}")
        return policy, current

    def engines(self) -> list[tuple[EngineSlot, list[str]]]:
        """Engines with the names that they serve."""
        found: list[tuple[EngineSlot, list[str]]] = []
        for alias in self.aliases.values():
            names = [v.served_name for v in alias.versions.values() if v.state is PolicyState.SERVING]
            slots = alias.engines.pool.slots if alias.engines is not None else []
            found.extend((slot, names) for slot in slots)
        return found

    async def publish(self, request: PublishRequest) -> Published:
        """Makes a version the current one: every engine that serves confirms it, or nothing changes.

        Raises:
            Conflict: older incarnation, older version, or other content under the same version.
            InvalidSpec: the weights cannot be served, or are not those of the digest.
            NotFound: the alias has no version 0 yet.
            Internal, Unavailable: an engine did not load it; it was undone.
        """
        started = self._clock.monotonic()
        alias = self._alias_for(request)
        async with alias.lock:
            known = self._check(alias, request)
            await self._adopt_incarnation(alias, request.incarnation)
            if known is not None and not alias.record.retired:
                engines = len(alias.engines.pool.slots) if alias.engines is not None else 0
                return Published(known, engines, self._clock.monotonic() - started)
            if request.kind is PolicyKind.FULL:
                policy, engines = await self._publish_base(alias, request, known)
            else:
                policy, engines = await self._publish_adapter(alias, request)
            seconds = self._clock.monotonic() - started
            log.info("published", policy=policy.served_name, engines=engines, seconds=round(seconds, 3))
            await self._unload_unused(alias)
            return Published(policy, engines, seconds)

    def _alias_for(self, request: PublishRequest) -> Alias:
        alias = self.aliases.get(request.alias)
        if alias is not None:
            return alias
        if request.version != 0:
            raise NotFound(f"no alias {request.alias!r}: publish version 0 (full weights) first")
        record = AliasRecord(request.alias, request.run_id, None, request.incarnation, retired=False)
        return self.aliases.setdefault(request.alias, Alias(record))

    def _check(self, alias: Alias, request: PublishRequest) -> PolicyVersion | None:
        """Checks the request against what is recorded; gives the version when it is served already."""
        record = alias.record
        if request.incarnation < record.incarnation:
            raise Conflict(
                f"incarnation {request.incarnation} of {request.alias!r} is over: {record.incarnation} publishes now",
                details={"incarnation": str(record.incarnation)},
            )
        if request.run_id != record.run_id:
            raise Conflict(f"alias {request.alias!r} belongs to run {record.run_id!r}, not {request.run_id!r}")
        if (request.version == 0) != (request.kind is PolicyKind.FULL):
            raise InvalidSpec("version 0 is full weights; later versions are LoRA adapters", field="kind")
        known = alias.versions.get(request.version)
        if known is not None and known.digest != request.digest:
            raise Conflict(f"{known.served_name} is {known.digest}, not {request.digest}: a version never changes")
        if known is not None and known.state in (PolicyState.SERVING, PolicyState.UNLOADED):
            return known
        if record.retired:
            raise Conflict(f"alias {request.alias!r} is retired: publish its version 0 again to go on")
        if record.current_version is not None and request.version <= record.current_version:
            raise Conflict(f"{request.alias!r} is at version {record.current_version}: versions only grow")
        return None

    async def _adopt_incarnation(self, alias: Alias, incarnation: int) -> None:
        if incarnation > alias.record.incarnation:
            alias.record = replace(alias.record, incarnation=incarnation)
            if alias.versions:
                await self._store.save(alias.record)

    async def _publish_base(
        self, alias: Alias, request: PublishRequest, known: PolicyVersion | None
    ) -> tuple[PolicyVersion, int]:
        if known is not None:
            return await self._revive(alias, known)
        codec, identity = await self._weights.read_base(request.uri, request.digest)
        policy = self._new_version(request, identity)
        await self._save(alias, policy)
        engines = self._serving_set(alias, request.uri, request.digest)
        try:
            await engines.start()
        except LongshoreError as error:
            await self._fail(alias, policy, error)
            raise
        alias.codec, alias.engines = codec, engines
        return await self._switch(alias, policy), len(engines.pool.slots)

    async def _revive(self, alias: Alias, base: PolicyVersion) -> tuple[PolicyVersion, int]:
        alias.record = replace(alias.record, retired=False)
        alias.codec, _ = await self._weights.read_base(base.uri, base.digest)
        engines = self._serving_set(alias, base.uri, base.digest)
        try:
            await engines.start()
        except LongshoreError:
            alias.record = replace(alias.record, retired=True)
            raise
        alias.engines = engines
        await self._store.save(alias.record)
        return base, len(engines.pool.slots)

    async def _publish_adapter(self, alias: Alias, request: PublishRequest) -> tuple[PolicyVersion, int]:
        base = alias.versions.get(0)
        if base is None or base.state is not PolicyState.SERVING or alias.engines is None:
            raise NotFound(f"alias {request.alias!r} serves no version 0: publish full weights first")
        await self._weights.check_adapter(request.uri, request.digest, self._launcher.max_rank)
        await self._unload_unused(alias)
        self._require_room(alias)
        policy = self._new_version(request, base.identity)
        await self._save(alias, policy)
        alias.loading = policy.version
        try:
            engines = await alias.engines.load(policy.served_name, request.uri)
            return await self._switch(alias, policy), engines
        except LongshoreError as error:
            await self._fail(alias, policy, error)
            raise
        finally:
            alias.loading = None

    def _require_room(self, alias: Alias) -> None:
        live = [v for v in alias.versions.values() if v.state is PolicyState.SERVING and v.kind is PolicyKind.LORA]
        if len(live) >= self._launcher.max_adapters:
            raise Unavailable(
                f"{len(live)} versions of {alias.record.alias!r} are in use by open sessions and an engine holds "
                f"{self._launcher.max_adapters}: close sessions or raise engine_max_cpu_loras"
            )

    @staticmethod
    def _new_version(request: PublishRequest, identity: ModelIdentity) -> PolicyVersion:
        return PolicyVersion(
            request.alias, request.version, request.kind, PolicyState.PUBLISHING, request.uri, request.digest,
            request.incarnation, 0, identity,
        )  # fmt: skip

    async def _switch(self, alias: Alias, policy: PolicyVersion) -> PolicyVersion:
        """Every engine confirmed: the alias moves."""
        served = replace(policy, state=PolicyState.SERVING, published_at_ms=self._clock.now_ms())
        record = replace(alias.record, current_version=policy.version)
        await self._store.save(record, served)
        alias.record = record
        alias.versions[policy.version] = served
        return served

    async def _save(self, alias: Alias, policy: PolicyVersion) -> None:
        await self._store.save(alias.record, policy)
        alias.versions[policy.version] = policy

    async def _fail(self, alias: Alias, policy: PolicyVersion, error: LongshoreError) -> None:
        log.error("publish undone", policy=policy.served_name, error=error.message)
        await self._save(alias, replace(policy, state=PolicyState.FAILED, detail=error.message[:4000]))

    def _serving_set(self, alias: Alias, folder: str, digest: str) -> ServingSet:
        return ServingSet(
            base=ServedBase(served_name(alias.record.alias, 0), folder, digest),
            launcher=self._launcher,
            pool=self._make_pool(),
            clock=self._clock,
            adapters=lambda: self._live_adapters(alias),
        )

    @staticmethod
    def _live_adapters(alias: Alias) -> Iterable[tuple[str, str]]:
        return [
            (version.served_name, version.uri)
            for version in alias.versions.values()
            if version.kind is PolicyKind.LORA
            and (version.state is PolicyState.SERVING or version.version == alias.loading)
        ]

    async def _unload_unused(self, alias: Alias) -> None:
        if alias.engines is None:
            return
        kept = self._in_use(alias.record.alias) | {alias.record.current_version}
        for version in list(alias.versions.values()):
            idle = version.kind is PolicyKind.LORA and version.version not in kept
            if idle and version.state is PolicyState.SERVING:
                # State first: a restarting engine must not load it again.
                await self._save(alias, replace(version, state=PolicyState.UNLOADED))
                await alias.engines.unload(version.served_name)

    async def unload_unused(self, name: str) -> None:
        """Unloads versions that are neither current nor used by a session."""
        alias = self.aliases.get(name)
        if alias is None or alias.lock.locked():
            return
        async with alias.lock:
            await self._unload_unused(alias)

    async def retire(self, name: str) -> None:
        """The run is over: adapters unload, engines stop. Again: a no-op. Raises NotFound."""
        alias = self.alias(name)
        async with alias.lock:
            if alias.record.retired:
                return
            alias.record = replace(alias.record, retired=True)
            await self._store.save(alias.record)
            engines, alias.engines = alias.engines, None
            if engines is not None:
                for adapter, _ in self._live_adapters(alias):
                    await engines.unload(adapter)
                await engines.stop()

    async def restore(self) -> None:
        """After a restart: reads the database, and brings engines of live aliases up in the background."""
        for record in await self._store.aliases():
            alias = Alias(record)
            alias.versions = {policy.version: policy for policy in await self._store.policies(record.alias)}
            self.aliases[record.alias] = alias
        for alias in self.aliases.values():
            try:
                await self._resolve_base(alias)
            except InvalidSpec as error:
                # Its folder is gone or changed: that run cannot go on, the others can.
                log.error("alias not restored", alias=alias.record.alias, error=error.message)

    async def _resolve_base(self, alias: Alias) -> None:
        base = alias.versions.get(0)
        if base is None or alias.record.retired:
            return
        if base.state is PolicyState.PUBLISHING:
            # Its engine died with the old process: undone. The publisher repeats it.
            await self._save(alias, replace(base, state=PolicyState.FAILED, detail="the gateway restarted meanwhile"))
        elif base.state is PolicyState.SERVING:
            alias.codec, _ = await self._weights.read_base(base.uri, base.digest)
            alias.engines = self._serving_set(alias, base.uri, base.digest)

    async def resume(self) -> None:
        """Starts the engines of restored aliases, then finishes or undoes publishes that a restart interrupted."""
        live = [alias for alias in self.aliases.values() if alias.engines is not None]
        await asyncio.gather(*(self._resume(alias) for alias in live))

    async def _resume(self, alias: Alias) -> None:
        async with alias.lock:
            engines = alias.engines
            if engines is None or engines.pool.slots:
                return
            if not await engines.resume():
                log.error("no engine started: each is tried again", alias=alias.record.alias)
                return
            for version in [v for v in alias.versions.values() if v.state is PolicyState.PUBLISHING]:
                await self._finish(alias, engines, version)

    async def _finish(self, alias: Alias, engines: ServingSet, version: PolicyVersion) -> None:
        alias.loading = version.version
        try:
            await self._weights.check_adapter(version.uri, version.digest, self._launcher.max_rank)
            await engines.load(version.served_name, version.uri)
            await self._switch(alias, version)
        except LongshoreError as error:
            await self._fail(alias, version, error)
            return
        finally:
            alias.loading = None
        log.info("publish finished after restart", policy=version.served_name)

    async def close(self) -> None:
        """Lets go of all engines; what is live stays live in the database."""
        sets = [alias.engines for alias in self.aliases.values() if alias.engines is not None]
        await asyncio.gather(*(engines.release() for engines in sets))
        await self._launcher.close()
