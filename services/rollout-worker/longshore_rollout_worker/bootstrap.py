"""Wires the worker: the only file that picks concrete adapters."""

from longshore.rollout.v1 import rollout_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import SystemClock
from longshore_common.grpc_client import open_channel
from longshore_common.ids import new_id
from longshore_rollout_worker.api import metrics
from longshore_rollout_worker.api.servicer import RolloutServicer
from longshore_rollout_worker.clients.catalog import GrpcCatalog
from longshore_rollout_worker.clients.controller import GrpcController
from longshore_rollout_worker.clients.gateway import GrpcGateway
from longshore_rollout_worker.clients.models import HttpModels
from longshore_rollout_worker.clients.scheduler import GrpcScheduler
from longshore_rollout_worker.clients.trajectory import GrpcTrajectory
from longshore_rollout_worker.clients.verifier import GrpcVerifier
from longshore_rollout_worker.domain.attempt import AttemptRunner, AttemptSettings, Phase, Services
from longshore_rollout_worker.domain.harness import HarnessRegistry
from longshore_rollout_worker.domain.shell import ShellHarness
from longshore_rollout_worker.domain.vocabulary import AttemptEnd
from longshore_rollout_worker.domain.worker import Worker, WorkerSettings
from longshore_rollout_worker.settings import Settings


def _observe_phase(phase: Phase) -> None:
    metrics.PHASES.labels(phase.name).observe(phase.seconds)


def _observe_end(end: AttemptEnd) -> None:
    metrics.ENDS.labels(end.value).inc()


class _Connections:
    """Channels and clients that live as long as the app."""

    def __init__(self, settings: Settings) -> None:
        secret = settings.secret.get_secret_value()
        self.agents = AgentChannels()
        self.models = HttpModels(settings.capacity, settings.model_timeout_s)
        self._channels = {
            name: open_channel(getattr(settings, f"{name}_address"), secret)
            for name in ("controller", "scheduler", "gateway", "catalog", "verifier", "trajectory")
        }
        self.services = Services(
            controller=GrpcController(self._channels["controller"]),
            scheduler=GrpcScheduler(self._channels["scheduler"], self.agents, settings.claim_timeout_s),
            gateway=GrpcGateway(self._channels["gateway"]),
            catalog=GrpcCatalog(self._channels["catalog"]),
            verifier=GrpcVerifier(self._channels["verifier"], settings.verify_timeout_s),
            trajectory=GrpcTrajectory(self._channels["trajectory"]),
            models=self.models,
        )

    async def close(self) -> None:
        await self.models.close()
        await self.agents.close()
        for channel in self._channels.values():
            await channel.close()


async def build(settings: Settings) -> App:
    """The worker as an app; channels connect lazily, so other services may start later."""
    connections, clock = _Connections(settings), SystemClock()
    worker_id = new_id(settings.worker_name)
    runner = AttemptRunner(
        connections.services,
        HarnessRegistry({ShellHarness.name: ShellHarness.from_json}),
        clock,
        AttemptSettings(
            worker_id=worker_id,
            sandbox_ttl_s=settings.sandbox_ttl_s,
            session_slack_s=settings.session_slack_s,
            model_patience_s=settings.model_patience_s,
            service_patience_s=settings.service_patience_s,
            regrade=settings.regrade,
        ),
        _observe_phase,
    )
    worker = Worker(
        connections.services.controller,
        runner,
        clock,
        WorkerSettings(worker_id, settings.capacity, settings.poll_s, settings.heartbeat_s, settings.drain_s),
        _observe_end,
    )
    metrics.RUNNING.set_function(lambda: worker.status().running)
    servicer = RolloutServicer(worker)
    return App(
        name="rollout-worker",
        grpc=[
            GrpcEndpoint(
                settings.grpc_address,
                ("longshore.rollout.v1.RolloutService",),
                lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
                settings.secret.get_secret_value(),
            )
        ],
        background=[worker.run],
        on_stop=connections.close,
    )
