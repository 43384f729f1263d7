"""The tool that plants outliers: the model stays, its activations do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs
from tools.planted_outliers import main, plant


def largest_to_median(model: PreTrainedModel) -> float:
    """How far the largest input channel of the first q_proj stands out."""
    seen: list[Tensor] = []
    layer = model.get_submodule("model.layers.0.self_attn.q_proj")
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    output_tensor(model, sample_inputs(model))
    handle.remove()
    peaks = seen[0].flatten(0, -2).abs().amax(0)
    return float(peaks.max() / peaks.median())


def test_the_copy_computes_the_same_with_outliers_and_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FAMILIES["llama_gqa"]().to(torch.bfloat16)
    source, output = tmp_path / "source", tmp_path / "output"
    model.save_pretrained(source)
    (source / "notes.txt").write_text("beside the weights")
    monkeypatch.setattr(sys, "argv", ["planted_outliers", str(source), str(output), "--share", "0.03"])
    main()
    printed = capsys.readouterr().out
    assert "model.layers.1.post_attention_layernorm: 2 of 64 channels" in printed and "the logits differ by" in printed
    assert (output / "notes.txt").read_text() == "beside the weights"
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, output)]
    assert configs[1] == {**configs[0], "dtype": "float32"}
    planted, plain = (LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (output, source))
    inputs = sample_inputs(plain)
    torch.testing.assert_close(output_tensor(planted, inputs), output_tensor(plain, inputs), rtol=1e-4, atol=1e-4)
    assert largest_to_median(planted) > 10 > largest_to_median(plain)


def test_the_factors_lie_between_their_bounds_and_follow_the_seed() -> None:
    first, again, other = (plant(FAMILIES["qwen2"](), 0.05, (20.0, 100.0), seed) for seed in (0, 0, 1))
    assert len(first) == 4
    for fold, same, different in zip(first, again, other, strict=True):
        factors = 1 / fold.scale[fold.scale != 1]
        assert len(factors) == 3 and bool(((factors >= 20) & (factors <= 100)).all())
        assert torch.equal(fold.scale, same.scale) and not torch.equal(fold.scale, different.scale)


def test_a_model_without_norms_that_fold_is_refused() -> None:
    with pytest.raises(ValueError, match="no outlier can be planted"):
        plant(FAMILIES["bert"](), 0.05, (20.0, 100.0), 0)
