"""The built-in harness `shell`: a loop of message, command, observation, run from outside the sandbox."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from longshore_common.digests import digest
from longshore_common.errors import ErrorCode, LongshoreError
from longshore_common.sandbox_exec import Captured, ExecResult
from longshore_rollout_worker.domain.budget import Budget
from longshore_rollout_worker.domain.conversation import (
    BareConversation,
    Command,
    Conversation,
    Finish,
    ToolConversation,
)
from longshore_rollout_worker.domain.harness import HarnessContext, HarnessResult
from longshore_rollout_worker.domain.model_calls import LimitReached
from longshore_rollout_worker.domain.observation import CANNOT_RUN_STATUS
from longshore_rollout_worker.domain.vocabulary import Termination

# A live agent refuses a command for these: its folder or user is gone, there is no room, the line is too long.
_COMMAND_CODES = frozenset({ErrorCode.INVALID_SPEC, ErrorCode.QUOTA_EXCEEDED})
_OUTPUT_FACTOR = 8


class ShellProtocol(StrEnum):
    """How model and shell talk."""

    BARE = "bare"
    TOOLS = "tools"


class ShellConfig(BaseModel):
    """Configuration of the shell harness; a part of an attempt's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: ShellProtocol = ShellProtocol.BARE
    """`bare`: the message is the command. `tools`: one `bash` tool."""
    system_prompt: str = "Use the shell."
    observation_chars: int = Field(default=20, ge=0)
    """Characters of output that the model sees (per stream with `tools`)."""
    command_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds after which one command is killed; the attempt goes on."""
    shell: Literal["sh", "bash"] = "sh"


class ShellHarness:
    """See domain.harness.Harness."""

    name = "shell"
    version = "1"

    def __init__(self, config: ShellConfig) -> None:
        self._config = config
        self.config_digest = digest(config.model_dump(mode="json"))

    @classmethod
    def from_json(cls, config_json: str) -> "ShellHarness":
        """Raises ValueError when the configuration is wrong."""
        return cls(ShellConfig.model_validate_json(config_json or "{}"))

    async def run(self, context: HarnessContext) -> HarnessResult:
        """Works on the task; every limit is looked at before each model call."""
        clock = context.clock
        budget = Budget(context.limits, clock.monotonic())
        conversation = self._conversation(context.instruction)
        termination = budget.exhausted(clock.monotonic())
        while termination is None:
            termination = await self._turn(context, conversation, budget)
            termination = termination or budget.exhausted(clock.monotonic())
        return HarnessResult(termination, budget.turns, budget.elapsed_s(clock.monotonic()))

    def _conversation(self, instruction: str) -> Conversation:
        config = self._config
        kind = BareConversation if config.protocol is ShellProtocol.BARE else ToolConversation
        return kind(config.system_prompt, instruction, config.observation_chars)

    async def _turn(self, context: HarnessContext, conversation: Conversation, budget: Budget) -> Termination | None:
        reply = await context.model.complete(conversation.messages, conversation.tools)
        if isinstance(reply, LimitReached):
            return reply.termination
        budget.add_queued(reply.queued_s)
        budget.add_turn(reply.completion_tokens)
        if budget.remaining_s(context.clock.monotonic()) <= 0:
            return Termination.AGENT_TIMEOUT
        action = conversation.receive(reply)
        if isinstance(action, Finish):
            return action.termination
        for command in action:
            if command.error:
                conversation.observe(command, None)
                continue
            left = budget.remaining_s(context.clock.monotonic())
            if left <= 0:
                return Termination.AGENT_TIMEOUT
            conversation.observe(command, await self._run_command(context, command, left))
        return None

    async def _run_command(self, context: HarnessContext, command: Command, left_s: float) -> ExecResult:
        try:
            return await context.sandbox.exec(
                [self._config.shell, "-c", command.text],
                timeout_s=min(self._config.command_timeout_s, left_s),
                cwd=context.task.workdir,
                user=context.task.user,
                output_cap=max(1024, _OUTPUT_FACTOR * self._config.observation_chars),
            )
        except LongshoreError as error:
            if error.code not in _COMMAND_CODES:
                raise
            message = error.message.encode()
            return ExecResult(CANNOT_RUN_STATUS, stderr=Captured(message, total=len(message)))
