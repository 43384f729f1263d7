"""The interface over HTTP: OpenAI's, for one model."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from goldstick.errors import GoldstickError
from goldstick.evaluation.sampling import Sampling
from goldstick.jobs.serve.answers import Form, Written
from goldstick.jobs.serve.body_limit import BodyLimit
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.host_names import HostNames
from goldstick.jobs.serve.listening import ClientGoneError, Listening
from goldstick.jobs.serve.prompts import Prompts
from goldstick.jobs.serve.refusals import Refusal, refusal_of
from goldstick.jobs.serve.requests import Asking, ChatRequest, CompletionRequest
from goldstick.jobs.serve.sequence import Question
from goldstick.jobs.serve.token_words import TokenWords

_NOBODY_READS = 499
"""A status that no client sees: it left."""

_DEFAULT_COMPLETION = 16
"""Tokens of a completion whose request does not say how many, as OpenAI's interface has it."""


def make_app(engine: Engine, prompts: Prompts, name: str, hosts: Collection[str] | None = None) -> FastAPI:
    """The application that answers for a model.

    Args:
        engine: The model at work.
        prompts: What makes token ids of words.
        name: What the model is called in requests.
        hosts: Names by which this machine may be asked besides its own; any name where ``None``.
    """
    app = FastAPI(title="goldstick", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, limits=engine.limits)
    if hosts is not None:
        app.add_middleware(HostNames, names=hosts)
    _refuse_in_json(app)
    with engine.tokenizer_lock:
        before = engine.language_model.encode_prompt("a")
    words = TokenWords(engine.decode, before)
    created = int(time.time())
    card = {"id": name, "object": "model", "created": created, "owned_by": "goldstick"}
    card["max_model_len"] = engine.context

    @app.get("/health")
    async def health() -> Response:
        state = {"status": "ok" if engine.alive else "stopping", "model": name, "unfinished": engine.unfinished}
        return JSONResponse(state, 200 if engine.alive else 503)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        _require_model(model, name)
        return JSONResponse(card)

    @app.post("/v1/chat/completions")
    async def chat(asked: ChatRequest, request: Request) -> Response:
        _require_model(asked.model, name)
        asked.refuse_unknown()
        if asked.top_logprobs is not None and not asked.logprobs:
            raise Refusal(status=400, message="top_logprobs needs logprobs=true.", param="top_logprobs")
        ids = await run_in_threadpool(prompts.of_messages, [message.plain() for message in asked.messages])
        most = asked.max_completion_tokens or asked.max_tokens
        wanted = (asked.top_logprobs or 0) if asked.logprobs else None
        form = Form(model=name, chat=True, word=words, logprobs=wanted is not None)
        return await _answer(engine, request, asked, form, _questions(engine, asked, [ids], most, wanted))

    @app.post("/v1/completions")
    async def complete(asked: CompletionRequest, request: Request) -> Response:
        _require_model(asked.model, name)
        asked.refuse_unknown()
        texts = await run_in_threadpool(_ids_of, prompts, asked.prompt, engine.limits.choices)
        form = Form(model=name, chat=False, word=words, logprobs=asked.logprobs is not None)
        questions = _questions(engine, asked, texts, asked.max_tokens, asked.logprobs, _DEFAULT_COMPLETION)
        return await _answer(engine, request, asked, form, questions)

    return app


def _require_model(asked: str, name: str) -> None:
    if asked != name:
        message = f"There is no model {asked[:200]!r} here, only {name!r}."
        raise Refusal(status=404, message=message, code="model_not_found", param="model")


def _ids_of(prompts: Prompts, asked: Any, most: int) -> list[list[int]]:
    """Token ids of each prompt of a completion."""
    if isinstance(asked, str):
        return [prompts.of_text(asked)]
    if not asked or any(one == [] for one in asked):
        raise Refusal(status=400, message="A list of no prompts or tokens asks for nothing.", param="prompt")
    if isinstance(asked[0], int):
        return [asked]
    if len(asked) > most:
        raise _too_many(most)
    return [prompts.of_text(one) if isinstance(one, str) else one for one in asked]


