"""Weights rounded as ggml rounds them: against blocks that ggml made (``tools/ggml/check.py --write``)."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from goldstick.algorithms.ggml import fits
from goldstick.algorithms.ggml.rounding import quantize_as_ggml
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError
from goldstick.formats.gguf_blocks import BLOCK_TYPES, NVFP4, BlockType, pack_blocks
from tools.ggml.library import TYPES

KEPT = np.load(Path(__file__).parents[2] / "data" / "ggml" / "blocks.npz")
KINDS = pytest.mark.parametrize("kind", (*BLOCK_TYPES, NVFP4), ids=lambda kind: kind.name)


def numbers(blocks: np.ndarray, kind: BlockType) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind.name]))


@KINDS
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "importance"])
@pytest.mark.parametrize("compiled", [False, True], ids=["torch", "compiled"])
def test_blocks_are_those_of_ggml_byte_for_byte(
    kind: BlockType, weighted: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(fits, "_compiled", lambda x: False)
    counts = torch.from_numpy(KEPT["importance"]).reshape(1, -1) if weighted else None
    found = quantize_as_ggml(torch.from_numpy(KEPT["weight"]), kind.grid, counts)
    mine, theirs = pack_blocks(found, kind).numpy(), KEPT[kind.name + "-importance" * weighted]
    assert np.array_equal(numbers(mine, kind), numbers(theirs, kind))
    if kind.name in ("Q4_1", "Q5_1"):
        nbytes = TYPES[kind.name][2]
        mine, theirs = mine.reshape(-1, nbytes), theirs.reshape(-1, nbytes)
        alone = ~theirs[:, :2].any(1)  # where the scale rounds to 0, ggml keeps codes that mean nothing
        assert np.array_equal(mine[alone, :4], theirs[alone, :4])
        assert (theirs[~alone, 2:4] == (0, 0x80)).all(1).any()  # a minimum of −0 is one of −0
        mine, theirs = mine[~alone], theirs[~alone]
    assert np.array_equal(mine, theirs)


@KINDS
def test_what_is_dequantized_is_what_ggml_reads_but_for_the_rounding_of_zeros(kind: BlockType) -> None:
    found = quantize_as_ggml(torch.from_numpy(KEPT["weight"]), kind.grid)
    exact = torch.from_numpy(numbers(KEPT[kind.name], kind).copy())
    if kind.grid.symmetric or kind.grid.superblock:
        assert found.dequantize().equal(exact)
    else:  # u·d + m is (u + m/d)·d up to the rounding of m/d
        assert (found.dequantize() - exact).abs().max() <= 4e-7 * exact.abs().max()


def test_weights_of_several_matrices_have_importances_of_their_own() -> None:
    weight = torch.from_numpy(KEPT["weight"][:6]).reshape(2, 3, -1)
    counts = torch.rand(2, 512, generator=torch.Generator().manual_seed(1))
    grid = Scheme.parse("q4_k").weight
    both = quantize_with_search(weight, grid, "ggml-imatrix", counts)
    for index in range(2):
        one = quantize_with_search(weight[index], grid, "ggml-imatrix", counts[index])
        assert both.dequantize()[index].equal(one.dequantize())
    assert both.flattened().dequantize().equal(both.dequantize().flatten(0, 1))
    assert both.flattened().rows(slice(2, 5)).dequantize().equal(both.dequantize().flatten(0, 1)[2:5])


@pytest.mark.parametrize("search", ["minmax", "mse", "ggml"])
def test_superblocks_have_one_search_whatever_is_asked_for(search: str) -> None:
    weight, grid = torch.from_numpy(KEPT["weight"]), Scheme.parse("q3_k").weight
    found = quantize_with_search(weight, grid, search)  # type: ignore[arg-type]
    assert found.dequantize().equal(quantize_as_ggml(weight, grid).dequantize())


def test_nothing_that_counts_is_all_that_counts_alike() -> None:
    weight, grid = torch.from_numpy(KEPT["weight"][:2]), Scheme.parse("q6_k").weight
    none, alike = torch.zeros(1, 512), torch.ones(1, 512)
    assert quantize_as_ggml(weight, grid, none).dequantize().equal(quantize_as_ggml(weight, grid, alike).dequantize())


@pytest.mark.parametrize("name", ["q2_k", "q4_k", "q6_k", "iq4_xs", "q8_0", "q5_1"])
def test_scales_that_float16_cannot_hold_are_an_error(name: str) -> None:
    with pytest.raises(QuantizationError, match="does not fit float16"):
        quantize_as_ggml(torch.linspace(-1, 1, 512).reshape(1, -1) * 1e10, Scheme.parse(name).weight)


def test_rows_that_no_block_divides_name_the_types_that_do() -> None:
    with pytest.raises(QuantizationError, match=r"Rows of 320 weights .* blocks of 256.* iq4_nl"):
        quantize_as_ggml(torch.ones(2, 320), Scheme.parse("q4_k").weight)


@pytest.mark.parametrize("bad", [(torch.nan,), (torch.inf,), (torch.inf, -torch.inf)], ids=str)
def test_a_weight_that_is_not_finite_is_an_error(bad: tuple[float, ...]) -> None:
    weight = torch.ones(2, 256)
    weight[1, 7 : 7 + len(bad)] = torch.tensor(bad)
    with pytest.raises(QuantizationError, match=f"{len(bad)} values of the weight are NaN or infinite"):
        quantize_as_ggml(weight, Scheme.parse("q5_k").weight)


def test_finite_weights_whose_sum_overflows_are_not_taken_for_infinite() -> None:
    weight = torch.full((1, 256), 3e38)
    with pytest.raises(QuantizationError, match="does not fit float16"):
        quantize_as_ggml(weight, Scheme.parse("q8_0").weight)


def test_one_group_of_zeros_leaves_the_others_as_they_are() -> None:
    weight = torch.linspace(-1, 1, 256).reshape(1, -1)
    weight[:, :32] = 0
    found = quantize_as_ggml(weight, Scheme.parse("q6_k").weight).dequantize()
    assert not found[:, :32].any()
    assert (found - weight).abs().max() < 0.05


def test_scales_of_a_bfloat16_layer_are_its_numbers() -> None:
    weight = torch.from_numpy(KEPT["weight"]).to(torch.bfloat16)
    found = quantize_as_ggml(weight, Scheme.parse("q8_0").weight)
    assert found.scale.dtype == torch.bfloat16
    assert found.scale.half().float().equal(found.scale.float())


def test_an_nvfp4_tensor_of_ggml_has_a_scale_of_scales_of_one() -> None:
    found = quantize_as_ggml(torch.from_numpy(KEPT["weight"]).reshape(3, -1, 512), NVFP4.grid)
    assert found.global_scale is not None
    assert found.global_scale.equal(torch.ones(3, 1, 1))


def test_nvfp4_blocks_too_small_for_a_scale_are_zeros() -> None:
    weight = torch.full((1, 64), 1e-3)
    weight[:, 16:32] = 6 * 2.0**-9
    found = quantize_as_ggml(weight, NVFP4.grid).dequantize()
    assert found[:, 16:32].equal(weight[:, 16:32])
    assert not found[:, :16].any()
