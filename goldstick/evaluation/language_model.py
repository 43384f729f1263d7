"""A causal language model as the evaluation tasks see it: text in, log-probabilities or text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from goldstick.core.ranks import Ranks
from goldstick.errors import DataError, UsageError
from goldstick.evaluation.batching import TOKENS_PER_BATCH, Advance, batches_by_length
from goldstick.evaluation.forward import evaluating, takes
from goldstick.evaluation.generation import greedy
from goldstick.evaluation.sampling import likeliest
from goldstick.evaluation.scoring import Measure, score, target_scores
from goldstick.evaluation.tokenizer import (
    find_context_length,
    read_tokenizer,
    require_room,
    special_tokens_around,
    token_ids,
    tokenizer_digest,
)


class LanguageModel:
    """A causal language model and its tokenizer. The model's weights, mode and device stay as they are.

    Args:
        model: any module with a ``config`` whose ``forward(input_ids, attention_mask)`` returns ``.logits``.
        tokenizer: a transformers tokenizer.
        context_length: the most tokens a forward pass may see; read from the configuration where None.
        tokens_per_batch: rows times longest sequence of a batch at most, which bounds the memory for logits.

    Attributes:
        ranks: Who measures it together: batches are divided over them, and every one is given what all found.
    """

    kind: ClassVar[str] = "a causal language model"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        context_length: int | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.context_length = find_context_length(model, tokenizer) if context_length is None else context_length
        self.tokens_per_batch = tokens_per_batch
        self.ranks = Ranks()
        self._around: tuple[list[int], list[int]] | None = None
        if self.context_length < 2 or tokens_per_batch < 1:
            raise UsageError(
                f"context_length={self.context_length} must be 2 or more and "
                f"tokens_per_batch={tokens_per_batch} positive"
            )

    @classmethod
    def from_directory(cls, model: nn.Module, directory: Path | str, **options: Any) -> LanguageModel:
        """Pair ``model`` with the tokenizer in ``directory``: no downloads, and no code of its own is run."""
        return cls(model, read_tokenizer(directory), **options)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, with the special tokens this tokenizer adds by itself.

        A text that already begins with the beginning-of-sequence token gets no second one.
        """
        return token_ids(self.tokenizer, text, special=self._takes_special(text))

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of what is to go on: as `encode` does, without the special tokens behind the text.

        Some tokenizers end every text with the end-of-sequence token, after which nothing goes on.
        """
        if self._around is None:
            self._around = special_tokens_around(self.tokenizer, text)
        before, behind = self._around or ([], [])
        if not behind or not self._takes_special(text):
            return self.encode(text)
        return [*before, *token_ids(self.tokenizer, text, special=False)]

    def _takes_special(self, text: str) -> bool:
        beginning = getattr(self.tokenizer, "bos_token", None)
        return not (beginning and text.startswith(beginning))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out, and those of which the tokenizer makes no text.

        An embedding may have more rows than there are tokens.
        """
        try:
            return self._text(ids)
        except Exception:  # some tokenizers know no text of an id, and each fails in its way
            return self._text([one for one in ids if self._has_text(one)])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _has_text(self, token: int) -> bool:
        try:
            self._text([token])
        except Exception:
            return False
        return True

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of what the tokenizer does: equal hashes, equal token ids for every text."""
        return tokenizer_digest(self.tokenizer)

    def token_log_probabilities(self, ids: Sequence[Sequence[int]], advance: Advance | None = None) -> list[Tensor]:
        """Return log p(ids[t] | ids[:t]) for t = 1, 2, … of each sequence: float32 [len - 1], on the CPU.

        Batched by length with padding on the right, which a causal model's earlier positions cannot see.
        Raises UsageError for a sequence longer than the context, QuantizationError for NaN.
        """
        longest = max((len(sequence) for sequence in ids), default=0)
        if longest > self.context_length:
            raise UsageError(f"a sequence of {longest} tokens exceeds the model's context of {self.context_length}")
        scores = self._score([(list(s[:-1]), [list(s[1:])]) for s in ids], advance)
        return [row[0] for row in scores]

    def continuation_log_likelihood(
        self, pairs: Sequence[tuple[str, str]], advance: Advance | None = None, places: Sequence[str] = ()
    ) -> list[float]:
        """Return log p(continuation | context) in nats for each (context, continuation).

        As lm-evaluation-harness defines it: spaces at the end of the context move to the continuation, both
        are encoded together (as prompts are) and split at the length of the encoded context, an empty context
        becomes the beginning (or end) token, and what does not fit is cut from the left of the context. Equal
        inputs, such as one context with several continuations of a single token, run once. DataError where a
        continuation alone is longer than the model's context; it names the pair's of ``places``, where these are given.
        """
        scored = self._score_continuations(pairs, advance, places=places)
        return [float(tokens.double().sum()) for tokens in scored]

    def continuation_scores(
        self, pairs: Sequence[tuple[str, str]], advance: Advance | None = None
    ) -> list[tuple[float, bool]]:
        """Return (log p(continuation | context), whether greedy generation would give it) for each pair.

        Pairs are encoded as in `continuation_log_likelihood`; of equally likely tokens the first counts.
        """
        scored = self._score_continuations(pairs, advance, target_scores)
        return [(float(tokens[:, 0].double().sum()), bool(tokens[:, 1].all())) for tokens in scored]

    def _score_continuations(
        self, pairs: Sequence[tuple[str, str]], advance: Advance | None, measure: Measure | None = None,
        places: Sequence[str] = (),
    ) -> list[Tensor]:  # fmt: skip
        rows: dict[tuple[int, ...], list[list[int]]] = {}
        slots = []
        for number, (context, continuation) in enumerate(pairs):
            start, target = self._encode_pair(context, continuation)
            require_room(continuation, len(target), self.context_length, *places[number : number + 1])
            kept = (start + target)[-(self.context_length + 1) :]
            row = rows.setdefault(tuple(kept[:-1]), [])
            slots.append((tuple(kept[:-1]), len(row)))
            row.append(target[-(len(kept) - 1) :])
        scored = dict(zip(rows, self._score(list(rows.items()), advance, measure), strict=True))
        return [scored[key][position] for key, position in slots]

    def text_log_likelihood(self, texts: Sequence[str], advance: Advance | None = None) -> list[float]:
        """Return log p(text) in nats for each text, every token of it predicted.

        As lm-evaluation-harness's rolling log-likelihood defines it: the first window begins with the beginning (or
        end) token, every other with the token before it; the last reaches back as far as the context allows.
        """
        rows: list[tuple[list[int], list[list[int]]]] = []
        owners: list[int] = []
        for index, text in enumerate(texts):
            windows = _rolling_windows(self.encode_prompt(text), self.prefix_id(), self.context_length)
            rows += [(ids, [target]) for ids, target in windows]
            owners += [index] * len(windows)
        likelihoods = [0.0] * len(texts)
        for index, (scores,) in zip(owners, self._score(rows, advance), strict=True):
            likelihoods[index] += float(scores.double().sum())
        return likelihoods

    def generate_greedy(
        self,
        prompts: Sequence[str],
        max_new_tokens: int,
        stop: Sequence[str] = (),
        advance: Advance | None = None,
        choose: Callable[[Tensor], Tensor] = likeliest,
    ) -> list[str]:
        """Return the greedy continuation of each prompt, up to the first of ``stop`` (not included).

        Prompts are cut from the left to leave ``max_new_tokens`` of the context. ``choose`` replaces the likeliest
        token by another choice, such as a ``Sampler``.
        """
        room = self.room_for(max_new_tokens)
        encoded = [(self.encode_prompt(prompt) or [self.prefix_id()])[-room:] for prompt in prompts]
        texts, done = [""] * len(prompts), 0
        lengths = [len(ids) + max_new_tokens for ids in encoded]

        def finished(generated: list[int]) -> bool:
            return any(word in self.decode(generated) for word in stop)

        with evaluating(self.model):
            mixed = takes(self.model, "position_ids")  # without them, padding would shift positions
            batches = list(batches_by_length(lengths, self.tokens_per_batch, mixed))

            def generated(number: int) -> list[str]:
                nonlocal done
                rows = [encoded[i] for i in batches[number]]
                new = greedy(self.model, rows, max_new_tokens, self.end_ids(), finished, self._pad_id(), choose)
                found = [self._continuation(prompt, ids) for prompt, ids in zip(rows, new, strict=True)]
                done += len(rows)
                if advance is not None:
                    advance(done, len(prompts))
                return [text[: min([text.find(word) for word in stop if word in text], default=None)] for text in found]

            # One that draws by chance would draw otherwise where it is given other batches before.
            ranks = self.ranks if choose is likeliest else Ranks()
            for batch, found in zip(batches, ranks.each([*map(len, batches)], generated), strict=True):
                for index, text in zip(batch, found, strict=True):
                    texts[index] = text
        return texts

    def room_for(self, max_new_tokens: int) -> int:
        """How many tokens a prompt may have that so many tokens are to follow.

        Raises:
            UsageError: There is no room for any.
        """
        room = self.context_length - max_new_tokens
        if room < 1 or max_new_tokens < 1:
            raise UsageError(f"max_new_tokens={max_new_tokens} must be within the context of {self.context_length}")
        return room

    def _continuation(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        """The text that ``new`` adds to ``prompt``; decoded alone, some tokenizers drop a leading space."""
        before, whole = self.decode(prompt), self.decode([*prompt, *new])
        return whole.removeprefix(before) if whole.startswith(before) else self.decode(new)

    def _score(
        self,
        rows: Sequence[tuple[Sequence[int], list[list[int]]]],
        advance: Advance | None,
        measure: Measure | None = None,
    ) -> list[list[Tensor]]:
        with evaluating(self.model):
            return score(self.model, rows, self._pad_id(), self.tokens_per_batch, advance, measure, self.ranks)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        stripped = context.rstrip()
        whole = stripped + context[len(stripped) :] + continuation
        if not stripped:
            start, target = [self.prefix_id()], token_ids(self.tokenizer, whole, special=False)
        else:
            start, together = self.encode_prompt(stripped), self.encode_prompt(whole)
            target = together[len(start) :]
        if not target:
            raise UsageError(f"the continuation {continuation!r} has no token of its own after {context[-40:]!r}")
        return start, target

    def prefix_id(self) -> int:
        """The token that stands before every text: the beginning token, or the end token."""
        for name in ("bos_token_id", "eos_token_id"):
            value = getattr(self.tokenizer, name, None)
            if value is not None:
                return int(value)
        return 0

    def _pad_id(self) -> int:
        value = getattr(self.tokenizer, "pad_token_id", None)
        return 0 if value is None else int(value)

    def end_ids(self) -> set[int]:
        """Tokens that end a text, as tokenizer, generation settings and config name them.

        Raises:
            DataError: One of them names something else than token ids.
        """
        found: set[int] = set()
        for owner in (self.tokenizer, getattr(self.model, "generation_config", None), self.model.config):
            value = getattr(owner, "eos_token_id", None)
            ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
            if any(type(one) is not int for one in ids):
                raise DataError(
                    f"eos_token_id of the {type(owner).__name__} is {value!r}, and tokens have whole numbers: correct "
                    "it in generation_config.json, or where else it is said"
                )
            found.update(ids)
        return found


def _rolling_windows(ids: list[int], prefix: int, context: int) -> list[tuple[list[int], list[int]]]:
    """Return (input, target) pairs whose targets are the text, once: each the end of what its input predicts."""
    known = [prefix, *ids]
    starts = range(0, len(ids), context)
    ends = [min(start + context, len(ids)) for start in starts]
    return [(known[max(0, end - context) : end], ids[start:end]) for start, end in zip(starts, ends, strict=True)]
