"""From what a caller asks for to requests: the checks, the prompt that is kept, and a request for each choice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from headrace.config import EngineConfig
from headrace.engine.pooling import Pooler, PoolingParams
from headrace.engine.prefix import CacheScope
from headrace.engine.request import Request
from headrace.engine.rules import TokenRules
from headrace.errors import RequestError
from headrace.execution.manager import ExecutionManager
from headrace.sampling.checks import shown
from headrace.sampling.params import SamplingParams
from headrace.structured.compiler import Grammar, GrammarCompiler
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer

RequestParams = SamplingParams | PoolingParams

# Of as many requests the rules are kept between `check` and `add`: a thousand bad words take tens of milliseconds.
MAX_RULES = 64


class Intake:
    """Makes requests that the engine can take, and refuses all others."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, manager: ExecutionManager) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._options, self._spec, self._manager = manager.options, manager.spec, manager
        vocab_size = manager.spec.vocab_size
        new = partial(_new_rules, tokenizer, vocab_size, GrammarCompiler(tokenizer, vocab_size))
        self._rules = lru_cache(MAX_RULES)(new)  # any thread may call it
        self._seeds = random.Random(config.seed)

    def requests(
        self, request_id: str, prompt_ids: Sequence[int], params: RequestParams, cache_salt: str | None
    ) -> list[Request]:
        """The request's choices, in order. They have one seed; the first brings what is said of the prompt.

        Raises:
            RequestError: what `check` refuses.
        """
        self.check(prompt_ids, params, cache_salt)
        ids = self.kept(prompt_ids, params)
        pooler = Pooler(params, len(ids)) if isinstance(params, PoolingParams) else None
        params = _sampling(params)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        scope = CacheScope(salt=cache_salt, rope_length=self._spec.rope_length(len(ids)))
        choices = [self._choice(choice, request_id, ids, params, seed, scope) for choice in range(params.n)]
        choices[0].pooler = pooler
        return choices

    def _choice(
        self, choice: int, request_id: str, ids: list[int], params: SamplingParams, seed: int, scope: CacheScope
    ) -> Request:
        scored = params.num_prompt_logprobs is not None and choice == 0
        rules, grammar = self._rules(params)
        return Request(
            request_id=request_id,
            token_ids=[*ids],
            num_prompt=len(ids),
            params=params,
            max_total=min(len(ids) + params.max_tokens, self._options.max_model_len),
            end_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._tokenizer.eos_ids),
            seed=seed,
            detokenizer=IncrementalDetokenizer(
                self._tokenizer, skip_special=params.skip_special_tokens, shown=params.shown_token_ids
            ),
            stop=StopMatcher(params.stops, include=params.include_stop_str_in_output),
            choice=choice,
            rules=None if rules is None else rules.another(None if grammar is None else grammar.start()),
            num_unscored=len(ids) - 1 if scored else 0,
            prompt_logprobs=[None] if scored else None,
            priority=params.priority,
            scope=scope,
        )

    def kept(self, prompt_ids: Sequence[int], params: RequestParams) -> list[int]:
        """The part of a prompt that `truncate_prompt_tokens` keeps: the last tokens."""
        params = _sampling(params)
        most = params.truncate_prompt_tokens
        if most is None:
            return [*prompt_ids]
        return [*prompt_ids[-(self._longest(params) if most < 0 else most) :]]

    def _longest(self, params: SamplingParams) -> int:
        """Most tokens that a prompt may have: what generates something needs room for it."""
        return self._options.max_model_len - min(params.max_tokens, 1)

    def check(self, prompt_ids: Sequence[int], params: RequestParams, cache_salt: str | None) -> None:
        """Refuses what `Engine.check` says."""
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise RequestError("cache_salt", f"must be a text that is not empty, not {shown(cache_salt)}")
        if not isinstance(params, RequestParams):
            raise RequestError("params", f"must be SamplingParams or PoolingParams, not {type(params).__name__}")
        if isinstance(params, PoolingParams) and not self._manager.has_hidden:
            raise RequestError("pooling", "is not possible where data parallel ranks lie in several processes")
        params = _sampling(params)
        if isinstance(prompt_ids, (str, bytes, bytearray, memoryview)) or not isinstance(prompt_ids, Sequence):
            raise RequestError("prompt", f"must be a list of token ids, not {type(prompt_ids).__name__}")
        most = self._config.max_queued_requests
        if most is not None and params.n > most:
            raise RequestError("n", f"is {params.n}, but only {most} requests may wait (max_queued_requests)")
        # A tokenizer may know more tokens than the model has embeddings; the device would read another one's.
        params.check_vocabulary(self._options.vocab_limit)
        params.check_logprobs(self._config.max_logprobs)
        self._check_prompt(prompt_ids, params)
        self._rules(params)  # kept, so that `requests` finds them

    def _check_prompt(self, prompt_ids: Sequence[Any], params: SamplingParams) -> None:
        vocab_size, longest = self._options.vocab_limit, self._longest(params)
        if not prompt_ids:
            raise RequestError("prompt", "is empty; it must have at least one token")
        for token in prompt_ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise RequestError("prompt", f"{shown(token)} is not a token id; ids are 0 … {vocab_size - 1}")
        if (length := len(self.kept(prompt_ids, params))) > longest:
            room = " and must have room for at least one more" if params.max_tokens else ""
            raise RequestError(
                "prompt",
                f"has {length} tokens, but the context holds {self._options.max_model_len}{room}; shorten it or raise "
                "max_model_len",
            )


def _sampling(params: RequestParams) -> SamplingParams:
    return params.as_sampling() if isinstance(params, PoolingParams) else params


def _new_rules(
    tokenizer: Tokenizer, vocab_size: int, grammars: GrammarCompiler, params: SamplingParams
) -> tuple[TokenRules | None, Grammar | None]:
    """What the choices of a request share: rules that no output has followed, and their grammar."""
    outputs = params.structured_outputs
    grammar = None if outputs is None else grammars.compile(outputs)
    return TokenRules.of(params, tokenizer, vocab_size, None if grammar is None else grammar.start()), grammar
