"""A tiny Qwen2 folder with a byte-level BPE tokenizer, and random LoRA adapters for it: what the slow tests serve."""

import json
import struct
from pathlib import Path
from typing import Any

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CORPUS = [
    "Use the shell.",
    "Count the lines of data.txt into answer.txt",
    "wc -l < data.txt > answer.txt",
    "sort names.txt | uniq -c | head -n 3 > top.txt",
    "grep -c error log.txt > count.txt",
    "exit 0",
    "exit 1 wc: data.txt: No such file or directory",
    "cp notes.txt backup/notes.txt && mkdir -p out",
    "system user assistant tool done",
    'tool_call {"name": "bash", "arguments": {"command": "ls -la"}} hello hell help',
]


def make_model(folder: Path, *, seed: int = 0, vocab_size: int = 500) -> Path:
    """Writes config, float32 weights and tokenizer of a random 0.66M-parameter model; returns the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    ids = _make_tokenizer(folder, vocab_size)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=ids["vocab_size"],
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        dtype="float32",
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def make_tokenizer_folder(folder: Path) -> Path:
    """Tokenizer and a config, no tensors."""
    _make_tokenizer(folder, 500)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "dtype": "float32"}))
    return folder


def make_adapter_files(folder: Path, *, marker: int, rank: int = 8, **config: Any) -> Path:
    """A PEFT adapter folder with real headers and a few bytes of tensors; marker makes it unlike others."""
    folder.mkdir(parents=True)
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "bias": "none", "target_modules": ["q_proj"]} | config
    (folder / "adapter_config.json").write_text(json.dumps(values))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + struct.pack("<f", float(marker))
    (folder / "adapter_model.safetensors").write_bytes(data)
    return folder


def _make_tokenizer(folder: Path, vocab_size: int) -> dict[str, int]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    specials = {name: tokenizer.token_to_id(name) for name in SPECIALS}
    return specials | {"vocab_size": tokenizer.get_vocab_size()}


def make_adapter(model_dir: Path, folder: Path, *, seed: int, rank: int = 8) -> Path:
    """Writes a random PEFT LoRA adapter on all linear layers, big enough to move logprobs visibly."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    peft = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in peft.named_parameters():
            if "lora_" in name:
                weight.normal_(0.0, 0.1)
    peft.save_pretrained(folder)
    return folder
