"""Proof of capture: recomputes captured log-probabilities by a fresh forward pass of each policy version.

`python -m longshore_trainer.capture_check --input FILE [-o json] [--tolerance 1e-4]`, with FILE holding
`{"model_dir", "temperature"?, "turns": [{"prompt_ids", "completion_ids", "logprobs", "adapter_dir" or null}, ...]}`.
Exit 0 when every difference is within the tolerance, 1 when not, 2 on bad input.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longshore_common.errors import InvalidSpec, LongshoreError
from longshore_trainer.command import prepare_process
from longshore_trainer.domain.presets import invalid_spec

BASE = "base"


class CapturedTurn(BaseModel):
    """One captured turn and the policy that is said to have sampled it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt_ids: Annotated[list[int], Field(min_length=1)]
    completion_ids: list[int]
    logprobs: list[float]
    adapter_dir: Path | None = None


class CaptureInput(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model_dir: Path
    temperature: Annotated[float, Field(gt=0)] = 1.0
    turns: list[CapturedTurn]


def read_input(path: Path) -> CaptureInput:
    """Raises InvalidSpec: unreadable, or logprobs and ids of different length."""
    try:
        given = CaptureInput.model_validate_json(path.read_text())
    except OSError as error:
        raise InvalidSpec(f"cannot read {path}: {error.strerror}", field="input") from error
    except ValidationError as error:
        raise invalid_spec(error, "input") from error
    for index, turn in enumerate(given.turns):
        if len(turn.completion_ids) != len(turn.logprobs):
            raise InvalidSpec(
                f"turns[{index}] has {len(turn.completion_ids)} ids and {len(turn.logprobs)} logprobs", field="turns"
            )
    return given


def check(given: CaptureInput, tolerance: float) -> dict[str, Any]:
    """Largest absolute difference overall and per version (its folder's name), in nats."""
    versions: dict[str, dict[str, Any]] = {}
    for adapter in sorted({turn.adapter_dir for turn in given.turns}, key=lambda path: str(path or "")):
        turns = [turn for turn in given.turns if turn.adapter_dir == adapter and turn.completion_ids]
        differences = _differences(given.model_dir, adapter, turns, given.temperature)
        versions[adapter.name if adapter else BASE] = {
            "turns": len(turns),
            "tokens": sum(len(turn.completion_ids) for turn in turns),
            "max_abs_difference": max(differences, default=0.0),
        }
    largest = max((v["max_abs_difference"] for v in versions.values()), default=0.0)
    tokens = sum(v["tokens"] for v in versions.values())
    ok = tokens > 0 and largest <= tolerance
    return {"ok": ok, "tolerance": tolerance, "tokens": tokens, "max_abs_difference": largest, "versions": versions}


def _differences(
    model_dir: Path, adapter: Path | None, turns: Sequence[CapturedTurn], temperature: float
) -> list[float]:
    import torch

    from longshore_trainer.engine.model import load_causal_lm

    model = load_causal_lm(model_dir)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    result: list[float] = []
    with torch.inference_mode():
        for turn in turns:
            ids = torch.tensor([turn.prompt_ids + turn.completion_ids])
            logits_T_V = model(input_ids=ids, use_cache=False).logits[0, len(turn.prompt_ids) - 1 : -1].float()
            logprobs_T_V = torch.log_softmax(logits_T_V / temperature, dim=-1)
            own_T = logprobs_T_V.gather(-1, torch.tensor(turn.completion_ids).unsqueeze(-1)).squeeze(-1)
            result.append(float((own_T - torch.tensor(turn.logprobs)).abs().max()))
    return result


def show(report: dict[str, Any], output: str) -> str:
    """JSON or a small table."""
    if output == "json":
        return json.dumps(report)
    rows = [f"{'version':<16} {'turns':>6} {'tokens':>7} {'max |difference|':>17}"]
    rows += [
        f"{name:<16} {v['turns']:>6} {v['tokens']:>7} {v['max_abs_difference']:>17.2e}"
        for name, v in report["versions"].items()
    ]
    verdict = "within" if report["ok"] else "NOT within"
    return "\n".join([*rows, f"{report['max_abs_difference']:.2e} is {verdict} {report['tolerance']:.0e}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="longshore_trainer.capture_check", description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="captured turns, JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="nats (default 1e-4)")
    options = parser.parse_args(arguments)
    prepare_process()
    try:
        report = check(read_input(options.input), options.tolerance)
    except LongshoreError as error:
        print(f"capture_check: {error.message}", file=sys.stderr)
        return 2
    print(show(report, options.output))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
