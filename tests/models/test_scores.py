"""Scores of whole texts in float32 (echo, logprobs, no new tokens), against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

import golden
from headrace import LLM, SamplingParams


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_the_scores_of_many_texts(smollm2_path: Path, count: int) -> None:
    texts = golden.facts("smollm2_scores")
    texts = texts[:: len(texts) // count]
    assert len(texts) == count
    # Chunks of 512 tokens, cut anywhere, with up to 16 texts in each.
    llm = LLM(str(smollm2_path), dtype="float32", max_num_seqs=16, num_tokens_paddings=[512], num_reqs_paddings=[16])
    params = SamplingParams(max_tokens=0, echo=True, logprobs=0)
    for expected, output in zip(texts, llm.generate([text["text"] for text in texts], params), strict=True):
        assert output.prompt_token_ids == expected["ids"]
        assert (output.text, output.token_ids, output.finish_reason) == (expected["text"], [], "length")
        assert output.logprobs is not None
        first, *scores = output.logprobs
        assert first is None
        assert [one.token_id for one in scores if one] == expected["ids"][1:]
        logprobs = [one.logprob for one in scores if one]
        assert sum(logprobs) == pytest.approx(expected["sum"], abs=1e-3), expected["text"]
        if "logprobs" in expected:
            assert logprobs == pytest.approx(expected["logprobs"], abs=1e-4)
