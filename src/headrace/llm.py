"""The offline API: a model in this process, prompts in, texts out."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from headrace.config import EngineConfig
from headrace.engine.build import build
from headrace.engine.engine import TokenOutput
from headrace.engine.intake import RequestParams
from headrace.engine.pooling import Pooling, PoolingParams
from headrace.errors import HeadraceError, ModelError, RequestError
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs
from headrace.text.chat import ChatTemplate, encode_chat

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_BYTES = (bytes, bytearray, memoryview)  # sequences of integers that are no token ids


class LLM:
    """A model, loaded and compiled.

    Args:
        model: known name (`headrace models list`), `.gguf` file, Hugging Face folder or hub id.
        progress: show bars while fetching, loading and compiling.
        options: fields of `EngineConfig`.

    Raises:
        ConfigError, ModelError: see there.

    Example:
        >>> llm = LLM("smollm2")
        >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1))[0].text
        ' Paris'
    """

    def __init__(self, model: str | PathLike[str], *, progress: bool = False, **options: Any) -> None:
        self.built = build(EngineConfig.from_options(os.fspath(model), options), progress=progress)
        self.engine = self.built.engine
        self.tokenizer = self.engine.tokenizer
        self._ids = itertools.count()
        self._template: ChatTemplate | None = None
        if self.tokenizer.chat_template is not None:
            tokens = {"bos_token": self.tokenizer.bos_token, "eos_token": self.tokenizer.eos_token}
            self._template = ChatTemplate(self.tokenizer.chat_template, **tokens)
        log.info("%s", self.built.describe())

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a chat is written."""
        return self._template is not None

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts, all at once, and returns the results in their order.

        Args:
            prompts: a text, a list of token ids, or a list of either.
            params: for all prompts, or one for each; None takes the defaults.
            cache_salt: cached prefixes are shared only among calls with the same salt.

        Raises:
            RequestError: a prompt or parameter is wrong; then nothing runs.
        """
        return self._run(_as_list(prompts), params, cache_salt)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: Pooling = "mean",
        *,
        normalize: bool = True,
        cache_salt: str | None = None,
    ) -> list[np.ndarray]:
        """The vectors [hidden] float32 of prompts, all at once, in their order.

        Args:
            prompts: a text, a list of token ids, or a list of either.
            pooling: "mean" of the last hidden states of all tokens, or that of the "last" token.
            normalize: scale each vector to length 1.
            cache_salt: cached prefixes are shared only among calls with the same salt.

        Raises:
            RequestError: a prompt or argument is wrong; then nothing runs.
            HeadraceError: the model gives hidden states that are not finite.
        """
        params = PoolingParams(pooling=pooling, normalize=normalize)
        self._check_idle()
        todo = [(self._encode(prompt, params, cache_salt), params) for prompt in _as_list(prompts)]
        vectors = []
        for [output] in self._outputs(todo, cache_salt):
            if output.embedding is None:
                raise HeadraceError(output.error or "the request was aborted")
            vectors.append(output.embedding)
        return vectors

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> RequestOutput:
        """Answers one conversation, a list of {"role": …, "content": …}."""
        return self._run([self.encode_chat(messages)], params, cache_salt)[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> Iterator[TokenOutput]:
        """Continues one prompt, token by token; the request starts with the first. Leaving the iterator early, or
        closing it, ends the request.

        Choices come in any order among each other; `index` tells them apart. With `echo` the first output of each
        begins with the prompt. The first of choice 0 brings `prompt_logprobs`.

        Raises:
            RequestError: the prompt or a parameter is wrong.
        """
        params = _checked(params)
        ids = self._encode(prompt, params, cache_salt)
        return self._drive(ids, params, cache_salt, self._echo(prompt, ids, params))

    def encode_chat(self, messages: Messages) -> list[int]:
        """The prompt's token ids for a conversation, ready for the answer.

        Raises:
            ModelError: the model has no chat template.
        """
        if self._template is None:
            raise ModelError(f"{self.engine.config.model} has no chat template; give it a plain prompt instead")
        return encode_chat(self.tokenizer, self._template, messages)

    def _drive(
        self, ids: list[int], params: SamplingParams, cache_salt: str | None, echo: str
    ) -> Iterator[TokenOutput]:
        self._check_idle()
        request_id = self._next_id()
        self.engine.add(request_id, ids, params, cache_salt=cache_salt)
        unseen = {*range(params.n)} if echo else set()
        try:
            # Who pauses or aborts through the engine meanwhile gets the rest.
            while self.engine.has_request(request_id):
                self._check_running()
                for output in self.engine.step():
                    if output.request_id == request_id:
                        first = output.index in unseen
                        unseen.discard(output.index)
                        yield replace(output, text=echo + output.text) if first else output
        finally:
            self.engine.abort(request_id)

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        cache_salt: str | None,
    ) -> list[RequestOutput]:
        each = [*params] if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise RequestError("params", f"{len(each)} given for {len(prompts)} prompts")
        self._check_idle()
        each = [_checked(one) for one in each]
        encoded = [self._encode(prompt, one, cache_salt) for prompt, one in zip(prompts, each, strict=True)]
        results = self._outputs(zip(encoded, each, strict=True), cache_salt)
        return [
            _result(prompt, ids, one, self._echo(prompt, ids, one), outputs)
            for prompt, ids, one, outputs in zip(prompts, encoded, each, results, strict=True)
        ]

    def _outputs(
        self, requests: Iterable[tuple[list[int], RequestParams]], cache_salt: str | None
    ) -> list[list[TokenOutput]]:
        """Runs all requests to their end, and returns the outputs of each."""
        partial: dict[str, list[TokenOutput]] = {}
        todo = deque(requests)
        try:
            while todo or self.engine.has_unfinished:
                # As many as may wait are queued before a step, so that the first holds all that there is room for.
                while todo and self.engine.has_room(todo[0][1]):
                    request_id = self._next_id()
                    partial[request_id] = []
                    self.engine.add(request_id, *todo.popleft(), cache_salt=cache_salt)
                for output in self.engine.step():
                    partial[output.request_id].append(output)
        finally:
            for request_id in partial:
                self.engine.abort(request_id)
        return [*partial.values()]

    def _check_idle(self) -> None:
        # Whoever steps the engine gets the tokens of every request in it, and would drop those of an open stream.
        if self.engine.has_unfinished:
            raise HeadraceError("a stream of this LLM is still open; finish or close it first")
        self._check_running()

    def _check_running(self) -> None:
        if self.engine.is_paused:
            raise HeadraceError("the engine is paused; call engine.resume() first")

    def _encode(self, prompt: Prompt, params: RequestParams, cache_salt: str | None) -> list[int]:
        """The prompt's tokens that the engine gets."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, _BYTES) or not isinstance(prompt, Sequence):
            raise RequestError("prompt", f"must be text or a list of token ids, not {type(prompt).__name__}")
        else:
            ids = [*prompt]
        self.engine.check(ids, params, cache_salt=cache_salt)
        return self.engine.kept_prompt(ids, params)

    def _echo(self, prompt: Prompt, ids: list[int], params: SamplingParams) -> str:
        """What comes before the text: the prompt as it was given, or as its tokens read."""
        if not params.echo:
            return ""
        if isinstance(prompt, str) and params.truncate_prompt_tokens is None:
            return prompt
        return self.tokenizer.decode(ids, skip_special=params.skip_special_tokens)

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"


