"""All that a plain module holds comes back: tensors on one storage, extra state, what hooks of ``state_dict`` hide."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.core.notices import NotStoredWarning
from goldstick.errors import CheckpointError, FormatError, StructureError

pytestmark = pytest.mark.usefixtures("proof_here")


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).eval()


def round_trip(build: Callable[[float], Any], directory: Path, inplace: bool = False) -> tuple[Any, Any]:
    """The result's model, and what is loaded into a module whose buffers held other numbers."""
    result = goldstick.apply(build(1.0), "rtn-w8a16", inplace=inplace)
    result.save(directory)
    return result.model, goldstick.load(directory, model=build(2.0))


@pytest.mark.parametrize(
    ("view", "files"),
    [(Tensor.detach, 1), (Tensor.t, 2), (lambda one: one[:2], 2), (lambda one: one[0].expand(3, 4), 2)],
    ids=["the same", "transposed", "a part", "expanded"],
)
def test_buffers_on_one_storage_come_back_each_as_it_was(
    view: Callable[[Tensor], Tensor], files: int, tmp_path: Path
) -> None:
    def build(scale: float) -> Any:
        model, numbers = network(), torch.arange(16.0).reshape(4, 4) * scale
        model.register_buffer("a", numbers)
        model.register_buffer("b", view(numbers))
        return model

    made, loaded = round_trip(build, tmp_path / "made")
    assert torch.equal(loaded.a, made.a) and torch.equal(loaded.b, made.b)
    assert len({"a", "b"} & set(open_tensors(tmp_path / "made"))) == files, "the same numbers are stored once"
    # What ties two tensors here may tie none in the module that is loaded into.
    apart = build(2.0)
    apart.b = view(torch.zeros(4, 4)).clone()
    assert torch.equal(goldstick.load(tmp_path / "made", model=apart).b, made.b)


def test_a_manifest_that_ties_nonsense_lacks_the_tensor(tmp_path: Path) -> None:
    def build() -> Any:
        model = network()
        model.register_buffer("a", torch.ones(4))
        model.register_buffer("b", model.a.detach())
        return model

    goldstick.apply(build(), "rtn-w8a16").save(tmp_path / "made")
    file = tmp_path / "made" / "goldstick.json"
    manifest = json.loads(file.read_text())
    assert manifest["architecture"]["shared"] == {"b": "a"}
    for told in ({"b": ["a"]}, {"b": "c"}, ["b"], None):
        manifest["architecture"]["shared"] = told
        file.write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="lacks the tensor 'b'"):
            goldstick.load(tmp_path / "made", model=build())


def test_biases_on_one_storage_come_back(tmp_path: Path) -> None:
    def build(scale: float) -> Any:
        model = network()
        model[0].bias.data.mul_(scale)
        model[2].bias = nn.Parameter(model[0].bias.data)
        return model

    made, loaded = round_trip(build, tmp_path / "made", inplace=True)
    assert torch.equal(loaded[2].bias, made[2].bias)


class Extra(nn.Linear):
    """Keeps what torch knows nothing of."""

    def __init__(self, kept: Any) -> None:
        super().__init__(64, 64)
        self.kept = kept

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def test_extra_state_comes_back_where_it_is_a_tensor(tmp_path: Path) -> None:
    made, loaded = round_trip(lambda scale: nn.Sequential(Extra(torch.tensor([scale]))), tmp_path / "made")
    assert torch.equal(loaded[0].kept, torch.ones(1)) and torch.equal(made[0].kept, torch.ones(1))
    with pytest.raises(CheckpointError, match=r"holds '0\._extra_state', which the module does not have"):
        goldstick.load(tmp_path / "made", model=nn.Sequential(nn.Linear(64, 64)))
    goldstick.apply(nn.Sequential(nn.Linear(64, 64)), "rtn-w8a16").save(tmp_path / "without")
    with pytest.raises(CheckpointError, match=r"lacks the tensor '0\._extra_state'"):
        goldstick.load(tmp_path / "without", model=nn.Sequential(Extra(torch.ones(1))))


