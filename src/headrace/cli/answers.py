"""What `headrace generate` prints: an answer as it comes, or several, and how likely their tokens were."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.llm import LLM, Prompt
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs


def print_answers(llm: LLM, prompt: Prompt, params: SamplingParams) -> None:
    """Answers a prompt on stdout.

    Raises:
        HeadraceError: what went wrong with the first answer that failed, once all were printed.
    """
    errors = _stream(llm, prompt, params) if params.n == 1 else _several(llm, prompt, params)
    if errors:
        raise HeadraceError(errors[0])


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams) -> list[str]:
    errors, scores, reason = [], list[TokenLogprobs | None](), None
    for output in llm.stream(prompt, params):
        print(output.text, end="", flush=True)
        scores += (params.echo and output.prompt_logprobs) or []
        scores += [output.logprobs] if output.logprobs else []
        errors += [output.error] if output.error is not None else []
        reason = output.finish_reason
    print()
    if reason == "length" and params.structured_outputs is not None:
        print("headrace: cut off before it was complete; raise --max-tokens", file=sys.stderr)
    _print_scores(llm, scores)
    return errors


def _several(llm: LLM, prompt: Prompt, params: SamplingParams) -> list[str]:
    [result] = llm.generate([prompt], params)
    for choice in result.outputs:
        print(f"--- {choice.index + 1} of {params.n}, {choice.finish_reason}\n{choice.text}")
        _print_scores(llm, choice.logprobs or [])
    return [choice.error for choice in result.outputs if choice.error is not None]


def _print_scores(llm: LLM, scores: Sequence[TokenLogprobs | None]) -> None:
    """A line for each token: log-probability, rank, text, and the most likely ones in its place."""

    def shown(token: int) -> str:
        return repr(llm.tokenizer.token_bytes(token).decode(errors="replace"))

    for one in scores:
        if one is not None:
            top = "  ".join(f"{shown(token)} {logprob:.3f}" for token, logprob in one.top)
            print(f"{one.logprob:9.3f} {one.rank:6} {shown(one.token_id):20} {top}".rstrip())
