"""Several answers at a time are those that come one by one, whatever the model; and answers end when they should."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.core.kv_cache import KVScheme, KVSettings
from goldstick.errors import UsageError
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.sampling import Sampling
from goldstick.hf.cache import use_quantized_cache
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load
from goldstick.jobs.load.runnable import with_tokenizer
from goldstick.jobs.serve.decoder import PIECE
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.sequence import FullError, Part, Question, StoppingError, TimedOutError
from tests.support.served import wait_until
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

LENGTHS = (3, 1, 17, PIECE, PIECE + 1, 20, 5, PIECE + 30)
TINY = ("llama_gqa", "gemma2", "mixtral", "gpt2", "bloom")
#: Recipes of the bundled model; the last ones get a cache of int8, too, and one that keeps its newest tokens in float.
RECIPES = {
    "float": None,
    "w4": "rtn-w4a16-g128",
    "w8a8, cache of int8": "rtn-w8a8-dynamic",
    "cache with a window": None,
}
CACHES = {
    "w8a8, cache of int8": KVScheme(mode="dynamic", keys="head"),
    "cache with a window": KVScheme(mode="dynamic", keys="head", window=8, sinks=2),
}


def questions(model: LanguageModel, tokens: int = 12) -> list[Question]:
    """Prompts of all lengths, greedy and drawn."""
    random = torch.Generator().manual_seed(3)
    found = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(3, 90, (length,), generator=random).tolist()
        most = min(tokens, model.context_length - length)
        if most > 0:
            sampling = Sampling(temperature=float(number % 2), seed=number)
            found.append(Question(prompt=tuple(ids), max_tokens=most, sampling=sampling, logprobs=1))
    return found


@pytest.fixture(params=[*TINY, *RECIPES])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LanguageModel:
    """A model of some family, or the bundled one compressed in some way."""
    if request.param in TINY:
        directory = tmp_path / request.param
        FAMILIES[request.param]().save_pretrained(directory)
        write_tokenizer(directory)
        return with_tokenizer(load(directory), directory)
    loaded = load(reference_directory())
    recipe = RECIPES[request.param]
    if recipe is not None:
        loaded = goldstick.apply(loaded, recipe, inplace=True).model
    if request.param in CACHES:
        use_quantized_cache(loaded, KVSettings(scheme=CACHES[request.param], scales={}))
    goldstick.optimize(loaded)
    return with_tokenizer(loaded, reference_directory())


def test_answers_at_a_time_are_those_one_by_one_to_the_bit(model: LanguageModel) -> None:
    asked = questions(model)
    assert len(asked) >= 6
    one_by_one = []
    with Engine(model, Limits(running=1, prefix_bytes=0)) as engine:
        for question in asked:
            one_by_one += engine.parts([question])
    with Engine(model, Limits(running=len(asked))) as engine:
        together = engine.parts(asked)
        again = engine.parts(asked)
        cached = [parts[-1].cached for parts in again]
    for found in (together, again):
        assert [told(parts) for parts in found] == [told(parts) for parts in one_by_one]
    assert max(cached) == PIECE


def told(parts: list[Part]) -> object:
    """Everything an answer says, its log-probabilities to the last bit."""
    return "".join(part.text for part in parts), [one for part in parts for one in part.tokens], parts[-1].ending


@pytest.fixture
def engine(language_model: LanguageModel) -> Iterator[Engine]:
    """Two answers at a time, and two that wait."""
    with Engine(language_model, Limits(running=2, waiting=2)) as made:
        yield made


def long_question(tokens: int = 400) -> Question:
    """One whose answer takes a while, since it draws what hardly ever ends."""
    return Question(prompt=(5, 6, 7), max_tokens=tokens, sampling=Sampling(temperature=2.0, seed=1))


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.parts: list[Part | BaseException] = []
        self.last: queue.Queue[Part | BaseException] = queue.Queue()

    def __call__(self, part: Part | BaseException) -> None:
        self.parts.append(part)
        if isinstance(part, BaseException) or part.ending is not None:
            self.last.put(part)


def test_a_cancelled_answer_makes_room(engine: Engine) -> None:
    heard = [Heard() for _ in range(3)]
    answers = engine.ask([(long_question(), one) for one in heard])
    wait_until(lambda: len(heard[0].parts) > 2)
    assert heard[2].parts == []
    for answer in answers[:2]:
        answer.cancel()
    for one in heard[:2]:
        last = one.last.get(timeout=30)
        assert isinstance(last, Part) and last.ending == "cancelled"
    wait_until(lambda: len(heard[2].parts) > 2)
    answers[2].cancel()
    heard[2].last.get(timeout=30)
    assert engine.unfinished == 0


def test_more_than_may_wait_are_refused_all_or_none(engine: Engine) -> None:
    heard = [Heard() for _ in range(4)]
    answers = engine.ask([(long_question(), one) for one in heard[:3]])
    with pytest.raises(FullError, match="3 answers are being written or wait, and 4 may"):
        engine.ask([(long_question(), heard[3])] * 2)
    answers += engine.ask([(long_question(), heard[3])])
    for answer in answers:
        answer.cancel()
    for one in heard:
        one.last.get(timeout=30)
    assert engine.texts([Question(prompt=(5, 6, 7), max_tokens=3)])


def test_an_answer_that_takes_too_long_says_so(language_model: LanguageModel) -> None:
    with Engine(language_model, Limits(seconds=0.05)) as engine, pytest.raises(TimedOutError, match=r"0\.05 seconds"):
        engine.texts([long_question()])


def test_what_fails_in_one_answer_leaves_the_others(language_model: LanguageModel, engine: Engine) -> None:
    def fails(_: Part | BaseException) -> None:
        raise RuntimeError("nobody there")

    engine.ask([(long_question(), fails)])
    wait_until(lambda: engine.unfinished == 0)
    broken = engine._decoder.advance

    def advance(ids: list[int], *more: object) -> object:
        if ids[0] == 9:
            raise MemoryError("not today")
        return broken(ids, *more)  # type: ignore[arg-type]

    engine._decoder.advance = advance  # type: ignore[assignment, method-assign]
    with pytest.raises(MemoryError, match="not today"):
        engine.texts([Question(prompt=(9,), max_tokens=2)])
    assert engine.texts([Question(prompt=(5, 6, 7), max_tokens=3)])
    assert engine.alive and engine.unfinished == 0


def test_a_prompt_that_does_not_fit_is_refused_before_it_waits(engine: Engine) -> None:
    for prompt, tokens, says in (
        ((), 1, "0 tokens"),
        ((1,), 0, "an answer of 0"),
        ((1,) * 500, 13, "context of 512"),
        ((3072,), 1, "from 0 to 3071"),
        ((-1,), 1, "from 0 to 3071"),
    ):
        with pytest.raises(UsageError, match=says):
            engine.texts([Question(prompt=prompt, max_tokens=tokens)])
    assert len(engine.parts([Question(prompt=(1,) * 500, max_tokens=12)])[0]) > 0


def test_an_engine_that_stops_lets_answers_end_and_takes_no_more(language_model: LanguageModel) -> None:
    with Engine(language_model) as engine:
        short, long = Heard(), Heard()
        engine.ask([(Question(prompt=(5, 6, 7), max_tokens=4), short), (long_question(), long)])
        wait_until(lambda: bool(short.parts))
        engine.stop(60)
        with pytest.raises(StoppingError, match="takes no more"):
            engine.texts([long_question()])
        assert isinstance(short.last.get(timeout=30), Part)
        engine.stop(0)
        last = long.last.get(timeout=30)
        assert isinstance(last, StoppingError) or (isinstance(last, Part) and last.ending == "length")
        assert not engine.alive
    assert not any(thread.name == "engine" for thread in threading.enumerate())


def test_a_stream_that_nobody_takes_is_cancelled(engine: Engine) -> None:
    stream = engine.stream(long_question())
    assert next(stream).ending is None
    assert engine.unfinished == 1
    stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: engine.unfinished == 0)
    assert engine.alive


def test_a_long_prompt_does_not_keep_others_waiting(language_model: LanguageModel) -> None:
    """Its pieces are read between the tokens of others."""
    with Engine(language_model) as engine:
        first = Heard()
        running = engine.ask([(long_question(), first)])
        wait_until(lambda: len(first.parts) > 1)
        before = len(first.parts)
        done = Heard()
        engine.ask([(Question(prompt=tuple(range(3, 387)), max_tokens=1), done)])
        done.last.get(timeout=30)
        meanwhile = len(first.parts) - before
        running[0].cancel()
        first.last.get(timeout=30)
    assert meanwhile >= 384 // PIECE - 1
