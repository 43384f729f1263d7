"""transformers' from_pretrained after ``import goldstick``: who serves which method, and what comes out."""

from __future__ import annotations

import copy
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, trainer_utils
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.utils import hub

import goldstick
from goldstick import registration
from goldstick.checkpoint.kv_cache import KV_SIDECAR
from goldstick.core.notices import LeftOutWarning
from goldstick.errors import CheckpointError, SourceError, UsageError
from goldstick.hf import quantizer
from goldstick.hf.cache import quantized_cache_of
from goldstick.hf.foreign import ForeignQuantizer
from goldstick.jobs.save import finish
from goldstick.nn import QuantizedLinear
from tests.support.other_tools import FOLDER
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("transformers_as_it_was")


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(registration, "_installed", lambda package: package in packages)


def served() -> list[str]:
    return sorted(method for method, quantizer in AUTO_QUANTIZER_MAPPING.items() if quantizer is ForeignQuantizer)


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.arange(16)[None]).logits
    return found


def test_methods_whose_package_is_missing_are_served_by_goldstick(monkeypatch: pytest.MonkeyPatch) -> None:
    before = served()
    for method in before:
        monkeypatch.setitem(AUTO_QUANTIZER_MAPPING, method, None)
    installed(monkeypatch, "auto_round", "compressed_tensors", "gptqmodel")
    registration.register_with_transformers()
    assert served() == ["gptq"], "which needs optimum too"
    installed(monkeypatch)
    registration.register_with_transformers()
    assert served() == ["auto-round", "awq", "compressed-tensors", "gptq"]


def test_a_package_that_is_installed_serves_its_method_until_goldstick_is_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for method in served():
        monkeypatch.setitem(AUTO_QUANTIZER_MAPPING, method, None)
    installed(monkeypatch, "auto_round", "compressed_tensors", "gptqmodel", "optimum")
    registration.register_with_transformers()
    assert served() == []
    goldstick.register("awq")
    assert served() == ["awq"]
    goldstick.register()
    assert served() == ["auto-round", "awq", "compressed-tensors", "gptq"]
    with pytest.raises(
        UsageError, match="cannot serve the method 'bitsandbytes'; it can serve auto-round, awq, compressed"
    ):
        goldstick.register("bitsandbytes")


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "gptqmodel-act-order", "llm-compressor-w4a16-asymmetric"])
def test_from_pretrained_gives_what_load_gives(name: str) -> None:
    goldstick.register()
    model = AutoModelForCausalLM.from_pretrained(FOLDER / name)
    assert isinstance(model.model.layers[0].mlp.down_proj, QuantizedLinear)
    assert torch.equal(logits(model.eval()), logits(goldstick.load(FOLDER / name)))
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained("nowhere")


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "llm-compressor-w8a8"])
def test_a_model_that_is_loaded_in_float64_computes_in_it(name: str) -> None:
    goldstick.register()
    found = logits(AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float64))
    assert found.dtype is torch.float64
    assert torch.equal(found, logits(goldstick.load(FOLDER / name, dtype=torch.float64)))
    single = logits(AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32))
    assert (found - single).norm() < (0.05 if "w8a8" in name else 1e-4) * found.norm()


@pytest.mark.parametrize("how", ["from_pretrained", "load"])
def test_the_config_of_a_loaded_model_goes_on_saying_what_its_files_are(how: str, tmp_path: Path) -> None:
    goldstick.register("gptq")
    source = FOLDER / "gptqmodel-gptq"
    model: Any = AutoModelForCausalLM.from_pretrained(source) if how == "from_pretrained" else goldstick.load(source)
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    model.config.save_pretrained(folder)
    table = json.loads((source / "config.json").read_text())["quantization_config"]
    assert json.loads((folder / "config.json").read_text())["quantization_config"] == table
    assert torch.equal(logits(goldstick.load(folder)), logits(model))
    again = AutoModelForCausalLM.from_pretrained(source, config=model.config)
    assert isinstance(again.model.layers[0].mlp.down_proj, QuantizedLinear)
    assert torch.equal(logits(again), logits(model))


def test_a_loaded_model_is_cast_though_transformers_casts_none_of_its_method() -> None:
    goldstick.register("gptq")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "gptqmodel-gptq")
    found = logits(model)
    assert model.dtype is not torch.float32
    torch.testing.assert_close(logits(model.to(torch.float32)), found.float(), rtol=0.05, atol=0.05)
    assert model.dtype is torch.float32


def test_a_loaded_model_can_be_pickled_and_copied() -> None:
    goldstick.register("gptq")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "gptqmodel-gptq")
    found = logits(model)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), found)
    assert torch.equal(logits(copy.deepcopy(model)), found)


def test_a_trainer_takes_a_loaded_model_with_adapters_and_only_so(monkeypatch: pytest.MonkeyPatch) -> None:
    goldstick.register("gptq")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "gptqmodel-gptq")
    with pytest.raises(ValueError, match="attach trainable adapters"):
        trainer_utils.validate_quantization_for_training(model)
    monkeypatch.setattr(trainer_utils, "_is_peft_model", lambda model: True)
    trainer_utils.validate_quantization_for_training(model)
    adapter = torch.zeros(model.config.hidden_size, dtype=model.dtype, requires_grad=True)
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda layer, args, output: output + adapter)
    model(input_ids=torch.arange(16)[None], labels=torch.arange(16)[None]).loss.backward()
    assert adapter.grad is not None and bool(adapter.grad.count_nonzero())


