"""What the default form of the weights costs in perplexity, against float32: python bench/perplexity.py smollm2"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from headrace import LLM, SamplingParams

TEXT = Path(__file__).parents[1] / "LICENSE"
WINDOW = 512  # tokens, scored each by itself


def score(model: str, windows: list[list[int]], **options: str) -> list[float]:
    """Log-probabilities of all tokens but each window's first."""
    llm = LLM(model, max_num_seqs=8, max_model_len=WINDOW + 8, **options)
    outputs = llm.generate(windows, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    print(f"  {llm.engine.config.dtype}, weights {llm.engine.config.weights_dtype}")
    return [one.logprob for output in outputs for one in output.prompt_logprobs or () if one is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, nargs="+", default=[TEXT])
    chosen = parser.parse_args()
    text = "\n\n".join(path.read_text() for path in chosen.text)
    llm = LLM(chosen.model, max_num_seqs=1, max_model_len=64)
    tokenizer = llm.engine.tokenizer
    ids = tokenizer.encode(text)
    first = ids[:1] if tokenizer.encode("") == ids[:1] else []  # a token that every text begins with
    step = WINDOW - len(first)
    ids = ids[len(first) :]
    windows = [first + ids[start : start + step] for start in range(0, len(ids) - step + 1, step)]
    del llm
    print(f"{len(windows)} windows of {WINDOW} tokens of {', '.join(path.name for path in chosen.text)}")
    exact = score(chosen.model, windows, dtype="float32")
    default = score(chosen.model, windows)
    assert len(exact) == len(default)
    best, got = (math.exp(-sum(scores) / len(scores)) for scores in (exact, default))
    print(f"perplexity {best:.4f} and {got:.4f}: {100 * (got / best - 1):+.2f} % over {len(exact)} tokens")


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    main()
