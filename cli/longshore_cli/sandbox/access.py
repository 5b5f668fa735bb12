"""The way to the scheduler and, through it, into one sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from longshore.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from longshore_cli.connect import Start, Target, agents_address, connected
from longshore_cli.errors import CliError
from longshore_cli.plain import to_plain
from longshore_cli.sandbox.ends import advice
from longshore_common.agent_client import AgentChannels, AgentClient
from longshore_common.errors import LongshoreError, NotFound

SCHEDULER = "sandbox-scheduler"


@contextlib.asynccontextmanager
async def scheduler(target: Target) -> AsyncIterator[Any]:
    """A stub of the scheduler that runs there. Raises CliError when none does."""
    async with connected(target, [SCHEDULER], start=Start.NEVER) as channels:
        yield sandbox_pb2_grpc.SandboxServiceStub(channels[SCHEDULER])


async def find(stub: Any, sandbox_id: str) -> dict[str, Any]:
    """One sandbox, ended ones too. Raises CliError when there is none."""
    try:
        answer = await stub.GetSandbox(sandbox_pb2.GetSandboxRequest(sandbox_id=sandbox_id))
    except NotFound as error:
        raise CliError(f"{error.message}: see `longshore sandbox list --all`") from error
    return to_plain(answer.sandbox)


@dataclass(frozen=True)
class Inside:
    """A running sandbox: its id, its agent, and the scheduler that granted it."""

    sandbox_id: str
    agent: AgentClient
    stub: Any

    async def explained(self, error: LongshoreError) -> LongshoreError | CliError:
        """The error, or, when the sandbox has ended meanwhile, why."""
        with contextlib.suppress(LongshoreError, CliError):
            sandbox = await find(self.stub, self.sandbox_id)
            if sandbox["state"] == "ended":
                return CliError(f"sandbox {self.sandbox_id} has ended meanwhile: {advice(sandbox)}")
        return error


@contextlib.asynccontextmanager
async def inside(target: Target, sandbox_id: str) -> AsyncIterator[Inside]:
    """A way into a running sandbox, relayed by the scheduler. Raises CliError when it is missing or has ended."""
    async with scheduler(target) as stub:
        sandbox = await find(stub, sandbox_id)
        if sandbox["state"] == "ended":
            raise CliError(f"sandbox {sandbox_id} has ended: {advice(sandbox)}")
        grant = await stub.GrantAccess(sandbox_pb2.GrantAccessRequest(sandbox_id=sandbox_id))
        channels = AgentChannels()
        address = agents_address(target) or grant.agent_address
        way = Inside(sandbox_id, channels.client(address, grant.agent_token), stub)
        try:
            yield way
        except LongshoreError as error:
            explained = await way.explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            await channels.close()
