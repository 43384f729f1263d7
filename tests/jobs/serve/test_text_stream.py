"""Text that comes out token by token is the whole text, in whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.serve.text_stream import TextStream


def of_bytes(ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes."""
    return bytes(ids).decode(errors="replace")


def of_words(ids: Sequence[int]) -> str:
    """A tokenizer that drops the space before the first word, as those after sentencepiece do."""
    return "".join(f" w{number}" for number in ids)[1:]


def streamed(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.add(one) for one in ids), stream.finish()]


@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_parts_are_whole_characters_and_add_up(before: str, text: str) -> None:
    parts = streamed(TextStream(of_bytes, before.encode()), text.encode())
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in part for part in parts)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_whole_stop_string_of_which_nothing_is_shown(text: str, stop: list[str]) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(word) for word in stop)]
    expected = text
    if ends:
        expected = text[: min(ends[0] - len(word) for word in stop if text[: ends[0]].endswith(word))]
    stream = TextStream(of_bytes, b"", stop)
    shown = ""
    for one in text.encode():
        shown += stream.add(one)
        assert expected.startswith(shown)
    assert shown + stream.finish() == expected
    assert stream.stopped == bool(ends)


def test_the_space_before_an_answer_is_kept() -> None:
    assert streamed(TextStream(of_words, [1, 2]), [3, 4]) == [" w3", " w4", ""]
    assert "".join(streamed(TextStream(of_words, []), [3, 4])) == "w3 w4"


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert streamed(TextStream(of_bytes, b"x"), "é".encode()[:1]) == ["", "\ufffd"]


@given(st.lists(st.sampled_from([b"\xff", b"\x80", b"\xf0\x9f", b"\xe6\x9d", b"a", "é".encode()]), max_size=60))
def test_bytes_that_are_no_text_come_out_as_they_are_decoded_at_once(pieces: list[bytes]) -> None:
    ids = b"".join(pieces)
    assert "".join(streamed(TextStream(of_bytes, b""), ids)) == of_bytes(ids)


@pytest.mark.parametrize("token", [0xFF, 0x80, 0xF0, 256], ids=["never", "inside", "beginning", "no text"])
def test_each_token_is_decoded_a_few_times_alone(token: int) -> None:
    decoded = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return of_bytes([one for one in ids if one < 256])

    parts = streamed(TextStream(decode, b"The"), [token] * 3000 + [*"é".encode()])
    assert "".join(parts) == "\ufffd" * (3000 if token < 256 else 0) + "é"
    assert decoded < 100 * 3000


@pytest.mark.parametrize(
    "text", ["The harbour lies on the river Luna.", "Déjà vu, 東京 \N{GRINNING FACE}!", "  two  spaces\n\n"]
)
def test_a_real_tokenizer_gives_its_whole_text(language_model: LanguageModel, text: str) -> None:
    prompt, ids = language_model.encode("The island"), language_model.encode(text)
    whole = language_model.decode([*prompt, *ids]).removeprefix(language_model.decode(prompt))
    assert "".join(streamed(TextStream(language_model.decode, prompt), ids)) == whole
