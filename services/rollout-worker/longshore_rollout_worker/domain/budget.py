"""An attempt's limits: turns, sampled tokens, and a clock that stops while calls wait in our queues."""

from dataclasses import dataclass

from longshore_rollout_worker.domain.vocabulary import Termination


@dataclass(frozen=True)
class AgentLimits:
    """Turns, sampled tokens and seconds at most; 0 or less: no limit."""

    max_turns: int = 0
    max_tokens: int = 0
    timeout_s: float = 0.0


class Budget:
    """What an attempt has used. Times are readings of one monotonic clock, seconds."""

    def __init__(self, limits: AgentLimits, started: float) -> None:
        self._limits, self._started = limits, started
        self.queued_s = 0.0
        self.turns = 0
        self.tokens = 0

    def add_queued(self, seconds: float) -> None:
        """Time that passed in a queue of ours; it is not the agent's."""
        self.queued_s += max(0.0, seconds)

    def add_turn(self, completion_tokens: int) -> None:
        """A reply was sampled."""
        self.turns += 1
        self.tokens += completion_tokens

    def elapsed_s(self, now: float) -> float:
        """The agent's own time; never below 0 (a queue time may be reported before the call's end)."""
        return max(0.0, now - self._started - self.queued_s)

    def remaining_s(self, now: float) -> float:
        """What is left of the agent's time; infinite without a limit."""
        if self._limits.timeout_s <= 0:
            return float("inf")
        return self._limits.timeout_s - self.elapsed_s(now)

    def exhausted(self, now: float) -> Termination | None:
        """The limit that forbids one more turn, if any; time first, then tokens, then turns."""
        if self.remaining_s(now) <= 0:
            return Termination.AGENT_TIMEOUT
        if 0 < self._limits.max_tokens <= self.tokens:
            return Termination.TOKEN_LIMIT
        if 0 < self._limits.max_turns <= self.turns:
            return Termination.TURN_LIMIT
        return None
