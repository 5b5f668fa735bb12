"""The shell harness's two protocols as state machines: model message -> action -> observation. Pure.

Assistant messages are kept exactly as they came: the gateway recognises a turn by the messages before it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longshore_common.sandbox_exec import ExecResult
from longshore_rollout_worker.domain.observation import bare_observation, clean_command, tool_observation
from longshore_rollout_worker.domain.vocabulary import Termination

DONE = "done"
BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command in the shell of the task's machine.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}


@dataclass(frozen=True)
class ModelReply:
    """One sampled message: as it came, why it ended, its tokens, and the seconds that its call was queued."""

    message: Mapping[str, Any]
    finish_reason: str
    completion_tokens: int = 0
    queued_s: float = 0.0

    @property
    def content(self) -> str:
        """The text; empty when there is none."""
        value = self.message.get("content")
        return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Command:
    """A command to run. error is set instead when the model's call cannot be run; it is then the observation."""

    text: str
    call_id: str = ""
    error: str = ""


@dataclass(frozen=True)
class Finish:
    """The agent ended."""

    termination: Termination


class Conversation(Protocol):
    """One protocol between model and shell."""

    messages: list[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None

    def receive(self, reply: ModelReply) -> Sequence[Command] | Finish:
        """Takes the model's message; says what to run, in order, or that the agent ended."""
        ...

    def observe(self, command: Command, result: ExecResult | None) -> None:
        """Takes what a command gave; None when it was not run because of its error."""
        ...


class BareConversation:
    """The whole content is the command; `done` ends."""

    tools: Sequence[dict[str, Any]] | None = None

    def __init__(self, system_prompt: str, instruction: str, observation_chars: int) -> None:
        self.messages = _opening(system_prompt, instruction)
        self._chars = observation_chars

    def receive(self, reply: ModelReply) -> Sequence[Command] | Finish:
        self.messages.append({"role": "assistant", "content": reply.content})
        text = clean_command(reply.content)
        return Finish(Termination.AGENT_DONE) if text.strip() == DONE else (Command(text),)

    def observe(self, command: Command, result: ExecResult | None) -> None:
        text = command.error if result is None else bare_observation(result, self._chars)
        self.messages.append({"role": "user", "content": text})


class ToolConversation:
    """One `bash` tool; a message without tool calls ends."""

    tools: Sequence[dict[str, Any]] | None = (BASH_TOOL,)

    def __init__(self, system_prompt: str, instruction: str, observation_chars: int) -> None:
        self.messages = _opening(system_prompt, instruction)
        self._chars = observation_chars

    def receive(self, reply: ModelReply) -> Sequence[Command] | Finish:
        kept = {key: reply.message[key] for key in ("content", "tool_calls") if key in reply.message}
        self.messages.append({"role": "assistant", **kept})
        calls = reply.message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            # A message cut off by the token limit may have been about to call a tool: that is not "done".
            cut_off = reply.finish_reason == "length"
            return Finish(Termination.TOKEN_LIMIT if cut_off else Termination.AGENT_DONE)
        return tuple(_command_of(call) for call in calls)

    def observe(self, command: Command, result: ExecResult | None) -> None:
        text = command.error if result is None else tool_observation(result, self._chars)
        self.messages.append({"role": "tool", "tool_call_id": command.call_id, "content": text})


def _opening(system_prompt: str, instruction: str) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": instruction}]


def _command_of(call: Any) -> Command:
    if not isinstance(call, dict):
        return Command("", error="error: the tool call is not an object")
    call_id = str(call.get("id", ""))
    function = call.get("function")
    if not isinstance(function, dict) or function.get("name") != BASH_TOOL["function"]["name"]:
        name = function.get("name") if isinstance(function, dict) else None
        return Command("", call_id, f"error: there is no tool {name!r}; the only tool is 'bash'")
    try:
        arguments = json.loads(str(function.get("arguments", "")))
    except (ValueError, RecursionError):
        return Command("", call_id, "error: the arguments are not JSON")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if not isinstance(command, str):
        return Command("", call_id, 'error: the arguments must be {"command": "..."}')
    return Command(clean_command(command), call_id)
