"""Arguments that forwards cannot do without, made by what they are called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from goldstick.hf.argument_values import source_of
from goldstick.hf.calling import ways_to_call
from goldstick.hf.example_inputs import fixed_inputs
from goldstick.hf.joint_arguments import joint_inputs


class Settings(PretrainedConfig):
    hidden_size, vocab_size, patch_size, temporal_patch_size, image_size = 24, 50, 4, 2, 16


class Model(nn.Module):
    """A module that says what it is made of, as models of transformers do."""

    main_input_name: str | list[str] = "pixel_values"

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config


class Tower(Model):
    """Patches in a row, and the grid they were cut from."""

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.project = nn.Linear(3 * 2 * 4 * 4, 24)

    def forward(self, pixel_values: Tensor, grid_thw: Tensor) -> Tensor:
        assert len(pixel_values) == grid_thw.prod()
        return self.project(pixel_values)


class Joint(Model):
    """Two texts, states, and a spectrogram of its own width, of which it is told which frames count."""

    main_input_name = ["question_input_ids", "input_features"]  # noqa: RUF012

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.listen, self.words = nn.Linear(33, 24), nn.Embedding(50, 24)

    def forward(
        self,
        question_input_ids: Tensor,
        question_attention_mask: Tensor,
        query_embeds: Tensor,
        input_features: Tensor,
        input_features_mask: Tensor | None = None,
    ) -> Tensor:
        assert input_features_mask is not None and question_attention_mask.shape == question_input_ids.shape
        heard = self.listen(input_features) * input_features_mask[..., None]
        return self.words(question_input_ids)[:, :1] + query_embeds[:, :1] + heard[:, :1]


@pytest.mark.parametrize("kind", [Tower, Joint])
def test_a_way_to_call_is_found(kind: type[Model]) -> None:
    model = kind(Settings()).eval()
    assert torch.isfinite(model(**fixed_inputs(model))).all()


def test_pairs_of_pictures_are_among_the_ways() -> None:
    class Matcher(Model):
        def forward(self, pixel_values: Tensor) -> Tensor:
            raise NotImplementedError

    shapes = [list(one["pixel_values"].shape) for one in ways_to_call(Matcher(Settings()))]
    assert [1, 2, 3, 16, 16] in shapes


def test_what_an_argument_holds_is_said_by_its_ending_where_it_is_needed() -> None:
    assert source_of("tasks_input_ids") is None and source_of("tasks_input_ids", needed=True) is not None
    assert source_of("inference_session", needed=True) is None


class Controller(Model):
    """States, actions and rewards of as many steps."""

    main_input_name = "states"

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.state, self.action, self.time = nn.Linear(17, 24), nn.Linear(4, 24), nn.Embedding(50, 24)

    def forward(
        self,
        states: Tensor | None = None,
        actions: Tensor | None = None,
        rewards: Tensor | None = None,
        returns_to_go: Tensor | None = None,
        timesteps: Tensor | None = None,
    ) -> Tensor:
        assert states is not None and actions is not None and timesteps is not None
        assert rewards is not None and returns_to_go is not None and rewards.shape == returns_to_go.shape
        return self.state(states) + self.action(actions) + self.time(timesteps) + rewards


class Placed(Model):
    """Patches, and the column and row of each."""

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.project, self.places = nn.Linear(3 * 4 * 4, 24), nn.Embedding(50, 24)

    def forward(self, pixel_values: Tensor, pixel_position_ids: Tensor) -> Tensor:
        assert pixel_position_ids.shape == (*pixel_values.shape[:2], 2)
        return self.project(pixel_values) + self.places(pixel_position_ids).sum(-2)


@pytest.mark.parametrize("kind", [Controller, Placed])
def test_arguments_that_only_go_together_are_made_side_by_side(kind: type[Model]) -> None:
    model = kind(Settings()).eval()
    assert torch.isfinite(model(**fixed_inputs(model))).all()


def test_patches_stand_for_places_in_a_text_only_where_no_text_is_taken() -> None:
    names = [sorted(one) for one in joint_inputs(Placed(Settings()), ["pixel_values", "pixel_position_ids"])]
    assert names == [["pixel_position_ids", "pixel_values"]]
    with_text = ["pixel_values", "pixel_position_ids", "input_ids"]
    assert not list(joint_inputs(Placed(Settings()), with_text))
