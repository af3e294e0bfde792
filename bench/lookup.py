"""What prompt lookup brings one request: tokens per step, acceptance and speed-up, and that its output stays the same.

    python bench/lookup.py smollm2 --rounds 3

Two engines in one process, one with and one without, answer the same prompts greedily by turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from headrace import LLM, RequestOutput, SamplingParams

ROOT = Path(__file__).parent.parent
STORY = " ".join((ROOT / "tools" / "golden" / "story.txt").read_text(encoding="utf-8").split())
CODE = (ROOT / "src" / "headrace" / "engine" / "pages.py").read_text(encoding="utf-8")
PROMPTS = {
    "summary with quotations": f"Summarise the following text in a few sentences, quoting its words:\n\n{STORY[:2000]}",
    "a text again": f"Repeat the following text word by word:\n\n{STORY[:800]}",
    "code with a change": f"Add type hints and a docstring to this Python code and print all of it:\n\n{CODE[:1800]}",
    "a story, nothing to quote": "Write a story about a lighthouse keeper.",
}


class Timed:
    """An engine, and what its answers to one prompt took: seconds and CPU seconds of each."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.seconds, self.cpu_seconds = llm, list[float](), list[float]()

    def answer(self, prompt: list[int], **params: Any) -> RequestOutput:
        self.llm.engine.reset_prefix_cache()
        wall, cpu = time.perf_counter(), time.process_time()
        [output] = self.llm.generate([prompt], SamplingParams(temperature=0, **params))
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(time.process_time() - cpu)
        return output


def compare(plain: LLM, lookup: LLM, text: str, rounds: int, max_tokens: int) -> str:
    """A line of the table. The first answers are not measured: they are compared with their log-probabilities."""
    prompt, engines = plain.encode_chat([{"role": "user", "content": text}]), (Timed(plain), Timed(lookup))
    before = lookup.engine.metrics.counters
    expected, output = (one.answer(prompt, max_tokens=max_tokens, logprobs=0) for one in engines)
    after = lookup.engine.metrics.counters
    if (output.token_ids, output.logprobs) != (expected.token_ids, expected.logprobs):
        raise SystemExit("the outputs differ")
    for _ in range(rounds):
        for one in engines:
            if one.answer(prompt, max_tokens=max_tokens).token_ids != expected.token_ids:
                raise SystemExit("the outputs differ")
    tokens_per_step = len(output.token_ids) / (after.tokens_sampled - before.tokens_sampled)
    drafted, accepted = (getattr(after, n) - getattr(before, n) for n in ("drafted_tokens", "accepted_tokens"))
    slow, quick = (statistics.median(one.seconds[1:]) for one in engines)
    slow_cpu, quick_cpu = (statistics.median(one.cpu_seconds[1:]) for one in engines)
    return (
        f"{len(prompt):>8}{len(output.token_ids):>8}{tokens_per_step:>13.2f}{accepted / max(drafted, 1):>10.0%}"
        f"{slow:>9.2f} s{quick:>8.2f} s{slow / quick:>10.2f}{slow_cpu / quick_cpu:>10.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--speculative-tokens", type=int, default=7)
    given = parser.parse_args()
    options = {"max_num_seqs": 8, "max_model_len": 2048}
    plain = LLM(given.model, **options)
    lookup = LLM(given.model, speculative_tokens=given.speculative_tokens, **options)
    columns = f"{'prompt':>8}{'output':>8}{'tokens/step':>13}{'accepted':>10}{'without':>11}{'with':>10}"
    print(f"{'':28}{columns}{'speed-up':>10}{'in CPU':>10}")
    for name, text in PROMPTS.items():
        print(f"{name:28}{compare(plain, lookup, text, given.rounds, given.max_tokens)}", flush=True)


if __name__ == "__main__":
    main()
