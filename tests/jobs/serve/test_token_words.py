"""Tokens with their log-probabilities: what each says in the text, and where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models

from goldstick.jobs.serve.answers import Form, Written
from goldstick.jobs.serve.sequence import Chosen, Part
from goldstick.jobs.serve.token_words import Places, TokenWords

BYTES = [f"<0x{byte:02X}>" for byte in "😀".encode()]
PIECES = ["▁a", "▁the", "the", "n", "▁", *BYTES, "<0xFF>"]


@pytest.fixture(scope="module")
def words() -> TokenWords:
    """Of a tokenizer as Llama's: decoded alone, a token loses the space before it; bytes make characters."""
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(PIECES)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    assert tokenizer.decode([1]) == "the"
    return TokenWords(tokenizer.decode, [0])


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def form(words: TokenWords, chat: bool = False) -> Form:
    return Form(model="m", chat=chat, word=words, logprobs=True)


def chosen(pieces: Sequence[str]) -> tuple[Chosen, ...]:
    return tuple(Chosen(token=one, logprob=-1.0) for one in ids(*pieces))


def test_a_token_keeps_the_space_before_it(words: TokenWords) -> None:
    assert [words([one]) for one in ids("▁the", "the", "n", "▁")] == [" the", "the", "n", " "]
    assert words(ids(*BYTES)) == "😀"
    assert words(ids(BYTES[0])) == "\ufffd"


def test_places_are_those_of_the_text_whatever_a_character_is_made_of(words: TokenWords) -> None:
    answer = Written(text=" the😀n the", tokens=list(chosen(["▁the", *BYTES, "n", "▁the"])), ending="stop")
    told = form(words).whole([answer], [1])["choices"][0]["logprobs"]
    assert told["text_offset"] == [0, 4, 4, 4, 4, 5, 6]
    assert [answer.text[told["text_offset"][place] :][:4] for place in (0, 1, 5)] == [" the", "😀n t", "n th"]


def test_halves_that_become_no_character_are_passed(words: TokenWords) -> None:
    places = Places()
    assert [places.of_next(one, words) for one in ids(*["<0xFF>"] * 6, "n")] == [0, 0, 0, 0, 4, 4, 4]


def test_places_in_a_stream_are_those_of_the_whole(words: TokenWords) -> None:
    """Also where text is held back, so that a chunk has tokens whose text comes later."""
    chunks = [(" the", ["▁the", BYTES[0]]), ("", BYTES[1:]), ("😀n", ["n"]), (" the", ["▁the"])]
    answer, found = Written(), []
    for text, pieces in chunks:
        part = Part(text=text, tokens=chosen(pieces))
        found += form(words).chunk(0, part, answer)["choices"][0]["logprobs"]["text_offset"]
        answer.add(part)
    assert found == [0, 4, 4, 4, 4, 5, 6]


def test_of_tokens_of_one_text_the_likeliest_is_told(words: TokenWords) -> None:
    likeliest = tuple(zip(ids("▁the", "the", *BYTES[:2]), (-0.1, -0.2, -0.3, -0.4), strict=True))
    answer = Written(tokens=[Chosen(token=1, logprob=-0.1, likeliest=likeliest)])
    told = form(words).whole([answer], [1])["choices"][0]["logprobs"]
    assert told["top_logprobs"] == [{" the": -0.1, "the": -0.2, "\ufffd": -0.3}]


def test_half_of_a_character_is_told_without_bytes(words: TokenWords) -> None:
    answer = Written(tokens=list(chosen(["▁the", BYTES[0]])))
    whole, half = form(words, chat=True).whole([answer], [1])["choices"][0]["logprobs"]["content"]
    assert (whole["token"], whole["bytes"]) == (" the", list(b" the"))
    assert (half["token"], half["bytes"]) == ("\ufffd", None)
