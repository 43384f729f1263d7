"""The official client of OpenAI's interface, call by call."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from goldstick.evaluation.language_model import LanguageModel
from tests.support.examples import blocks_of
from tests.support.served import NAME, TEMPLATE, Served

SAID = "The harbour lies"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the harbour?"}]


@pytest.fixture(scope="module")
def greedy(language_model: LanguageModel) -> str:
    """What the model writes, asked without a server."""
    (text,) = language_model.generate_greedy([SAID], 24)
    return text


def test_the_model_is_listed(server: Served) -> None:
    client = server.client()
    (card,) = client.models.list().data
    assert card.id == NAME
    assert client.models.retrieve(NAME) == card
    assert server.raw("GET", "/health") == (200, {"status": "ok", "model": NAME, "unfinished": 0})


def test_a_completion_is_what_the_model_writes_by_itself(
    server: Served, language_model: LanguageModel, greedy: str
) -> None:
    found = server.client().completions.create(model=NAME, prompt=SAID, max_tokens=24, temperature=0)
    assert [choice.text for choice in found.choices] == [greedy]
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(language_model.encode(SAID))
    assert found.usage.completion_tokens == 24
    assert found.usage.total_tokens == found.usage.prompt_tokens + 24


def test_a_stream_adds_up_to_the_whole(server: Served, greedy: str) -> None:
    stream = server.client().completions.create(model=NAME, prompt=SAID, max_tokens=24, temperature=0, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in chunks) == greedy
    assert len(chunks) > 10
    assert [choice.finish_reason for choice in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_a_conversation_goes_through_the_template(server: Served, language_model: LanguageModel) -> None:
    asked = "[system] Be brief. [user] Where is the harbour? "
    assert TEMPLATE.count("{%") == 2
    (expected,) = language_model.generate_greedy([asked], 12)
    client = server.client()
    found = client.chat.completions.create(model=NAME, messages=ASKED, max_completion_tokens=12, temperature=0)  # type: ignore[call-overload]
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content == expected
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}]
    stream = client.chat.completions.create(
        model=NAME, messages=[*parts, ASKED[1]], max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # type: ignore[call-overload]  # fmt: skip
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert last.choices == []
    assert last.usage == found.usage


def test_an_answer_ends_before_a_stop_string(server: Served, greedy: str) -> None:
    client = server.client()
    word = greedy[17:22]  # over the bounds of tokens
    options = {"model": NAME, "prompt": SAID, "max_tokens": 24, "temperature": 0, "stop": ["zzz", word]}
    found = client.completions.create(**options)  # type: ignore[call-overload]
    assert found.choices[0].text == greedy[: greedy.find(word)]
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens < 24
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))  # type: ignore[call-overload]
    assert streamed == found.choices[0].text


def test_log_probabilities_are_the_models(server: Served, language_model: LanguageModel) -> None:
    client = server.client()
    found = client.completions.create(model=NAME, prompt=SAID, max_tokens=6, temperature=0, logprobs=3)
    told = found.choices[0].logprobs
    assert told is not None and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert "".join(told.tokens) == found.choices[0].text
    ids = language_model.encode(SAID + found.choices[0].text)
    (expected,) = language_model.token_log_probabilities([ids])
    assert told.token_logprobs == pytest.approx(expected[-6:].tolist(), abs=0.05)
    assert [max(likeliest.values()) for likeliest in told.top_logprobs] == told.token_logprobs
    places = zip(told.text_offset, told.tokens, strict=True)
    assert [found.choices[0].text[place:][: len(word)] for place, word in places] == told.tokens
    chat = client.chat.completions.create(
        model=NAME, messages=ASKED, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )  # type: ignore[call-overload]
    content = chat.choices[0].logprobs.content
    assert len(content) == 4
    assert all(len(one.top_logprobs) == 2 and one.bytes == list(one.token.encode()) for one in content)
    assert all(math.isclose(one.logprob, one.top_logprobs[0].logprob) for one in content)
    streamed = client.chat.completions.create(
        model=NAME, messages=ASKED, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2, stream=True
    )  # type: ignore[call-overload]
    parts = [one for chunk in streamed if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert parts == content


def test_a_seed_draws_the_same_and_another_draws_others(server: Served) -> None:
    client = server.client()

    def drawn(seed: int | None, **more: object) -> list[str]:
        found = client.completions.create(model=NAME, prompt=SAID, max_tokens=16, temperature=1.0, seed=seed, **more)  # type: ignore[call-overload]
        return [choice.text for choice in found.choices]

    three = drawn(7, n=3)
    assert drawn(7, n=3) == three
    assert len(set(three)) == 3
    assert drawn(8) == three[1:2]
    assert drawn(None) != drawn(None)
    (greedy,) = drawn(7, top_p=1e-6)
    assert greedy == client.completions.create(model=NAME, prompt=SAID, max_tokens=16, temperature=0).choices[0].text


def test_several_prompts_are_answered_in_their_order(server: Served, language_model: LanguageModel) -> None:
    prompts = [SAID, "The island", "In the square"]
    expected = [language_model.generate_greedy([prompt], 8)[0] for prompt in prompts]
    client = server.client()
    found = client.completions.create(model=NAME, prompt=prompts, max_tokens=8, temperature=0)
    assert [choice.text for choice in found.choices] == expected
    tokens = [language_model.encode(prompt) for prompt in prompts]
    again = client.completions.create(model=NAME, prompt=tokens, max_tokens=8, temperature=0)
    assert [choice.text for choice in again.choices] == expected
    alone = client.completions.create(model=NAME, prompt=tokens[1], max_tokens=8, temperature=0)
    assert alone.choices[0].text == expected[1]


def test_eight_clients_at_a_time_get_what_each_gets_alone(server: Served) -> None:
    prompts = [
        "The harbour lies",
        "The island",
        "In the square",
        "A tree",
        "The",
        "Once",
        "The duck " * 30,
        "River " * 9,
    ]
    options = {"model": NAME, "max_tokens": 24, "temperature": 0}
    alone = [server.client().completions.create(prompt=one, **options).choices[0].text for one in prompts]  # type: ignore[call-overload]
    found: dict[tuple[int, int], str] = {}

    def asks(number: int) -> None:
        client = server.client()
        for time in range(3):
            stream = client.completions.create(prompt=prompts[number], stream=True, **options)  # type: ignore[call-overload]
            found[number, time] = "".join(chunk.choices[0].text for chunk in stream)

    clients = [threading.Thread(target=asks, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert found == {(number, time): alone[number] for number in range(8) for time in range(3)}
    assert server.engine.unfinished == 0


def test_the_documented_example_runs(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[3] / "docs" / "serve.md"
    (code,) = [block.text for block in blocks_of(page) if block.language == "python"]
    assert code.count("http://127.0.0.1:8000/v1") == 1
    exec(compile(code.replace(":8000", f":{server.port}"), "serve.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20