def test_what_transformers_cannot_save_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(quantizer.logger, "warning", lambda text, *values: said.append(text % values))
    goldstick.register("gptq")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "gptqmodel-gptq")
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "out")
    assert f"the one that it was loaded from, {FOLDER / 'gptqmodel-gptq'}: copy that" in said[0]
    assert not (tmp_path / "out").exists()


def test_numbers_in_the_place_of_exponents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    recipe = {"stages": [{"rtn": {"scheme": "mxfp4a16"}}], "export": {"format": "native"}}
    folder = goldstick.apply(FAMILIES["llama_gqa"](), recipe).save(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"_proj\.weight_scale is stored as F32 and the config makes it uint8"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_an_awq_checkpoint_too(tmp_path: Path) -> None:
    goldstick.register("awq")
    goldstick.export(FOLDER / "gptqmodel-gptq", "awq", output=tmp_path / "awq", proof="tensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "awq").eval()
    assert torch.equal(logits(model), logits(goldstick.load(FOLDER / "gptqmodel-gptq")))


def test_a_variant_is_read_from_its_own_files(tmp_path: Path) -> None:
    goldstick.register("gptq")
    folder = Path(shutil.copytree(FOLDER / "gptqmodel-gptq", tmp_path / "copy"))
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    found = logits(AutoModelForCausalLM.from_pretrained(folder, variant="fp16"))
    assert torch.equal(found, logits(goldstick.load(FOLDER / "gptqmodel-gptq")))
    remedy = "Rename the variant that is meant: model.fp16.safetensors to model.safetensors"
    with pytest.raises(SourceError, match=re.escape(remedy)):
        goldstick.load(folder)
    tensors = load_file(folder / "model.fp16.safetensors")
    half = len(tensors) // 2
    names = [f"model.fp16-0000{part}-of-00002.safetensors" for part in (1, 2)]
    parts = dict(list(tensors.items())[:half]), dict(list(tensors.items())[half:])
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name, metadata={"format": "pt"})
    (folder / "model.fp16.safetensors").unlink()
    places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    index = folder / "model.safetensors.index.fp16.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder, variant="fp16")), found)
    with pytest.raises(SourceError, match=r"model\.safetensors\.index\.fp16\.json to model\.safetensors\.index\.json"):
        goldstick.load(folder)
    index.rename(folder / "model.safetensors.index.json")
    assert torch.equal(logits(goldstick.load(folder)), found)


def test_the_cache_of_a_native_checkpoint_lies_beside_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    model = FAMILIES["llama_gqa"]()
    stages = [{"rtn": {"scheme": "w8a16"}}, {"kv_cache": {"mode": "dynamic"}}]
    result = goldstick.apply(model, {"stages": stages, "export": {"format": "native"}})
    (tmp_path / "all").mkdir()
    saved = result.save(tmp_path / "all" / "part")
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / ("0" * 40)
    shutil.copytree(saved, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    for where, options in (
        (saved, {}),
        (tmp_path / "all", {"subfolder": "part"}),
        ("owner/name", {"cache_dir": tmp_path / "hub", "local_files_only": True}),
    ):
        found = AutoModelForCausalLM.from_pretrained(where, **options)
        assert quantized_cache_of(found) is not None, where


@pytest.mark.parametrize("form", ["native", "compressed-tensors"])
def test_the_cache_of_a_model_on_the_hub_is_fetched(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goldstick.register()
    monkeypatch.setattr(finish, "prove", prove_here)
    stages = [{"rtn": {"scheme": "w8a16"}}, {"kv_cache": {"mode": "dynamic", "dtype": "int4"}}]
    result = goldstick.apply(FAMILIES["llama_gqa"](), {"stages": stages, "export": {"format": form}})
    saved = result.save(tmp_path / "saved")
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / ("1" * 40)
    shutil.copytree(saved, snapshot, ignore=shutil.ignore_patterns(KV_SIDECAR))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1" * 40)
    asked = []

    def download(repository: str, name: str, *, revision: str, cache_dir: str, **_: Any) -> None:
        if name == KV_SIDECAR:
            asked.append((repository, revision, cache_dir))
            shutil.copy(saved / name, snapshot)

    options: Any = {"cache_dir": tmp_path / "hub", "local_files_only": True}
    assert quantized_cache_of(AutoModelForCausalLM.from_pretrained("owner/name", **options)) is None, "not there"
    monkeypatch.setattr(hub, "hf_hub_download", download)
    found = AutoModelForCausalLM.from_pretrained("owner/name", **options)
    assert asked == [("owner/name", "1" * 40, str(tmp_path / "hub"))]
    assert quantized_cache_of(found) is not None
    (snapshot / KV_SIDECAR).unlink()
    assert quantized_cache_of(AutoModelForCausalLM.from_pretrained(snapshot)) is None, "a directory is not asked for"

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no token")

    monkeypatch.setattr(hub, "cached_file", refused)
    with pytest.warns(LeftOutWarning, match=r"Whether owner/name has a quantized KV cache could not .* \(no token\)"):
        AutoModelForCausalLM.from_pretrained("owner/name", **options)


def test_a_checkpoint_that_lacks_what_it_declares_does_not_load(tmp_path: Path) -> None:
    goldstick.register()
    folder = Path(shutil.copytree(FOLDER / "gptqmodel-gptq", tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.scales"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'model\.layers\.0\.mlp\.up_proj\.scales'"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_the_quantization_config_of_the_file_is_not_changed(tmp_path: Path) -> None:
    goldstick.register()
    table = json.loads((FOLDER / "gptqmodel-gptq" / "config.json").read_text())["quantization_config"]
    config = AUTO_QUANTIZATION_CONFIG_MAPPING["gptq"].from_dict(dict(table))
    assert config.table == table
    assert config.quant_method == "gptq"
