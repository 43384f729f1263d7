"""The batched routines against slow ones that run a sequence at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import BloomForCausalLM, ByT5Tokenizer, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerFast

from goldstick.errors import DataError, QuantizationError, SourceError, UsageError
from goldstick.evaluation import LanguageModel
from goldstick.evaluation.tokenizer import tokenized
from tests.support.tiny_models import FAMILIES

SEQUENCES = [[1, 5, 9, 40], [1], [1, 7, 7, 7, 80, 90, 11, 3], [1, 200], [], [1, 5, 9, 41, 6]]
PAIRS = [
    ("Is water wet?\nAnswer:", " no"),
    ("Is water wet?\nAnswer:", " yes"),
    ("short ", "x"),
    ("short ", "y"),
    ("", "from nothing"),
    ("a much longer context than the other ones have", " and its end"),
]


class Plain(nn.Module):
    """A model that takes ids and a mask, and keeps neither a cache nor positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(input_ids, attention_mask=attention_mask).logits)


def slow_log_probabilities(model: nn.Module, ids: list[int], first: int = 1) -> list[float]:
    """Each token from a forward pass over exactly what comes before it."""
    found = []
    for t in range(first, len(ids)):
        with torch.no_grad():
            logits = model(torch.tensor([ids[:t]])).logits[0, -1].double()
        found.append(float(logits[ids[t]] - logits.logsumexp(-1)))
    return found


