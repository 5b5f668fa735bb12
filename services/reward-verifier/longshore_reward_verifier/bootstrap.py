"""Wires the verifier: the only file that picks concrete adapters."""

from longshore.verifier.v1 import verifier_pb2_grpc
from longshore_common.agent_client import AgentChannels
from longshore_common.app import App, GrpcEndpoint
from longshore_common.clock import SystemClock
from longshore_common.errors import Unavailable
from longshore_common.grpc_client import open_channel
from longshore_common.patience import Patience
from longshore_reward_verifier.api.servicer import VerifierServicer
from longshore_reward_verifier.clients.catalog import CatalogTasks
from longshore_reward_verifier.clients.scheduler import SchedulerSandboxes
from longshore_reward_verifier.domain.grading import GradeLimits, Grader
from longshore_reward_verifier.domain.verification import Verifier, VerifySettings
from longshore_reward_verifier.settings import Settings

_MB = 1024 * 1024


async def build(settings: Settings) -> App:
    """The verifier as an app; channels connect lazily, so other services may start later."""
    secret = settings.secret.get_secret_value()
    catalog = open_channel(settings.catalog_address, secret)
    scheduler = open_channel(settings.scheduler_address, secret)
    agents = AgentChannels()
    sandboxes = SchedulerSandboxes(scheduler, agents, settings.claim_timeout_s)
    limits = GradeLimits(settings.output_kb * 1024, settings.excerpt_chars, settings.reward_file_kb * 1024)
    patiently = Patience(SystemClock(), settings.service_patience_s, Unavailable)
    verifier = Verifier(
        CatalogTasks(catalog, settings.bundle_cache_mb * _MB, patiently),
        sandboxes,
        Grader(sandboxes, limits),
        VerifySettings(settings.max_state_mb * _MB, settings.max_regrades, settings.sandbox_slack_s),
    )
    servicer = VerifierServicer(verifier, agents, SystemClock(), settings.max_concurrent)

    async def stop() -> None:
        await agents.close()
        await catalog.close()
        await scheduler.close()

    return App(
        name="reward-verifier",
        grpc=[
            GrpcEndpoint(
                settings.grpc_address,
                ("longshore.verifier.v1.VerifierService",),
                lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server),
                secret,
            )
        ],
        on_stop=stop,
    )
