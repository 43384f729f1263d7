"""A token of each of several sequences in one pass gives each the bits that it gets alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import goldstick
from goldstick.core.kv_cache import KVScheme, KVSettings
from goldstick.evaluation.forward import evaluating
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.cache import use_quantized_cache
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load
from goldstick.jobs.serve.decoder import Decoder
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.sequence import Question
from goldstick.nn.fused import decode_block
from goldstick.nn.fused.separate_caches import NotTogetherError, SeparateCaches
from tests.support.tiny_models import FAMILIES

SCHEMES = ("w4a16-g128", "w4a16-g32-asym", "w8a16", "w3a16-g128", "w8a8-dynamic", "q4_0", "q6_k")
LENGTHS = (3, 40, 1, 17, 64, 2, 33, 9)
CACHES = {
    "w4a16-g128 over int8": KVScheme(mode="dynamic", keys="head"),
    "w4a16-g128 over fp8": KVScheme(mode="dynamic", keys="head", dtype="fp8", sinks=1),
    "w4a16-g128 over int4": KVScheme(mode="dynamic", keys="head", dtype="int4", rotate=True),
}


@pytest.fixture(scope="module", params=[*SCHEMES, "w4a16-g128 in float32", *CACHES])
def model(request: pytest.FixtureRequest) -> Any:
    scheme, _, dtype = request.param.partition(" over ")[0].partition(" in ")
    loaded = load(reference_directory(), dtype=dtype or "auto").eval()
    made = goldstick.apply(loaded, f"rtn-{scheme}", inplace=True).model
    if request.param in CACHES:
        use_quantized_cache(made, KVSettings(scheme=CACHES[request.param], scales={}))
    goldstick.optimize(made)
    with evaluating(made):
        return made


def prompts(count: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    return [torch.randint(3, 90, (length,), generator=random).tolist() for length in LENGTHS[:count]]


def greedy_alone(decoder: Decoder, prompt: list[int], steps: int) -> list[torch.Tensor]:
    ids, cache, found = [*prompt], None, []
    for read in [0, *range(len(prompt), len(prompt) + steps)]:
        logits, cache = decoder.advance(ids, read, len(ids), cache)
        ids.append(int(logits.argmax()))
        found.append(logits)
    return found


@pytest.fixture(scope="module")
def alone(model: Any) -> list[list[torch.Tensor]]:
    """The logits of each prompt's tokens where it is the only one."""
    with torch.no_grad():
        return [greedy_alone(Decoder(model), prompt, 4) for prompt in prompts(len(LENGTHS))]


def greedy_together(decoder: Decoder, asked: Sequence[list[int]], steps: int) -> list[list[torch.Tensor]]:
    first = [decoder.advance(prompt, 0, len(prompt), None) for prompt in asked]
    found, caches = [[logits] for logits, _ in first], [cache for _, cache in first]
    for _ in range(steps):
        logits = decoder.advance_together([int(one[-1].argmax()) for one in found], caches)
        assert logits is not None
        for one, row in zip(found, logits, strict=True):
            one.append(row)
    return found


@torch.no_grad()
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_logits_of_sequences_together_are_those_of_each_alone_to_the_bit(
    count: int, model: Any, alone: list[list[torch.Tensor]]
) -> None:
    decoder = Decoder(model)
    assert decoder.together
    together = greedy_together(decoder, prompts(count), 4)
    for one, other in zip(alone[:count], together, strict=True):
        assert all(map(torch.equal, one, other))


@torch.no_grad()
def test_a_pass_that_cannot_be_leaves_every_cache_as_it_was(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, asked = Decoder(model), prompts(2)
    caches = [decoder.advance(prompt, 0, len(prompt), None)[1] for prompt in asked]
    expected = [decoder.advance([7], 0, 1, copy.deepcopy(cache)) for cache in caches]
    last = max(model.modules(), key=lambda one: getattr(getattr(one, "self_attn", None), "layer_idx", -1))
    assert isinstance(last.forward, decode_block.FusedDecodeBlock)
    with monkeypatch.context() as patch:
        patch.setattr(last, "forward", type(last).forward.__get__(last))  # after others have written
        assert decoder.advance_together([7, 7], caches) is None
    assert [cache.get_seq_length() for cache in caches] == [len(prompt) for prompt in asked]
    for (logits, _), cache in zip(expected, caches, strict=True):
        assert torch.equal(logits, decoder.advance([7], 0, 1, cache)[0])


def test_the_engine_gives_answers_their_tokens_in_one_pass(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    honest = Decoder.advance_together

    def counted(self: Decoder, tokens: Sequence[int], caches: Sequence[Any]) -> Any:
        passes.append(len(tokens))
        return honest(self, tokens, caches)

    monkeypatch.setattr(Decoder, "advance_together", counted)
    asked = [Question(prompt=tuple(prompt[:8]), max_tokens=12) for prompt in prompts(4)]
    with Engine(language_model, Limits(running=4)) as engine:
        passes.clear()  # the trial
        engine.parts(asked)
    assert max(passes) == 4 and len(passes) <= 20


def test_models_without_such_blocks_take_turns() -> None:
    model = FAMILIES["gpt2"]().eval()
    assert not Decoder(model).together


def test_nothing_but_those_blocks_writes_into_several_caches() -> None:
    with pytest.raises(NotTogetherError):
        SeparateCaches([None]).update()
