"""Batch norms are folded where nothing but a norm reads a convolution, and the network gives what it gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick import surgery
from goldstick.core.edits import FoldNorm
from goldstick.errors import DataError, StructureError
from goldstick.structure.network import Network
from goldstick.structure.norm_folding import find_norm_folds, norm_fold_from_dict
from goldstick.structure.same_outputs import prove_same_outputs


def lived(norm: Any) -> Any:
    """A batch norm with statistics and gains of its own."""
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 4)
    if norm.weight is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.norm = nn.Conv2d(3, 8, 3), lived(nn.BatchNorm2d(8))
        self.grouped, self.bare = nn.Conv2d(8, 8, 3, groups=4, bias=False), lived(nn.BatchNorm2d(8, affine=False))
        self.read_twice, self.after = nn.Conv2d(8, 8, 1), lived(nn.BatchNorm2d(8))
        self.called_twice, self.again = nn.Conv2d(8, 8, 1), lived(nn.BatchNorm2d(8))
        self.before, self.ours = nn.Conv2d(8, 8, 1), lived(nn.BatchNorm2d(8, track_running_stats=True))
        self.line, self.batch = nn.Conv1d(8, 4, 2), nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.plain(x)).relu()
        x = self.bare(self.grouped(x))
        y = self.read_twice(x)
        x = self.after(y) + y
        x = self.again(self.called_twice(self.called_twice(x)))
        x = self.ours(self.before(x).relu())
        found: Tensor = self.batch(self.line(x.flatten(2)))
        return found


def test_norms_are_found_that_alone_read_a_convolution_and_keep_statistics() -> None:
    model, x = Branches().eval(), torch.randn(2, 3, 9, 9)
    folds = find_norm_folds(model, {"x": x})
    assert folds == [FoldNorm(convolution="plain", norm="norm"), FoldNorm(convolution="grouped", norm="bare")]
    with torch.no_grad():
        before = model(x)
        surgery.apply(Network(model), folds)
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
    assert isinstance(model.norm, nn.Identity) and isinstance(model.bare, nn.Identity)
    assert model.grouped.bias is not None
    assert find_norm_folds(model, {"x": x}) == []


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sides", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_norms_go_into_convolutions_of_all_kinds(kind: str, sides: int, groups: int) -> None:
    convolution: Any = getattr(nn, f"{kind}{sides}d")(4, 6, 2, groups=groups)
    norm = lived(getattr(nn, f"BatchNorm{sides}d")(6))
    model, x = nn.Sequential(convolution, norm).eval(), torch.randn(2, 4, *[5] * sides)
    folded = goldstick.apply(model, "fold", data=[x]).model
    assert isinstance(folded[1], nn.Identity)
    torch.testing.assert_close(folded(x), model(x))


def test_a_norm_behind_a_transposed_convolution_that_does_more_stays() -> None:
    class Shifted(nn.ConvTranspose2d):
        def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
            return super().forward(input, output_size) + 1

    model = nn.Sequential(Shifted(4, 6, 2), lived(nn.BatchNorm2d(6))).eval()
    assert find_norm_folds(model, {"input": torch.randn(2, 4, 5, 5)}) == []


def test_a_norm_whose_input_is_given_out_stays() -> None:
    class Both(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            y = self[0](x)
            return y, self[1](y)

    assert (
        find_norm_folds(Both(nn.Conv2d(3, 4, 1), lived(nn.BatchNorm2d(4))).eval(), {"x": torch.randn(1, 3, 4, 4)}) == []
    )


def test_a_model_in_training_is_looked_at_in_evaluation_and_left_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), lived(nn.BatchNorm2d(4))).train()
    mean = model[1].running_mean.clone()
    assert len(find_norm_folds(model, {"input": torch.randn(2, 3, 4, 4)})) == 1
    assert model.training and model[1].training and torch.equal(model[1].running_mean, mean)


def test_the_proof_finds_a_fold_that_changes_outputs() -> None:
    model, x = Branches().eval(), {"x": torch.randn(2, 3, 9, 9)}
    right, wrong = find_norm_folds(model, x), [FoldNorm(convolution="read_twice", norm="after")]
    assert prove_same_outputs(model, x, lambda twin: surgery.apply(Network(twin), right), "folds") < 1e-12
    with pytest.raises(StructureError, match=r"With folds, the outputs of Branches differ by .* in float64"):
        prove_same_outputs(model, x, lambda twin: surgery.apply(Network(twin), wrong), "folds")
    assert isinstance(model.norm, nn.BatchNorm2d)


def test_edits_come_back_from_a_config_and_others_are_refused() -> None:
    fold = FoldNorm(convolution="plain", norm="norm")
    assert norm_fold_from_dict(fold.to_dict()) == fold
    for value in (None, 3, {}, {"convolution": "a"}, {"convolution": "a", "norm": 1}):
        with pytest.raises(StructureError, match="describes no folded batch norm"):
            norm_fold_from_dict(value)
    with pytest.raises(StructureError, match="A BatchNorm1d cannot be folded into this Conv2d"):
        surgery.apply(Network(Branches()), [FoldNorm(convolution="plain", norm="batch")])


class Mixing(nn.Module):
    """Mixes the images of a batch by a matrix: a first row alone does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), lived(nn.BatchNorm2d(8))

    def forward(self, images: Tensor, mixing: Tensor) -> Tensor:
        mixed = (mixing @ images.flatten(1)).reshape(images.shape)
        found: Tensor = self.norm(self.convolution(mixed))
        return found


def test_a_network_that_needs_its_whole_batch_is_given_it() -> None:
    model = Mixing().eval()
    batch = {"images": torch.randn(4, 3, 6, 6), "mixing": torch.randn(4, 4)}
    folded: Any = goldstick.apply(model, "fold-rtn-w8a16", data=[batch]).model
    assert isinstance(folded.norm, nn.Identity) and isinstance(model.norm, nn.BatchNorm2d)


def test_a_batch_that_does_not_run_is_no_crash() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    with pytest.raises(DataError, match=r"first batch of data \(input \[2, 4, 6, 6\]\) does not run through this Seq"):
        goldstick.apply(model, "fold-rtn-w8a16", data=[torch.randn(2, 4, 6, 6)])
