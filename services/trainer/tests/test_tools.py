"""The tiny model and the capture check, as commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from longshore_common.chatml import ChatMLCodec
from longshore_common.digests import tree_digest
from longshore_trainer import capture_check, tiny_model

slow = pytest.mark.slow


@slow
def test_the_tiny_model_is_the_same_for_the_same_seed(tmp_path: Path, demonstrations: Path, model_dir: Path) -> None:
    for name, seed in (("same", 1), ("other", 2)):
        arguments = ["--out", str(tmp_path / name), "--corpus", str(demonstrations), "--vocab", "300"]
        assert tiny_model.main([*arguments, "--seed", str(seed)]) == 0
    assert tree_digest(tmp_path / "same") == tree_digest(model_dir)
    assert tree_digest(tmp_path / "other") != tree_digest(model_dir)


@slow
def test_the_chat_template_renders_as_our_codec_does(model_dir: Path, demonstrations: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
    messages = json.loads(demonstrations.read_text().splitlines()[0])["messages"]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids, mask = ChatMLCodec.from_dir(model_dir).render_masked(messages)
    assert text == tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.eos_token == "<|im_end|>"
    sampled = [token for token, trained in zip(ids, mask, strict=True) if trained]
    assert tokenizer.decode(sampled) == "wc -l < data.txt > out.txt<|im_end|>done<|im_end|>"


def test_tiny_model_refuses_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"broken"\n')
    assert tiny_model.main(["--out", str(tmp_path / "m"), "--corpus", str(corpus)]) == 2
    assert "c.jsonl:2" in capsys.readouterr().err
    assert tiny_model.main(["--out", str(tmp_path), "--corpus", str(corpus)]) == 2
    assert not (tmp_path / "m").exists()


def captured(model_dir: Path) -> dict[str, Any]:
    """A turn as a right engine would log it, computed token by token."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(model_dir)).eval()
    prompt, completion = [1, 40, 50, 60], [70, 80, 2]
    logprobs = []
    with torch.no_grad():
        for index, token in enumerate(completion):
            logits = model(input_ids=torch.tensor([prompt + completion[:index]])).logits[0, -1]
            logprobs.append(float(torch.log_softmax(logits, -1)[token]))
    return {"prompt_ids": prompt, "completion_ids": completion, "logprobs": logprobs, "adapter_dir": None}


@slow
def test_capture_check_accepts_right_logprobs_and_refuses_wrong_ones(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, turn = tmp_path / "in.json", captured(model_dir)
    path.write_text(json.dumps({"model_dir": str(model_dir), "turns": [turn]}))
    assert capture_check.main(["--input", str(path), "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["max_abs_difference"] < 1e-5
    assert report["versions"]["base"]["tokens"] == 3
    turn["logprobs"][1] += 0.01
    path.write_text(json.dumps({"model_dir": str(model_dir), "turns": [turn]}))
    assert capture_check.main(["--input", str(path), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["max_abs_difference"] == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize(
    "turn", [{"prompt_ids": [1], "completion_ids": [2], "logprobs": []}, {"prompt_ids": [], "completion_ids": []}]
)
def test_capture_check_refuses_misaligned_turns(
    tmp_path: Path, turn: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"model_dir": "m", "turns": [turn]}))
    assert capture_check.main(["--input", str(path)]) == 2
    assert "turns" in capsys.readouterr().err


def test_nothing_to_check_is_not_a_proof(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"model_dir": "m", "turns": []}))
    assert capture_check.main(["--input", str(path)]) == 1
