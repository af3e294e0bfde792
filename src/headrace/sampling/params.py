"""What one request may ask of generation, and the check that it makes sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import RequestError
from headrace.sampling.checks import (
    check_boolean,
    check_ids,
    check_integer,
    check_number,
    logit_bias,
    shown,
    texts,
    token_ids,
)
from headrace.sampling.limits import MAX_LOGIT_BIAS
from headrace.sampling.structured import StructuredOutputs

MAX_N = 128
MAX_STOPS = 16
MAX_BAD_WORDS = 1024
STRONGEST_BIAS = 100
# Beyond these a float32 logit that is multiplied or divided by it may overflow or vanish.
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.001, 1000


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled, when it ends and what it returns. Wrong values raise RequestError, which names the
    field.

    The order is repetition, frequency and presence penalty, logit bias, tokens that are not allowed, temperature,
    top-k, top-p, min-p, each on what the one before left, in float32; ties go to the lowest token id.
    docs/sampling.md says more of each.

    Attributes:
        n: continuations of the prompt, 1 … 128.
        max_tokens: most tokens to generate, ≥ 0; 0 only scores the prompt. Generation also ends where the context is
            full.
        min_tokens: no end token is sampled, and no stop string counts, within so many tokens; ≤ `max_tokens`.
        temperature: divides the logits, ≥ 0; 0 takes the most likely token.
        top_p: keep the fewest most likely tokens whose probabilities reach this sum; in (0, 1], 1 is off.
        top_k: keep this many of the most likely tokens; 0 and −1 are off.
        min_p: drop tokens less likely than this times the most likely one; in [0, 1], 0 is off.
        presence_penalty: taken off the logit of every token that is in the output; −2 … 2.
        frequency_penalty: taken off a token's logit for each time that it is in the output; −2 … 2.
        repetition_penalty: divides the positive logits of tokens in the prompt or the output and multiplies the
            negative ones; 0.001 … 1000, 1 is off.
        logit_bias: added to the logits of these tokens, −100 … 100; at most 1,024 ids, which may be written as text.
        allowed_token_ids: no other tokens are sampled; None allows all.
        bad_words: texts that are not generated, at most 1,024.
        stop: strings that end the text, at most 16. The earliest match in the text wins.
        stop_token_ids: further tokens that end generation, besides the model's own.
        include_stop_str_in_output: the stop string that ended the text is part of it.
        ignore_eos: the model's own end tokens do not end generation.
        seed: 64-bit seed of this request's draws; the same seed gives the same tokens in any company.
            None takes a fresh one.
        logprobs: return the log probability of each output token, and of so many most likely ones in its place.
            None returns none; 0 those of the tokens alone. The engine's `max_logprobs` is the most.
        prompt_logprobs: the same of the prompt's tokens. None takes `logprobs` with `echo`, else none.
        echo: the prompt is returned before the text.
        skip_special_tokens: control tokens are not part of the text.
        shown_token_ids: but these are, as whoever reads the text for tool calls wants it.
        spaces_between_special_tokens: for others' sake; the tokenizers put no spaces between them, so both values give
            the same text.
        truncate_prompt_tokens: keep this many of the prompt's last tokens, or with −1 as many as the engine takes.
            None refuses a prompt that is too long.
        priority: the lower, the sooner the request runs; each unit counts as much as some waiting (see `Scheduler`).
        structured_outputs: the form that the output has to have.
    """

    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: Sequence[int] = ()
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    structured_outputs: StructuredOutputs | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        self._check_length()
        self._check_distribution()
        self._check_tokens()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 0)
        for name in (
            "include_stop_str_in_output",
            "ignore_eos",
            "echo",
            "skip_special_tokens",
            "spaces_between_special_tokens",
        ):
            check_boolean(name, getattr(self, name))
        check_integer("priority", self.priority)
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            given = type(self.structured_outputs).__name__
            raise RequestError("structured_outputs", f"must be StructuredOutputs, not {given}")

    def _check_length(self) -> None:
        check_integer("n", self.n, 1, MAX_N)
        check_integer("max_tokens", self.max_tokens, 0)
        check_integer("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            given, most = shown(self.min_tokens), shown(self.max_tokens)
            raise RequestError("min_tokens", f"{given} is more than max_tokens ({most})")
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1)
            if self.truncate_prompt_tokens == 0:
                raise RequestError("truncate_prompt_tokens", "must be -1 or >= 1, not 0")

    def _check_distribution(self) -> None:
        check_number("temperature", self.temperature, 0.0)
        check_number("top_p", self.top_p, 0.0, 1.0, open_below=True)
        check_integer("top_k", self.top_k, -1)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_tokens(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", texts("stop", stops, MAX_STOPS))
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        self._set("shown_token_ids", token_ids("shown_token_ids", self.shown_token_ids))
        self._set("bad_words", texts("bad_words", self.bad_words, MAX_BAD_WORDS))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids", "is empty, so that no token could be sampled; None allows all")
        if self.logit_bias is not None:
            biases = logit_bias("logit_bias", self.logit_bias, MAX_LOGIT_BIAS, STRONGEST_BIAS)
            self._set("logit_bias", biases or None)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop)

    @property
    def biases(self) -> dict[int, float]:
        """`logit_bias` by token id; empty without."""
        return {int(token): bias for token, bias in (self.logit_bias or {}).items()}

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Most likely tokens to return at each place of the prompt; None for no log probabilities of the prompt."""
        if self.prompt_logprobs is None and self.echo:
            return self.logprobs
        return self.prompt_logprobs

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses token ids that the model does not have."""
        check_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_ids("shown_token_ids", self.shown_token_ids, vocab_size)
        check_ids("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        check_ids("logit_bias", [*self.biases], vocab_size)

    def check_logprobs(self, max_logprobs: int) -> None:
        """Refuses more log probabilities for each place than the engine was made for."""
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 0, max_logprobs)