def slow_likelihood(language_model: LanguageModel, context: str, continuation: str) -> float:
    """lm-evaluation-harness's definition, word for word, without batches."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    if context:
        start = language_model.tokenizer(context)["input_ids"]
        target = language_model.tokenizer(context + continuation)["input_ids"][len(start) :]
    else:
        start, target = [1], language_model.tokenizer(continuation, add_special_tokens=False)["input_ids"]
    kept = (start + target)[-(language_model.context_length + 1) :]
    return sum(slow_log_probabilities(language_model.model, kept, len(kept) - len(target)))


def slow_greedy(model: nn.Module, ids: list[int], steps: int) -> list[int]:
    """The likeliest next token, the whole sequence run again each time."""
    start = len(ids)
    for _ in range(steps):
        with torch.no_grad():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == 2:
            break
        ids = [*ids, token]
    return ids[start:]


@pytest.mark.parametrize("tokens_per_batch", [1, 8, 4096])
def test_batched_log_probabilities_equal_those_of_single_forward_passes(
    make_language_model: Callable[..., LanguageModel], tokens_per_batch: int
) -> None:
    model = make_language_model(tokens_per_batch=tokens_per_batch)
    found = model.token_log_probabilities(SEQUENCES)
    for row, ids in zip(found, SEQUENCES, strict=True):
        assert row.dtype == torch.float32
        expected = torch.tensor(slow_log_probabilities(model.model, ids))
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens_per_batch", [1, 64, 4096])
def test_the_batched_log_likelihood_equals_the_unbatched_slow_reference(
    make_language_model: Callable[..., LanguageModel], tokens_per_batch: int
) -> None:
    model = make_language_model(tokens_per_batch=tokens_per_batch)
    expected = [slow_likelihood(model, *pair) for pair in PAIRS]
    assert model.continuation_log_likelihood(PAIRS) == pytest.approx(expected, rel=1e-5)


def test_a_context_that_does_not_fit_is_cut_from_the_left(
    make_language_model: Callable[..., LanguageModel],
) -> None:
    model = make_language_model(context_length=12)
    pairs = [("0123456789" * 3, " yes"), ("abc" * 20, "z")]
    expected = [slow_likelihood(model, *pair) for pair in pairs]
    assert model.continuation_log_likelihood(pairs) == pytest.approx(expected, rel=1e-5)


def test_continuations_of_one_token_share_their_context(language_model: LanguageModel) -> None:
    seen: list[Tensor] = []
    language_model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    pairs = [("question:", letter) for letter in "ABCD"]
    scores = language_model.continuation_log_likelihood(pairs)
    assert [tuple(ids.shape) for ids in seen] == [(1, len("question:") + 1)]
    assert len(set(scores)) == 4


SHARING = [
    *(
        ("A passage that two answers of several tokens share. Is it so?", answer)
        for answer in (" yes", " no", " maybe")
    ),
    *(("A passage that two answers of several tokens share. Was it?", answer) for answer in (" yes", " no")),
    *((f"Some examples that come before every question, alike. Question {n}:", " A") for n in range(5)),
    ("Nothing like the others, and as long as they are, or longer", " end"),
    ("short", " x"),
    ("", "nothing"),
]


def shapes_seen(language_model: LanguageModel) -> list[tuple[int, ...]]:
    """The shapes of the ids of all forward passes from now on."""
    seen: list[tuple[int, ...]] = []
    language_model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return seen


@pytest.mark.parametrize("tokens_per_batch", [1, 150, 300, 4096])
def test_what_prompts_share_is_run_once_and_changes_no_likelihood(
    make_language_model: Callable[..., LanguageModel], tokens_per_batch: int
) -> None:
    model = make_language_model(tokens_per_batch=tokens_per_batch)
    expected = [slow_likelihood(model, *pair) for pair in SHARING]
    seen = shapes_seen(model)
    assert model.continuation_log_likelihood(SHARING) == pytest.approx(expected, rel=1e-4)
    run, whole = sum(rows * tokens for rows, tokens in seen), sum(len("".join(pair)) for pair in SHARING)
    if tokens_per_batch == 4096:
        assert run < 0.7 * whole
    assert all(rows * tokens <= max(tokens_per_batch, 75) for rows, tokens in seen)


@pytest.mark.parametrize("family", [GPT2LMHeadModel, BloomForCausalLM])
def test_prompts_share_their_beginning_in_models_with_other_positions(family: Any, byte_tokenizer: Any) -> None:
    torch.manual_seed(1)
    config = family.config_class(
        vocab_size=300, n_layer=2, n_head=2, **({"n_embd": 32} if family is GPT2LMHeadModel else {"hidden_size": 32})
    )
    model = LanguageModel(family(config).eval(), byte_tokenizer)
    expected = [slow_likelihood(model, *pair) for pair in SHARING]
    seen = shapes_seen(model)
    assert model.continuation_log_likelihood(SHARING) == pytest.approx(expected, rel=1e-4)
    assert sum(rows * tokens for rows, tokens in seen) < 500


def test_a_cache_that_is_not_plain_is_not_shared(language_model: LanguageModel) -> None:
    expected = language_model.continuation_log_likelihood(SHARING)
    language_model.model.config.sliding_window, language_model.model.config.layer_types = 24, ["sliding_attention"] * 2
    windowed = language_model.continuation_log_likelihood(SHARING)
    assert windowed == pytest.approx([slow_likelihood(language_model, *pair) for pair in SHARING], rel=1e-4)
    assert len(expected) == len(windowed)


def test_spaces_at_the_end_of_the_context_belong_to_the_continuation(language_model: LanguageModel) -> None:
    one, other = language_model.continuation_log_likelihood([("Answer: ", "yes"), ("Answer:", " yes")])
    assert one == other


def test_a_model_that_computes_all_logits_scores_as_one_that_can_keep_some(
    language_model: LanguageModel, byte_tokenizer: Any
) -> None:
    plain = LanguageModel(Plain(language_model.model), byte_tokenizer)
    expected = language_model.continuation_log_likelihood(PAIRS)
    assert plain.continuation_log_likelihood(PAIRS) == pytest.approx(expected, rel=1e-5)
    prompts = ["abc", "a longer prompt", "xyz"]
    assert plain.generate_greedy(prompts, 6) == language_model.generate_greedy(prompts, 6)


@pytest.mark.parametrize("family", [LlamaForCausalLM, GPT2LMHeadModel, BloomForCausalLM])
def test_batched_greedy_generation_equals_running_the_whole_sequence_each_step(
    family: type[Any], tiny_model: nn.Module, byte_tokenizer: Any
) -> None:
    """Rotary positions hide a wrong offset; GPT-2's learned ones and BLOOM's biases do not."""
    model = tiny_model
    if family is not LlamaForCausalLM:
        size = {"n_positions": 96} if family is GPT2LMHeadModel else {}
        config = family.config_class(
            vocab_size=259, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=2, **size
        )
        model = family(config).eval()
    language_model = LanguageModel(model, byte_tokenizer)
    prompts = ["abc", "a rather longer prompt", "x"]
    expected = [language_model.decode(slow_greedy(model, language_model.encode(prompt), 12)) for prompt in prompts]
    assert language_model.generate_greedy(prompts, 12) == expected
    assert len(set(expected)) == 3


def test_prompts_of_a_model_without_position_ids_are_not_padded(byte_tokenizer: Any) -> None:
    config = GPT2LMHeadModel.config_class(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=96, initializer_range=0.3, eos_token_id=2
    )
    model = GPT2LMHeadModel(config).eval()
    prompts = ["abc", "a rather longer prompt", "xyz"]
    expected = LanguageModel(model, byte_tokenizer).generate_greedy(prompts, 12)
    assert LanguageModel(Plain(model), byte_tokenizer).generate_greedy(prompts, 12) == expected


def test_generation_ends_before_the_first_stop_string(stories: LanguageModel) -> None:
    prompt = "Once upon a time"
    (whole,) = stories.generate_greedy([prompt], 30)
    word = whole.split()[3]
    (cut,) = stories.generate_greedy([prompt], 30, [word, "never said"])
    assert cut == whole[: whole.index(word)]


def test_padding_does_not_change_what_a_real_model_generates(stories: LanguageModel) -> None:
    prompts = ["Lily and", "Once upon a time, there was a little girl who had a big red ball", "One day"]
    alone = [stories.generate_greedy([prompt], 20)[0] for prompt in prompts]
    assert stories.generate_greedy(prompts, 20) == alone


def test_a_prompt_that_does_not_fit_loses_its_beginning(
    make_language_model: Callable[..., LanguageModel],
) -> None:
    model = make_language_model(context_length=10)
    ids = model.encode("0123456789abcdef")[-6:]
    assert model.generate_greedy(["0123456789abcdef"], 4) == [model.decode(slow_greedy(model.model, ids, 4))]
    with pytest.raises(UsageError, match="max_new_tokens=10"):
        model.generate_greedy(["a"], 10)


def test_nan_logits_are_an_error_and_not_a_wrong_answer(language_model: LanguageModel) -> None:
    with torch.no_grad():
        language_model.model.lm_head.weight[7] = float("nan")
    with pytest.raises(QuantizationError, match="NaN"):
        language_model.continuation_log_likelihood(PAIRS)
    with pytest.raises(QuantizationError, match="NaN"):
        language_model.generate_greedy(["a"], 2)


def test_the_model_keeps_its_training_mode_module_by_module(language_model: LanguageModel) -> None:
    model = language_model.model
    model.train()
    model.lm_head.eval()
    modes = [module.training for module in model.modules()]
    language_model.token_log_probabilities(SEQUENCES)
    language_model.generate_greedy(["a"], 2)
    assert [module.training for module in model.modules()] == modes


def test_advance_counts_to_the_total(language_model: LanguageModel) -> None:
    language_model.tokens_per_batch = 8
    steps: list[tuple[int, int]] = []
    language_model.token_log_probabilities(SEQUENCES, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (len(SEQUENCES), len(SEQUENCES))
    assert steps == sorted(steps) and len(steps) > 1


def test_a_text_with_its_own_beginning_token_gets_no_second_one(language_model: LanguageModel) -> None:
    assert language_model.encode("<s>a") == language_model.encode("a")
    assert language_model.decode(language_model.encode("héllo\n")) == "héllo\n"


def test_the_tokenizer_hash_ignores_padding_set_by_a_call_and_sees_a_new_token(
    language_model: LanguageModel,
) -> None:
    before = language_model.tokenizer_hash
    language_model.tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert language_model.tokenizer_hash == before
    backend = type(language_model.tokenizer.backend_tokenizer).from_str(
        language_model.tokenizer.backend_tokenizer.to_str()
    )
    backend.add_tokens(["entirely new"])
    changed = LanguageModel(language_model.model, SimpleNamespace(backend_tokenizer=backend))
    assert changed.tokenizer_hash != before


def test_a_sequence_longer_than_the_context_is_refused(language_model: LanguageModel) -> None:
    assert language_model.context_length == 96
    with pytest.raises(UsageError, match="97 tokens exceeds the model's context of 96"):
        language_model.token_log_probabilities([[1] * 97])


def test_a_directory_without_a_tokenizer_is_a_source_error(
    tiny_model: nn.Module, byte_tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no such directory"):
        LanguageModel.from_directory(tiny_model, tmp_path / "nowhere")
    for present in (), ("config.json",), ("tokenizer_config.json",):
        for name in present:
            (tmp_path / name).write_text("{}")
        with pytest.raises(SourceError, match=r"tokenizer cannot be read, since its files are missing.*Copy"):
            LanguageModel.from_directory(tiny_model, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SourceError, match=r"tokenizer cannot be read \(.*fetch its files again"):
        LanguageModel.from_directory(tiny_model, tmp_path)
    (tmp_path / "config.json").unlink()
    byte_tokenizer.save_pretrained(tmp_path)
    loaded = LanguageModel.from_directory(tiny_model, tmp_path)
    assert loaded.encode("abc") == LanguageModel(tiny_model, byte_tokenizer).encode("abc")


def test_a_tokenizer_that_breaks_off_is_a_source_error_and_half_a_character_one_of_the_data(
    tiny_model: nn.Module, capfd: pytest.CaptureFixture[str]
) -> None:
    inner = Tokenizer(models.BPE({"a": 0, "!": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    with pytest.raises(SourceError, match=r"breaks off on a text .*retry-limit"):
        LanguageModel(tiny_model, tokenizer).encode("a" * 40 + "!")
    with pytest.raises(DataError, match="half of a character"):
        LanguageModel(tiny_model, tokenizer).encode("a\ud800")
    capfd.readouterr()  # the panic says itself where it was


def test_an_interruption_is_none_of_the_tokenizers() -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenized(stopped, "a")


def test_ids_of_which_the_tokenizer_makes_no_text_are_left_out() -> None:
    found = LanguageModel(FAMILIES["llama_gqa"](), ByT5Tokenizer())
    ids = found.tokenizer("h\u00e9", add_special_tokens=False)["input_ids"]
    with pytest.raises(ValueError, match="range"):
        found.tokenizer.decode([*ids, 399])
    assert found.decode([*ids, 399]) == "h\u00e9"
