"""What a harness is, and the registry of those that a worker can run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from longshore_common.clock import Clock
from longshore_common.sandbox_exec import SandboxAgent
from longshore_rollout_worker.domain.budget import AgentLimits
from longshore_rollout_worker.domain.model_calls import Model
from longshore_rollout_worker.domain.ports import TaskInfo
from longshore_rollout_worker.domain.vocabulary import AttemptFailure, Failure, Termination


@dataclass(frozen=True)
class HarnessContext:
    """What a harness works with: the task's text, the policy, the sandbox, the limits."""

    instruction: str
    model: Model
    sandbox: SandboxAgent
    task: TaskInfo
    limits: AgentLimits
    clock: Clock


@dataclass(frozen=True)
class HarnessResult:
    """How the agent ended; agent_s is its own time without queues, seconds."""

    termination: Termination
    turns: int
    agent_s: float


class Harness(Protocol):
    """One way to let a policy work on a task. An instance belongs to one configuration and is shared by attempts."""

    name: str
    version: str
    config_digest: str

    async def run(self, context: HarnessContext) -> HarnessResult:
        """Works on the task until the agent ends or a limit is reached.

        Raises AttemptFailure, LeaseLost, and LongshoreError when the sandbox does not answer.
        """
        ...


HarnessFactory = Callable[[str], Harness]
"""Makes a harness from its configuration, JSON; raises ValueError when that is wrong."""


class HarnessRegistry:
    """Harnesses by name."""

    def __init__(self, factories: Mapping[str, HarnessFactory]) -> None:
        self._factories = dict(factories)
        self._made: dict[tuple[str, str], Harness] = {}

    def get(self, name: str, config_json: str) -> Harness:
        """The harness for this configuration. Raises AttemptFailure(harness_setup) for a name or config it refuses."""
        key = (name, config_json)
        if key not in self._made:
            if name not in self._factories:
                known = ", ".join(sorted(self._factories))
                raise AttemptFailure(Failure.HARNESS_SETUP, f"this worker has no harness {name!r}; it has: {known}")
            try:
                self._made[key] = self._factories[name](config_json)
            except ValueError as error:
                raise AttemptFailure(Failure.HARNESS_SETUP, f"harness {name}: wrong config: {error}") from error
        return self._made[key]