def _result(
    prompt: Prompt, ids: list[int], params: SamplingParams, echo: str, outputs: list[TokenOutput]
) -> RequestOutput:
    choices: list[list[TokenOutput]] = [[] for _ in range(params.n)]
    for output in outputs:
        choices[output.index].append(output)
    prompt_logprobs = choices[0][0].prompt_logprobs
    before = (prompt_logprobs or []) if params.echo else []
    return RequestOutput(
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=ids,
        outputs=[_choice(choice, echo, None if params.logprobs is None else before) for choice in choices],
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=choices[0][-1].num_cached_tokens,
    )


def _choice(outputs: list[TokenOutput], echo: str, before: list[TokenLogprobs | None] | None) -> CompletionOutput:
    """One choice of its outputs; `before` are the log-probabilities that come before its own."""
    last, sampled = outputs[-1], [output for output in outputs if output.token_id is not None]
    assert last.finish_reason is not None
    return CompletionOutput(
        index=last.index,
        text=echo + "".join(output.text for output in outputs),
        token_ids=[output.token_id for output in sampled if output.token_id is not None],
        finish_reason=last.finish_reason,
        logprobs=None if before is None else [*before, *(output.logprobs for output in sampled)],
        error=last.error,
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt as a list of one; a list of token ids is one prompt."""
    if isinstance(prompts, (str, *_BYTES)) or not isinstance(prompts, Sequence):
        return [prompts]
    if prompts and all(isinstance(p, int) for p in prompts):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _checked(params: Any) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError("params", f"must be SamplingParams, not {type(params).__name__}")
    return params or SamplingParams()
