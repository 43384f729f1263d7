"""GPT-OSS in MXFP4 as transformers itself writes it. Its kernels, which it fetches, keep weights in a layout of theirs
between reading and writing; here one that leaves them as they are stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations import hub_kernels
from transformers.quantizers import quantizer_mxfp4

import goldstick
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.load.load import load_float
from tests.support.quantized_sources import gpt_oss_in_mxfp4

IDS = torch.arange(16)[None]


class AsItIs:
    """A layout of no other order."""

    @staticmethod
    def unswizzle_data(data: Tensor) -> Tensor:
        return data


def wrapped(data: Tensor, dtype: Any = None) -> Any:
    return Names(storage=Names(data=data, layout=AsItIs), shape=data.shape)


KERNELS = Names(
    matmul_ogs=Names(PrecisionConfig=Names, FlexCtx=Names, InFlexData=Names),
    tensor=Names(FP4="fp4", wrap_torch_tensor=wrapped, convert_layout=lambda tensor, layout: tensor),
    tensor_details=Names(
        layout=Names(StridedLayout=AsItIs, make_default_matmul_mxfp4_w_layout=lambda mx_axis: (AsItIs, {}))
    ),
)


@contextmanager
def with_kernels() -> Iterator[None]:
    """What transformers asks before it keeps experts in MXFP4; it then works on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(hub_kernels, "get_kernel", lambda *_, **__: KERNELS)
        patch.setattr(quantizer_mxfp4, "get_current_accelerator", lambda: torch.device("cuda"))
        for asked in ("is_kernels_available", "is_triton_available"):
            patch.setattr(quantizer_mxfp4, asked, lambda *_: True)
        yield


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As OpenAI publishes it, by formulas of the tests' own."""
    directory = tmp_path_factory.mktemp("published")
    gpt_oss_in_mxfp4(directory)
    return directory


@pytest.fixture(scope="module")
def written(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As transformers writes it."""
    directory = tmp_path_factory.mktemp("written")
    with with_kernels():
        model: Any = AutoModelForCausalLM.from_pretrained(published, dtype="auto", device_map={"": "cpu"})
        model.save_pretrained(directory)
    return directory


def test_what_it_writes_has_the_layout_that_other_tests_write(published: Path, written: Path) -> None:
    theirs, ours = load_file(written / "model.safetensors"), load_file(published / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert sum(name.endswith(("_blocks", "_scales")) for name in theirs) == 8
    for name, tensor in theirs.items():
        expected = ours[name].float() if "experts" in name and name.endswith("_bias") else ours[name]
        assert tensor.dtype is expected.dtype and torch.equal(tensor, expected), name
    assert open_source(written).quantized_as == open_source(published).quantized_as
    assert examine(written).healthy


def test_it_is_run_as_transformers_runs_it(written: Path) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(written, dtype="auto").eval()
    with torch.no_grad():
        assert torch.equal(load_float(written)(IDS).logits, theirs(IDS).logits)


@pytest.mark.usefixtures("proof_here", "reference_backend")
@pytest.mark.parametrize("scheme", ["w4a16-g32", "nvfp4a16"])
def test_it_is_quantized_again_stored_and_loaded(scheme: str, written: Path, tmp_path: Path) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(written, dtype="auto").eval()
    recipe = {"stages": [{"rtn": {"scheme": scheme}}]}
    done = goldstick.quantize(written, recipe, output=tmp_path / "again")
    assert done.report.warnings[0].startswith("Quantized from mxfp4 (")
    with torch.no_grad():
        expected = goldstick.apply(theirs, recipe).model(IDS).logits
        assert torch.equal(goldstick.load(tmp_path / "again")(IDS).logits, expected)
