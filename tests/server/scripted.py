"""An engine that says what it is told: everything is real but the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.paper import paper_engine
from headrace.engine.engine import Engine
from headrace.text.tokenizer import Tokenizer

Answer = Callable[[list[int]], str | list[int]]  # of a prompt's ids: a text, or the ids of the answer's tokens


def scripted_engine(tokenizer: Tokenizer, answer: str | Answer, **options: Any) -> Engine:
    """Answers each prompt as `answer` says, one token per step, and then with an end token."""
    end = min(tokenizer.eos_ids)
    known: dict[tuple[int, ...], list[int]] = {}

    def tokens(prompt: Sequence[int]) -> list[int]:
        key = tuple(int(token) for token in prompt)
        if key not in known:
            given = answer if isinstance(answer, str) else answer([*key])
            known[key] = tokenizer.encode(given, add_bos=False) if isinstance(given, str) else given
        return known[key]

    def sampled(history: Sequence[int], num_prompt: int) -> int:
        said = tokens(history[:num_prompt])
        index = len(history) - num_prompt
        return said[index] if index < len(said) else end

    geometry = {"pages": 512, "page_size": 16, "length": 1024, "seqs": 8, "budget": 256}
    options = {"max_model_len": geometry["length"], **options}
    return paper_engine(tokenizer, options=options, vocab=tokenizer.vocab_size, sampled=sampled, **geometry)
