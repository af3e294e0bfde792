"""Headrace's own engine, step by step, with its defaults; greedy."""

from __future__ import annotations

import itertools

from protocol import Generate, Settings, Steps, serve


def load(settings: Settings) -> Generate:
    """The engine, compiled, with its own defaults but for what `settings` say."""
    from headrace import LLM, SamplingParams

    engine = LLM(
        settings.model,
        max_model_len=settings.max_tokens,
        max_num_seqs=settings.max_requests,
        kv_cache_bytes=settings.kv_bytes * 5 // 4,  # the engine rounds pages down, by a fifth at most
    ).engine
    names = itertools.count()

    def generate(prompts: list[list[int]], outputs: list[int]) -> Steps:
        indices = {}
        for i, (prompt, most) in enumerate(zip(prompts, outputs, strict=True)):
            name = str(next(names))
            indices[name] = i
            engine.add(name, prompt, SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True))
        while engine.has_unfinished:
            yield [(indices[one.request_id], one.token_id) for one in engine.step() if one.token_id is not None]

    return generate


if __name__ == "__main__":
    serve(load)
