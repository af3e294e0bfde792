"""The offline API: a model in this process, prompts in, texts out."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from headrace.config import EngineConfig
from headrace.engine.build import build
from headrace.engine.engine import TokenOutput
from headrace.errors import HeadraceError, ModelError, RequestError
from headrace.outputs import RequestOutput
from headrace.sampling.params import SamplingParams
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

        Raises:
            RequestError: the prompt or a parameter is wrong.
        """
        ids, params = self._encode(prompt), _checked(params)
        self.engine.check(ids, params, cache_salt=cache_salt)
        return self._drive(ids, params, cache_salt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """The prompt's token ids for a conversation, ready for the answer.

        Raises:
            ModelError: the model has no chat template.
        """
        if self._template is None:
            raise ModelError(f"{self.engine.config.model} has no chat template; give it a plain prompt instead")
        return encode_chat(self.tokenizer, self._template, messages)

    def _drive(self, ids: list[int], params: SamplingParams, cache_salt: str | None) -> Iterator[TokenOutput]:
        self._check_idle()
        request_id = self._next_id()
        self.engine.add(request_id, ids, params, cache_salt=cache_salt)
        try:
            # Who pauses or aborts through the engine meanwhile gets the rest.
            while self.engine.has_request(request_id):
                self._check_running()
                yield from (output for output in self.engine.step() if output.request_id == request_id)
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
        encoded, each = [self._encode(prompt) for prompt in prompts], [_checked(one) for one in each]
        for ids, one in zip(encoded, each, strict=True):
            self.engine.check(ids, one, cache_salt=cache_salt)
        partial: dict[str, list[TokenOutput]] = {}
        todo = deque(zip(encoded, each, strict=True))
        try:
            while todo or self.engine.has_unfinished:
                # As many as may wait are queued before a step, so that the first holds all that there is room for.
                while todo and not self.engine.is_queue_full:
                    request_id = self._next_id()
                    partial[request_id] = []
                    self.engine.add(request_id, *todo.popleft(), cache_salt=cache_salt)
                for output in self.engine.step():
                    partial[output.request_id].append(output)
        finally:
            for request_id in partial:
                self.engine.abort(request_id)
        return [_result(p, ids, o) for p, ids, o in zip(prompts, encoded, partial.values(), strict=True)]

    def _check_idle(self) -> None:
        # Whoever steps the engine gets the tokens of every request in it, and would drop those of an open stream.
        if self.engine.has_unfinished:
            raise HeadraceError("a stream of this LLM is still open; finish or close it first")
        self._check_running()

    def _check_running(self) -> None:
        if self.engine.is_paused:
            raise HeadraceError("the engine is paused; call engine.resume() first")

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, _BYTES) or not isinstance(prompt, Sequence):
            raise RequestError("prompt", f"must be text or a list of token ids, not {type(prompt).__name__}")
        return [*prompt]

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"


def _result(prompt: Prompt, ids: list[int], outputs: list[TokenOutput]) -> RequestOutput:
    last = outputs[-1]
    assert last.finish_reason is not None
    return RequestOutput(
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=ids,
        text="".join(o.text for o in outputs),
        token_ids=[o.token_id for o in outputs if o.token_id is not None],
        num_cached_tokens=last.num_cached_tokens,
        finish_reason=last.finish_reason,
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
