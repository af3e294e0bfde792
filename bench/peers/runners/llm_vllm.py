"""vLLM's engine in one process, step by step; greedy, without prefix cache and tokenizer."""

from __future__ import annotations

import itertools
import os

from protocol import Generate, Settings, Steps, serve


def load(settings: Settings) -> Generate:
    """The engine, with its own defaults but for what `settings` say."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # another process would take time of the same cores
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, settings.cpus))
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=settings.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=settings.max_tokens,
        max_num_seqs=settings.max_requests,
        kv_cache_memory_bytes=settings.kv_bytes,
        enable_prefix_caching=False,
        disable_log_stats=True,
    ).llm_engine
    names = itertools.count()

    def generate(prompts: list[list[int]], outputs: list[int]) -> Steps:
        indices, seen = {}, [0] * len(prompts)
        for i, (prompt, most) in enumerate(zip(prompts, outputs, strict=True)):
            name = str(next(names))
            indices[name] = i
            params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False)
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            got = []
            for output in engine.step():
                i, tokens = indices[output.request_id], output.outputs[0].token_ids
                got += [(i, token) for token in tokens[seen[i] :]]
                seen[i] = len(tokens)
            yield got

    return generate


if __name__ == "__main__":
    serve(load)