class OneWay(nn.LayerNorm):
    def get_extra_state(self) -> Any:
        return torch.ones(1)


class Adds(nn.Sequential):
    """Its state_dict has what is none of its tensors."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs) | {"steps": torch.ones(1)}


def sparse() -> nn.Module:
    model = network()
    model.register_buffer("adjacency", torch.eye(64).to_sparse())
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: nn.Sequential(Extra({"step": 3})),
            r"get_extra_state of \w*Extra gives, is of dict",
        ),
        (lambda: nn.Sequential(OneWay(64), nn.Linear(64, 64)), "OneWay has no set_extra_state"),
        (lambda: Adds(nn.Linear(64, 64)), "Adds has 'steps', which is no parameter or buffer"),
        (sparse, r"adjacency is a tensor of the layout torch\.sparse_coo, which a checkpoint cannot hold"),
    ],
    ids=["a dictionary", "one way", "added", "sparse"],
)
def test_what_no_checkpoint_holds_is_told_before_the_work_and_refused_when_saving(
    build: Callable[[], nn.Module], said: str, tmp_path: Path
) -> None:
    with pytest.warns(NotStoredWarning, match=f"The result runs, and cannot be saved.*{said}"):
        result = goldstick.apply(build(), "rtn-w8a16")
    assert any("cannot be saved" in warning for warning in result.report.warnings)
    assert result.model(torch.ones(1, 64)).shape == (1, 64)
    with pytest.raises(FormatError, match=said):
        result.save(tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused() -> None:
    model = network()
    model.register_buffer("ragged", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(StructureError, match=r"ragged is a nested tensor.*Keep it padded"):
        goldstick.apply(model, "rtn-w8a16")


def test_hooks_and_overrides_of_state_dict_change_nothing(tmp_path: Path) -> None:
    class Inner(nn.Module):
        """Gives the state of what it wraps, as if it were that."""

        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self.net.state_dict(*args, **kwargs)

    def hooked() -> nn.Module:
        model = network()

        def rename(_: Any, state: Any, *__: Any) -> None:
            for name in list(state):
                state[f"model.{name}"] = state.pop(name)

        model._register_state_dict_hook(rename)
        return model  # type: ignore[no-any-return]

    x = torch.randn(3, 64)
    for place, build in enumerate((Inner, hooked)):
        result = goldstick.apply(build(), "rtn-w8a16")
        result.save(tmp_path / str(place))
        assert torch.equal(goldstick.load(tmp_path / str(place), model=build())(x), result.model(x))


@pytest.mark.parametrize("built", [torch.float32, torch.bfloat16], ids=["built in 32 bits", "built in 16 bits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", ["nvfp4a16", "mxfp4a16"])
def test_scales_stored_as_codes_come_back_in_the_dtype_that_the_layer_computes_in(
    scheme: str, dtype: torch.dtype, built: torch.dtype, tmp_path: Path
) -> None:
    result = goldstick.apply(network().to(dtype), {"stages": [{"rtn": {"scheme": scheme}}]})
    result.save(tmp_path / "saved")
    loaded: Any = goldstick.load(tmp_path / "saved", model=network().to(built))
    x = torch.randn(3, 64).to(dtype)
    assert torch.equal(loaded(x), result.model(x))  # type: ignore[operator]


def test_a_module_says_the_dtype_where_a_checkpoint_does_not(tmp_path: Path) -> None:
    result = goldstick.apply(network().bfloat16(), {"stages": [{"rtn": {"scheme": "nvfp4a16"}}]})
    result.save(tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved" / "goldstick.json").read_text())
    del manifest["architecture"]["computes_in"]
    (tmp_path / "saved" / "goldstick.json").write_text(json.dumps(manifest))
    loaded: Any = goldstick.load(tmp_path / "saved", model=network().bfloat16())
    x = torch.randn(3, 64).bfloat16()
    assert torch.equal(loaded(x), result.model(x))  # type: ignore[operator]
