"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from headrace.engine.engine import TokenOutput
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.errors import generation_error
from headrace.server.generation import Prompt
from headrace.server.ids import new_id
from headrace.server.logprobs import CompletionLogprobs, prompt_entries
from headrace.server.schema.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from headrace.server.sse import EventStream, answer
from headrace.server.usage import Usage

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Continue prompts."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    params = body.sampling_params(
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        echo=body.echo,
        logprobs=body.logprobs,
    )
    completion = _Completion(server, body, params)
    if body.stream:
        return EventStream(completion.events())
    return await answer(request, completion.whole())


class _Completion:
    """One request's answer."""

    def __init__(self, server: Server, body: CompletionRequest, params: SamplingParams) -> None:
        self._server, self._body, self._params = server, body, params
        self._id, self._created = new_id("cmpl-"), int(time.time())

    def _prepare(self) -> list[Prompt]:
        """The prompts as tokens, checked; in a worker thread."""
        engine, add_bos = self._server.bridge.engine, self._body.add_special_tokens is not False
        given = self._body.prompts(self._server.options.max_prompts)
        prompts, self._echoes = [], []
        for one in given:
            ids = engine.tokenizer.encode(one, add_bos=add_bos) if isinstance(one, str) else one
            engine.check(ids, self._params, cache_salt=self._body.cache_salt)
            ids = engine.kept_prompt(ids, self._params)
            prompts.append(Prompt(ids, self._params, self._body.cache_salt))
            self._echoes.append(self._echo(one, ids))
        return prompts

    def _echo(self, prompt: str | list[int], ids: list[int]) -> str:
        if not self._params.echo:
            return ""
        if isinstance(prompt, str) and self._params.truncate_prompt_tokens is None:
            return prompt
        return self._server.tokenizer.decode(ids, skip_special=self._params.skip_special_tokens)

    async def _begin(self) -> list[Prompt]:
        compiles = self._params.structured_outputs is not None
        prompts = await self._server.bridge.prepare(self._prepare, compiles=compiles)
        n = self._params.n
        self._usage = Usage(sum(len(prompt.ids) for prompt in prompts))
        self._choices = [
            _Choice(self._server, self._params, prompt, self._echoes[index // n])
            for index, prompt in enumerate(prompt for prompt in prompts for _ in range(n))
        ]
        return prompts

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks with what is new of each choice."""
        options = self._body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        in_each = with_usage and options is not None and bool(options.continuous_usage_stats)
        prompts = await self._begin()
        async with self._server.bridge.generate(prompts) as generation:
            async for batch in generation:
                for index in self._take(batch):
                    piece = self._choices[index].piece()
                    if piece["text"] or piece["finish_reason"] or piece["logprobs"]:
                        chunk = self._body_of([{"index": index, **piece}])
                        yield chunk | {"usage": self._usage.body() if in_each else None} if with_usage else chunk
        if with_usage:
            yield self._body_of([]) | {"usage": self._usage.body()}

    async def whole(self) -> dict[str, Any]:
        """The complete answer."""
        prompts = await self._begin()
        async with self._server.bridge.generate(prompts) as generation:
            async for batch in generation:
                self._take(batch)
        choices = [{"index": index, **choice.piece()} for index, choice in enumerate(self._choices)]
        return self._body_of(choices) | {"usage": self._usage.body()}

    def _take(self, batch: list[tuple[int, TokenOutput]]) -> list[int]:
        """Hands outputs to their choices, whose numbers go through all prompts, and counts their tokens; returns the
        choices that have something to say."""
        n, news = self._params.n, set()
        for prompt, output in batch:
            if output.error is not None:
                raise generation_error(output.error)
            index = prompt * n + output.index
            self._choices[index].outputs.append(output)
            news.add(index)
            self._usage.completion_tokens += output.token_id is not None
            if output.index == 0 and output.prompt_logprobs is not None:
                # The choices of a prompt share its scores, which the first of them brings.
                for choice in self._choices[prompt * n : (prompt + 1) * n]:
                    choice.prompt_scores = output.prompt_logprobs
                news.update(range(prompt * n, (prompt + 1) * n))
            if output.finish_reason is not None and output.index == 0:
                self._usage.cached_tokens += output.num_cached_tokens
        return [index for index in sorted(news) if self._choices[index].is_ready]

    def _body_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._server.model,
            "choices": choices,
        }


class _Choice:
    """What has been said of one choice.

    Attributes:
        outputs: what has not been passed on.
        prompt_scores: log-probabilities of the prompt's tokens, once they are known.
    """

    def __init__(self, server: Server, params: SamplingParams, prompt: Prompt, echo: str) -> None:
        self._tokenizer, self._params, self._prompt, self._echo = server.tokenizer, params, prompt, echo
        self._logprobs = None
        if params.logprobs is not None:
            self._logprobs = CompletionLogprobs(server.tokenizer, params.logprobs, params.skip_special_tokens, echo)
        self._begun = False
        self.outputs: list[TokenOutput] = []
        self.prompt_scores: list[TokenLogprobs | None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a piece can be made: the first also says what is known of the prompt."""
        waits = self._params.num_prompt_logprobs is not None and self.prompt_scores is None
        return bool(self.outputs) and not waits

    def piece(self) -> dict[str, Any]:
        """What is new of the choice, without its index."""
        outputs, self.outputs = self.outputs, []
        tokens = [output.token_id for output in outputs if output.token_id is not None]
        scores = [output.logprobs for output in outputs if output.token_id is not None]
        text = "".join(output.text for output in outputs)
        piece: dict[str, Any] = {"text": text, "logprobs": None, "finish_reason": outputs[-1].finish_reason}
        if not self._begun:
            self._begun = True
            piece["text"] = self._echo + text
            if self.prompt_scores is not None and self._params.prompt_logprobs is not None:
                piece["prompt_logprobs"] = prompt_entries(self._tokenizer, self.prompt_scores)
            if self.prompt_scores is not None and self._params.echo:
                tokens, scores = [*self._prompt.ids, *tokens], [*self.prompt_scores, *scores]
        if self._logprobs is not None and tokens:
            piece["logprobs"] = self._logprobs.take(tokens, scores)
        return piece
