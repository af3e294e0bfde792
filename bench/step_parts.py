"""What the calls of native kernels take within a decode step, by JAX's profiler.

    python bench/step_parts.py smollm2 --batch 8 --context 128

Calls are told apart by handler and matrix; the profiler slows a step down by some percent.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

import jax

from headrace import LLM
from headrace.benchmark.context import decode, fill_pages, steps_to_begin
from headrace.benchmark.workload import random_prompts

# In the text of a compiled step: %name = type[shape] custom-call(%x, %weights__layers_0__qkv_array, …), …
_CALL = re.compile(r'%(\S+) = .* custom-call\((.*?)\), custom_call_target="headrace_(\w+)"')
_MATRIX = re.compile(r"%\w*?__(?:layers_\d+__)?([a-z_]+)_array")
_STEP = "ThunkExecutor::Execute (wait for completion)"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8, help="requests at once")
    parser.add_argument("--context", type=int, default=128, help="tokens in the cache of each")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    begin = steps_to_begin(options.batch, options.context + 1, 16, 512)
    tokens = options.context + 1 + begin + options.steps + 2
    llm = LLM(options.model, max_num_seqs=max(options.max_num_seqs, options.batch), max_model_len=tokens)
    engine = llm.engine
    fill_pages(engine, engine.pool.num_pages)
    prompts = random_prompts(llm, options.batch, options.context + 1)
    decode(engine, prompts, 2, tokens - options.context - 1)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            decode(engine, prompts, options.steps, tokens - options.context - 1)
        [file] = Path(folder).rglob("*.xplane.pb")
        lines = [line for plane in jax.profiler.ProfileData.from_file(str(file)).planes for line in plane.lines]
        events = [(event.name, event.duration_ns) for line in lines for event in line.events]
    assert engine.last_step is not None
    text = engine.manager.compiled_text(engine.last_step.bucket)
    labels = {name: _label(operands, handler) for name, operands, handler in _CALL.findall(text)}
    steps = sum(name == _STEP for name, _ in events)
    total, calls = Counter[str](), Counter[str]()
    for name, ns in events:
        label = "the step" if name == _STEP else labels.get(name)
        if label is not None:
            total[label] += ns
            calls[label] += 1
    for label, ns in total.most_common():
        print(f"{ns / steps / 1e6:8.3f} ms {calls[label] / steps:6.1f} calls  {label}")


def _label(operands: str, handler: str) -> str:
    matrix = _MATRIX.search(operands)
    return f"{handler} {matrix[1]}" if matrix else handler


if __name__ == "__main__":
    main()
