"""The engine: one thread in which a model answers several questions, a token of each in one pass."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Sequence

import torch

from goldstick.errors import UsageError
from goldstick.evaluation.forward import embedding_rows, evaluating, require_numbers
from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.serve.answer import Answer
from goldstick.jobs.serve.decoder import PIECE, Decoder
from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.prefixes import KeptPrefixes
from goldstick.jobs.serve.sequence import (
    FullError,
    Listener,
    Part,
    Question,
    StoppingError,
    TimedOutError,
)
from goldstick.jobs.serve.text_stream import TextStream


class Engine:
    """A model that answers several questions at a time, each as if it were alone.

    In every round each answer gets a token, and of one prompt a piece is read. The tokens go through the model together
    where it gives each the bits that it gives it alone, which is tried at the start; else one after the other. So no
    answer depends on others: greedy ones, and sampled ones of one seed, are the same to the bit as one by one.

    Args:
        language_model: The model and its tokenizer.
        limits: How many answers run and wait, and how long one may take.
    """

    def __init__(self, language_model: LanguageModel, limits: Limits | None = None) -> None:
        self.language_model, self.limits = language_model, limits or Limits()
        self.context = min(self.limits.context or language_model.context_length, language_model.context_length)
        self.rows = embedding_rows(language_model.model)
        self.prefixes = KeptPrefixes(self.limits.prefix_bytes)
        self.tokenizer_lock = threading.Lock()
        self._ends = language_model.end_ids()
        self._new: queue.SimpleQueue[list[Answer] | None] = queue.SimpleQueue()
        self._waiting: list[Answer] = []
        self._running: list[Answer] = []
        self._unfinished = 0
        self._lock = threading.Lock()  # of _unfinished and _stopping
        self._stopping: float | None = None
        self._failure: BaseException | None = None
        self._threads = torch.get_num_threads()
        with evaluating(language_model.model):
            self._decoder = Decoder(language_model.model)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def unfinished(self) -> int:
        """Answers that run or wait."""
        return self._unfinished

    @property
    def alive(self) -> bool:
        """Whether it answers questions."""
        return self._thread.is_alive() and self._stopping is None

    def ask(self, questions: Sequence[tuple[Question, Listener]]) -> list[Answer]:
        """Let questions wait for their turn, all or none; from any thread.

        Listeners are called in the engine's thread and must not take long.

        Raises:
            FullError: Too many wait.
            StoppingError: The engine stops, or has failed.
            UsageError: A prompt does not fit the context with its answer, or no time will have room for all.
        """
        for question, _ in questions:
            self._require_room(question)
        most = self.limits.running + self.limits.waiting
        if len(questions) > most:
            raise UsageError(f"{len(questions)} answers are asked for at once, and {most} may be: ask for fewer.")
        deadline = time.monotonic() + self.limits.seconds
        answers = [
            Answer(question, listener, TextStream(self.decode, question.prompt, question.stop), deadline)
            for question, listener in questions
        ]
        with self._lock:
            if self._stopping is not None or self._failure is not None:
                raise StoppingError("The server is stopping and takes no more requests.")
            if self._unfinished + len(answers) > most:
                raise FullError(
                    f"{self._unfinished} answers are being written or wait, and {most} may: ask again in a while."
                )
            self._unfinished += len(answers)
            self._new.put(answers)  # inside, so that none comes behind the last look of a thread that ends
        return answers

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out; from any thread."""
        with self.tokenizer_lock:
            return self.language_model.decode(ids)

    def texts(self, questions: Sequence[Question]) -> list[str]:
        """The answers to questions, once all are finished.

        Raises:
            GoldstickError: One of them failed.
        """
        return ["".join(part.text for part in parts) for parts in self.parts(questions)]

    def parts(self, questions: Sequence[Question]) -> list[list[Part]]:
        """The parts of answers to any number of questions, which are asked as there is room."""
        found: list[list[Part]] = [[] for _ in questions]
        heard: queue.SimpleQueue[tuple[int, Part | BaseException]] = queue.SimpleQueue()
        left = list(enumerate(questions))
        open_answers: dict[int, Answer] = {}
        try:
            while left or open_answers:
                while left and len(open_answers) < self.limits.running:
                    number, question = left.pop(0)
                    listener = _numbered(heard, number)
                    (open_answers[number],) = self.ask([(question, listener)])
                number, part = heard.get()
                if isinstance(part, BaseException):
                    raise part
                found[number].append(part)
                if part.ending is not None:
                    del open_answers[number]
        finally:
            for answer in open_answers.values():
                answer.cancel()
        return found

    def stream(self, question: Question) -> Generator[Part, None, None]:
        """The parts of one answer as they come; it is cancelled when nobody takes them any more."""
        heard: queue.SimpleQueue[Part | BaseException] = queue.SimpleQueue()
        (answer,) = self.ask([(question, heard.put)])
        try:
            while True:
                part = heard.get()
                if isinstance(part, BaseException):
                    raise part
                yield part
                if part.ending is not None:
                    return
        finally:
            answer.cancel()

    def stop(self, seconds: float) -> None:
        """Take no more questions, and give those that were asked so many seconds; from any thread."""
        with self._lock:
            self._stopping = time.monotonic() + seconds
        self._new.put(None)

    def close(self) -> None:
        """End all answers and the thread."""
        self.stop(0.0)
        self._thread.join()

    def _require_room(self, question: Question) -> None:
        if not question.prompt or question.max_tokens < 1:
            raise UsageError(
                f"a prompt of {len(question.prompt)} tokens, an answer of {question.max_tokens}: each has 1 or more"
            )
        if len(question.prompt) + question.max_tokens > self.context:
            raise UsageError(
                f"the prompt has {len(question.prompt)} tokens and {question.max_tokens} are to follow, more than the "
                f"context of {self.context} holds together: shorten the prompt, or ask for fewer tokens"
            )
        if self.rows is not None and not all(0 <= token < self.rows for token in question.prompt):
            raise UsageError(
                f"the prompt holds a token id that is not from 0 to {self.rows - 1}, which the model knows"
            )

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a thread has a number of its own
        try:
            with evaluating(self.language_model.model):
                while self._receive():
                    self._round()
        except BaseException as error:  # whoever waits is to hear of it
            self._failure = error
        finally:
            with self._lock:
                self._stopping = self._stopping or time.monotonic()
            self._end_all()

    def _receive(self) -> bool:
        """Take what was asked in the meantime, waiting where there is nothing to do; false at the end."""
        while True:
            idle = not self._running and not self._waiting
            try:
                self._waiting += self._new.get(block=idle and self._stopping is None) or []
            except queue.Empty:
                return not idle

    def _round(self) -> None:
        for answer in [*self._running, *self._waiting]:
            self._end_if_unwanted(answer)
        while self._waiting and len(self._running) < self.limits.running:
            answer = self._waiting.pop(0)
            self._running.append(answer)
        turns = [answer for answer in self._running if not answer.reading]
        turns = self._advance_together(turns) + [answer for answer in self._running if answer.reading][:1]
        for answer in turns:
            try:
                self._advance(answer)
            except Exception as error:  # of this answer: others go on
                self._finish(answer, error)

    def _end_if_unwanted(self, answer: Answer) -> None:
        now = time.monotonic()
        if answer.cancelled:
            self._finish(answer, answer.part("", "cancelled"))
        elif now > answer.deadline:
            self._finish(answer, TimedOutError(f"The answer took longer than {self.limits.seconds:g} seconds."))
        elif self._stopping is not None and now > self._stopping:
            self._finish(answer, StoppingError("The server was stopped before the answer was finished."))

    def _advance(self, answer: Answer) -> None:
        question, decoder = answer.question, self._decoder
        prompt = len(question.prompt)
        if not answer.started:
            answer.started = True
            if decoder.in_pieces:
                answer.read, answer.cache = self.prefixes.find(question.prompt)
                answer.cached = answer.read
        end = decoder.end_of_pass(answer.read, prompt, len(answer.ids))
        logits, answer.cache = decoder.advance(answer.ids, answer.read, end, answer.cache)
        answer.read = end
        if decoder.in_pieces and end == (prompt - 1) // PIECE * PIECE:
            self.prefixes.keep(question.prompt[:end], answer.cache)
        if end >= prompt and (last := answer.go_on(logits, self._ends)) is not None:
            self._finish(answer, last)

    def _advance_together(self, answers: list[Answer]) -> list[Answer]:
        """Give answers their next tokens in one pass; those that it cannot give them are returned."""
        alike = [one for one in answers if one.cache is not None and len(one.ids) == one.read + 1 and self._knows(one)]
        if len(alike) < 2 or not self._decoder.together:
            return answers
        try:
            logits = self._decoder.advance_together([one.ids[-1] for one in alike], [one.cache for one in alike])
        except Exception:  # each hears of its own, alone
            return answers
        if logits is None:
            return answers
        for answer, row in zip(alike, logits, strict=True):
            answer.read += 1
            last: Part | BaseException | None
            try:
                last = answer.go_on(require_numbers(row), self._ends)
            except Exception as error:  # of this answer: others go on
                last = error
            if last is not None:
                self._finish(answer, last)
        return [one for one in answers if one not in alike]

    def _knows(self, answer: Answer) -> bool:
        return self.rows is None or answer.ids[-1] < self.rows

    def _finish(self, answer: Answer, last: Part | BaseException) -> None:
        for group in (self._running, self._waiting):
            if answer in group:
                group.remove(answer)
        answer.cache = None
        with self._lock:
            self._unfinished -= 1
        answer.tell(last)

    def _end_all(self) -> None:
        while not self._new.empty():
            self._waiting += self._new.get() or []
        for answer in [*self._running, *self._waiting]:
            self._finish(
                answer, self._failure or StoppingError("The server was stopped before the answer was finished.")
            )


def _numbered(heard: queue.SimpleQueue[tuple[int, Part | BaseException]], number: int) -> Listener:
    return lambda part: heard.put((number, part))