def _questions(
    engine: Engine,
    asked: Asking,
    prompts: Sequence[Sequence[int]],
    most: int | None,
    logprobs: int | None,
    usual: int | None = None,
) -> list[Question]:
    """A question for each answer that is asked for: ``n`` for each prompt, with a seed of its own each.

    Where no length is asked for, it is the usual one as far as the context has room.
    """
    times = asked.n or 1
    if times * len(prompts) > engine.limits.choices:
        raise _too_many(engine.limits.choices)
    seed = secrets.randbits(62) if asked.seed is None else asked.seed
    temperature = 1.0 if asked.temperature is None else asked.temperature
    found = []
    for prompt in prompts:
        room = engine.context - len(prompt)
        if room < 1 or (most or 1) > room:
            fewer = ", or ask for fewer tokens" if most and room > 0 else ""
            message = (
                f"The prompt has {len(prompt)} tokens{f' and {most} are asked for' if most else ''}, and the context "
                f"holds {engine.context} together: shorten the prompt{fewer}."
            )
            raise Refusal(status=400, message=message, code="context_length_exceeded")
        for number in range(times):
            sampling = Sampling(temperature=temperature, top_p=asked.top_p or 1.0, seed=(seed + number) % 2**63)
            found.append(
                Question(
                    prompt=tuple(prompt),
                    max_tokens=most or min(usual or room, room),
                    sampling=sampling,
                    stop=asked.stops,
                    logprobs=logprobs,
                )
            )
    return found


def _too_many(most: int) -> Refusal:
    return Refusal(status=400, message=f"A request may ask for {most} answers (prompts times n).", param="n")


async def _answer(
    engine: Engine, request: Request, asked: Asking, form: Form, questions: Sequence[Question]
) -> Response:
    listening = Listening(engine, request, questions)
    try:
        await listening.open()
    except ClientGoneError:
        return Response(status_code=_NOBODY_READS)
    except Exception as error:
        raise refusal_of(error) from error
    prompts = [len(question.prompt) for question in questions[:: asked.n or 1]]
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(
            _events(listening, form, len(questions), prompts, usage),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )
    answers = [Written() for _ in questions]
    try:
        async for number, part in listening.parts():
            answers[number].add(part)
    except ClientGoneError:
        return Response(status_code=_NOBODY_READS)
    except Exception as error:
        raise refusal_of(error) from error
    finally:
        await listening.close()
    return JSONResponse(await run_in_threadpool(form.whole, answers, prompts))


async def _events(
    listening: Listening, form: Form, count: int, prompts: Sequence[int], usage: bool
) -> AsyncIterator[str]:
    """Server-sent events of an answer in chunks; an error that comes in between is the last of them."""
    answers = [Written() for _ in range(count)]
    try:
        for number in range(count):
            if (first := form.first_chunk(number)) is not None:
                yield _event({**first, **({"usage": None} if usage else {})})
        async for number, part in listening.parts():
            chunk = form.chunk(number, part, answers[number])
            answers[number].add(part)
            yield _event({**chunk, **({"usage": None} if usage else {})})
        if usage:
            yield _event(form.last_chunk(answers, prompts))
        yield "data: [DONE]\n\n"
    except ClientGoneError:
        return
    except Exception as error:
        yield _event(refusal_of(error).body)
    finally:
        await listening.close()


def _event(content: Any) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _refuse_in_json(app: FastAPI) -> None:
    """Let every error be OpenAI's object."""

    def refused(_: Request, error: Exception) -> Response:
        refusal = refusal_of(error)
        return JSONResponse(refusal.body, refusal.status, refusal.headers)

    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refused(_, _first_mistake(error))

    def no_such_page(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:  # of a body that is nested too deep, or no text
            return refused(_, Refusal(status=400, message="The request is no JSON, as it seems.", code="invalid_json"))
        message = f"{error.detail}. The paths here are /v1/chat/completions, /v1/completions, /v1/models and /health."
        refusal = Refusal(status=error.status_code, message=message)
        return JSONResponse(refusal.body, refusal.status, {**refusal.headers, **(error.headers or {})})

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(GoldstickError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, no_such_page)
    app.add_exception_handler(Exception, refused)


def _first_mistake(error: RequestValidationError) -> Refusal:
    """The first thing that is wrong with a request."""
    every = error.errors()
    found = every[0]
    if found["type"] == "json_invalid":
        reason = (found.get("ctx") or {}).get("error", "")
        return Refusal(status=400, message=f"The request is no JSON: {reason}.", code="invalid_json")
    place = _field(found["loc"])
    kinds = [" ".join(str(one["msg"]).split()) for one in every if _field(one["loc"]) == place]
    words = ", or: ".join(dict.fromkeys(kinds))[:300]
    message = f"{place or 'The request'}: {words}."
    return Refusal(status=400, message=message, code="invalid_value", param=place or None)


def _field(place: Sequence[int | str]) -> str:
    """The field at a place in a request, less the names that pydantic has for the kinds of value it may have."""
    parts = itertools.takewhile(lambda part: isinstance(part, int) or part.isidentifier(), place[1:])
    return ".".join(map(str, parts))[:200]
