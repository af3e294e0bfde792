"""How fast a model runs: prefill and decode at several batch sizes, through the offline API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headrace.benchmark.memory import peak_memory
from headrace.benchmark.workload import Load, greedy, load_for, random_prompts
from headrace.errors import ConfigError
from headrace.execution.compiled import compilations
from headrace.llm import LLM


def measure(
    load: Load, chosen: dict[str, Any], batch_sizes: Sequence[int], prompt_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """Runs random prompts greedily, ends ignored, after one unmeasured run of each size.

    Decode speed is the difference between a run of `output_tokens` + 1 tokens and one of a single token, so that
    neither prefill nor the first token counts in it.

    Args:
        load: engine options -> the loaded model.
        chosen: engine options of the user's own; others ask for just the room that the runs need.
        batch_sizes: numbers of parallel requests.

    Returns:
        `model`, `dtype`, `weights_dtype`, `startup_s`, `variants_compiled`, `compilations_after_warmup`,
        `peak_rss_bytes`, and `results`, a list of `batch_size`, `prompt_tokens`, `output_tokens`, `prefill_tok_s`,
        `decode_tok_s` and `step_ms`.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError(f"batch_sizes: must be positive, not {list(batch_sizes)}")
    llm = load_for(load, chosen, max(batch_sizes), prompt_tokens + output_tokens + 1)
    before = compilations()
    results = [_measure_one(llm, size, prompt_tokens, output_tokens) for size in batch_sizes]
    return {
        "model": llm.engine.config.model,
        "dtype": llm.engine.config.dtype,
        "weights_dtype": llm.engine.config.weights_dtype,
        "startup_s": round(llm.built.startup_s, 3),
        "variants_compiled": len(llm.engine.manager.buckets),
        "compilations_after_warmup": compilations() - before,
        "peak_rss_bytes": peak_memory(),
        "results": results,
    }


def _measure_one(llm: LLM, batch_size: int, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    prompts = random_prompts(llm, batch_size, prompt_tokens)
    _run(llm, prompts, min(output_tokens + 1, 4))
    one = _run(llm, prompts, 1)
    decode = _run(llm, prompts, output_tokens + 1) - one
    if decode <= 0:
        raise ConfigError(f"output_tokens: {output_tokens} take too little time to be measured; give more")
    return {
        "batch_size": batch_size,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prefill_tok_s": round(batch_size * prompt_tokens / one, 1),
        "decode_tok_s": round(batch_size * output_tokens / decode, 1),
        "step_ms": round(1e3 * decode / output_tokens, 3),
    }


def _run(llm: LLM, prompts: list[list[int]], max_tokens: int) -> float:
    """Seconds for all prompts to get so many tokens."""
    llm.engine.reset_prefix_cache()  # each run computes its prompts
    start = time.perf_counter()
    llm.generate(prompts, greedy(max_tokens))
    return time.perf_counter() - start


def format_report(report: dict[str, Any]) -> str:
    """The figures as a table for the terminal."""
    lines = [
        f"{report['model']}, {report['dtype']}, weights {report['weights_dtype']}: "
        f"ready in {report['startup_s']:.1f} s, "
        f"{report['variants_compiled']} variants compiled, "
        f"{report['compilations_after_warmup']} compilations after warm-up, "
        f"peak memory {report['peak_rss_bytes'] / 1e6:.0f} MB",
        f"{'batch':>6}{'prompt':>8}{'output':>8}{'prefill tok/s':>15}{'decode tok/s':>14}{'ms/step':>10}",
    ]
    for r in report["results"]:
        lines.append(
            f"{r['batch_size']:>6}{r['prompt_tokens']:>8}{r['output_tokens']:>8}"
            f"{r['prefill_tok_s']:>15.1f}{r['decode_tok_s']:>14.1f}{r['step_ms']:>10.2f}"
        )
    return "\n".join(lines)
