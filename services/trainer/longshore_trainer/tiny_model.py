"""A tiny Qwen2 model with its own tokenizer, for laptops and tests.

`python -m longshore_trainer.tiny_model --out DIR --corpus FILE [--vocab 500] [--seed 1]`

Byte-level BPE with GPT-2's split, trained on the demonstrations' texts; weights random, the same for the same seed.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longshore_common.errors import InvalidSpec, LongshoreError

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ARCHITECTURE = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    # Near 1/sqrt(hidden): from the usual 0.02 a model this narrow needs twice the steps before it starts to copy names.
    "initializer_range": 0.06,
}


def read_texts(corpus: Path) -> list[str]:
    """Roles and contents of a demonstrations file, in order. Raises InvalidSpec naming the broken line."""
    texts: list[str] = []
    for number, line in enumerate(corpus.read_text().splitlines(), start=1):
        try:
            for message in json.loads(line)["messages"]:
                texts += [f"{message['role']}\n", str(message["content"])]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidSpec(f"{corpus}:{number} is no demonstration: {error!r}", field="corpus") from error
    if not texts:
        raise InvalidSpec(f"{corpus} holds no demonstrations", field="corpus")
    return texts


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with ChatML's special tokens as ids 0, 1 and 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_model(out: Path, tokenizer: Any, seed: int) -> int:
    """Writes the Hugging Face folder, atomically; returns the number of parameters."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=ids[END_OF_TEXT],
        eos_token_id=ids[IM_END],
        pad_token_id=ids[END_OF_TEXT],
        dtype=torch.float32,
        **ARCHITECTURE,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids[IM_END], ids[END_OF_TEXT]], pad_token_id=ids[END_OF_TEXT]
    )
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.save_pretrained(str(temporary), safe_serialization=True)
        tokenizer.save(str(temporary / "tokenizer.json"))
        (temporary / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2))
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return int(sum(weight.numel() for weight in model.parameters()))


def tokenizer_config() -> dict[str, Any]:
    """What transformers needs beside tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": ARCHITECTURE["max_position_embeddings"],
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [IM_START],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def build(out: Path, corpus: Path, vocab: int, seed: int) -> dict[str, Any]:
    """Makes the model folder. Raises InvalidSpec when it exists already or the corpus is unusable."""
    if out.exists():
        raise InvalidSpec(f"{out} exists already: remove it first", field="out")
    if not corpus.is_file():
        raise InvalidSpec(f"{corpus} does not exist", field="corpus")
    if vocab < 256 + len(SPECIAL_TOKENS):
        raise InvalidSpec(
            f"vocab must be at least {256 + len(SPECIAL_TOKENS)} (bytes and special tokens)", field="vocab"
        )
    tokenizer = train_tokenizer(read_texts(corpus), vocab)
    out.parent.mkdir(parents=True, exist_ok=True)
    parameters = write_model(out, tokenizer, seed)
    return {"model_dir": str(out), "parameters": parameters, "vocabulary": tokenizer.get_vocab_size(), "seed": seed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Exit 2 on bad input."""
    parser = argparse.ArgumentParser(prog="longshore_trainer.tiny_model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--corpus", type=Path, required=True, help="demonstrations, JSON lines")
    parser.add_argument("--vocab", type=int, default=500, help="tokens at most")
    parser.add_argument("--seed", type=int, default=1, help="of the weights")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(build(options.out, options.corpus, options.vocab, options.seed)))
    except LongshoreError as error:
        print(f"tiny_model: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
