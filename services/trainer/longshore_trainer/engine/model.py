"""Loading the policy: a Hugging Face folder, optionally with a trainable LoRA adapter; and writing it for engines."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longshore_common.errors import InvalidSpec
from longshore_trainer.domain.hyperparameters import Hyperparameters, PolicyHyperparameters
from longshore_trainer.domain.job import Lora
from longshore_trainer.domain.vocabulary import Precision
from longshore_trainer.engine.policy_module import PolicyModule

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@dataclass
class Policy:
    """The model being trained and the policy it started from."""

    module: PolicyModule
    model: Any
    """The Hugging Face model, wrapped by PEFT when there is an adapter."""
    source: Path
    """The folder it came from; its tokenizer goes along with full weights."""
    has_adapter: bool
    frozen: PolicyModule | None
    """Copy of the starting policy when all parameters are trained."""

    @contextmanager
    def reference(self) -> Iterator[PolicyModule]:
        """The run's starting policy: the adapter switched off (the base weights are version 0), or the frozen copy."""
        if self.frozen is not None:
            yield self.frozen
        elif self.has_adapter:
            with self.model.disable_adapter():
                yield self.module
        else:
            raise InvalidSpec("this job has no reference policy", field="kl_coefficient")

    def trainable(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        """A PEFT adapter, or a whole Hugging Face folder with the tokenizer of the source."""
        self.model.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)
        if not self.has_adapter:
            copy_tokenizer(self.source, folder)


def load_policy(model_dir: Path, lora: Lora | None, hp: Hyperparameters, seed: int) -> Policy:
    """The policy of `model_dir` in float32. The adapter starts as a no-op, its random factor drawn from `seed`.

    Raises InvalidSpec when the folder holds no loadable model.
    """
    model = load_causal_lm(model_dir)
    reference = isinstance(hp, PolicyHyperparameters) and hp.kl_coefficient > 0
    frozen = _module(copy.deepcopy(model).requires_grad_(False), hp) if reference and lora is None else None
    if lora is not None:
        model = add_adapter(model, lora, model_dir, seed)
    return Policy(_module(model, hp), model, model_dir, lora is not None, frozen)


def load_causal_lm(model_dir: Path) -> Any:
    """The model of a Hugging Face folder, float32, evaluation mode (no dropout), local files only."""
    from transformers import AutoModelForCausalLM

    if not (model_dir / "config.json").is_file():
        raise InvalidSpec(f"{model_dir} holds no config.json: give a Hugging Face model folder", field="model_dir")
    try:
        model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidSpec(f"cannot load the model in {model_dir}: {error}", field="model_dir") from error
    return model.eval()


def add_adapter(model: Any, lora: Lora, model_dir: Path, seed: int) -> Any:
    """The model with a fresh LoRA adapter on all linear layers but the head."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(model_dir),
    )
    return get_peft_model(model, config).eval()


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files byte by byte, so that its digest stays the same."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            (target / name).write_bytes((source / name).read_bytes())


def _module(model: Any, hp: Hyperparameters) -> PolicyModule:
    policy = isinstance(hp, PolicyHyperparameters)
    return PolicyModule(
        model,
        hp.temperature if isinstance(hp, PolicyHyperparameters) else 1.0,
        entropy=policy,
        entropy_gradient=isinstance(hp, PolicyHyperparameters) and hp.entropy_coefficient > 0,
        autocast=hp.precision is Precision.BFLOAT16,
    )
