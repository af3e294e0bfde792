"""Greedy generation step by step through the ExecutionManager, against transformers' `generate`."""

from __future__ import annotations

import numpy as np
import pytest

import golden
from models.runs import TOKENS, driver, generate, teacher_forced

# One set of each kind of layer; test_parity.py has all sets.
SETS = ["smollm2", "llama_dynamic", "mistral_window", "qwen2_window", "gemma3"]


@pytest.mark.parametrize("chunk", [TOKENS, 7], ids=["whole", "chunks"])
@pytest.mark.parametrize("name", SETS)
def test_greedy_tokens_of_three_prompts_at_once(name: str, chunk: int) -> None:
    data = golden.load(name)
    assert generate(driver(name, data.prompts), len(data.continuations[0]), chunk) == data.continuations


@pytest.mark.parametrize("name", SETS)
def test_logits_have_the_same_bits_in_one_chunk_in_many_and_as_decodes(name: str) -> None:
    prompt = golden.load(name).prompts[2]
    one_by_one = teacher_forced(driver(name, [prompt]), 1)
    assert len(one_by_one) == len(prompt)
    for chunk in (7, 8, 9, 33, TOKENS):
        for position, logits in teacher_forced(driver(name, [prompt]), chunk).items():
            np.testing.assert_array_equal(logits, one_by_one[position], err_msg=f"chunk {chunk}, {position}")
