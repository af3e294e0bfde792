"""tests/data/golden/README.md: what the files are and how they were made."""

import platform
from importlib.metadata import version
from pathlib import Path

from golden.tiny import MIN_DISTINCT, NEW_TOKENS, PROMPT_LENGTHS, Summary

PACKAGES = ("transformers", "torch", "safetensors", "tokenizers", "gguf", "numpy")

TEXT = """# Golden data

Written by `tools/make_golden.py`, which says how to run it; tests read it through `tests/golden.py`.

Made with Python {python}, {packages}.

## Tiny checkpoints

Random weights in float32, in the layout of the Hub: `config.json` (transformers 5, `rope_parameters`),
`model.safetensors` and, for some, `config_legacy.json`: the same model as transformers 4 described it (`rope_scaling`,
`rope_theta`, `torch_dtype`). `<name>_sharded` holds the weights of `<name>` in two files with an index.

`golden.npz` has, for prompts i = 0..{last} of {lengths} tokens:

| key | shape | meaning |
|---|---|---|
| `prompt_i` | [length] int32 | token ids |
| `logits_i` | [length, vocab] float32 | one full forward pass, eager attention |
| `continuation_i` | [{new}] int32 | greedy ids with the KV cache: no special ids, {distinct} or more different ones |
| `logprobs_i` | [{new}] float32 | log-softmax of each of them |
| `gaps_i` | [{new}] float32 | logit of each of them minus the second best |

Noise is the largest difference of a logit between float32 and float64: no test can ask for less. "Misread" is the
largest change of a logit when the set's particular option is ignored (no window, no rope scaling, no global layer).
`llama_dynamic`: the logits use the base for the whole prompt's length; in the continuation each step has the base of
its own length while cached keys keep the base that they were written with, as in `generate`.

| set | seed | smallest gap | noise | misread | KB |
|---|---|---|---|---|---|
{rows}

## Facts in JSON

- `rope.json`: inverse frequencies and attention factors of every kind of rope scaling, each with several spellings
  of the configuration, and cos/sin (float32 products and angles) at some positions.
- `embeddings.json`: for some of the tiny checkpoints, and for each of their prompts, `last_hidden_state`: its `mean`
  over the prompt (taken in float64), and that of the `last` token.
- `smollm2.json`, `gemma3_270m.json`: two real GGUF files, dequantised to float32: token ids, greedy
  continuations of four prompts (`near_ties`: steps whose gap is below 0.001), the scores of two cities after the
  first prompt, and `next_logprobs[i]` = log p(`ids[i + 1]` | `ids[:i + 1]`) for a long text, which is
  `tools/golden/story.txt`, written for this purpose. Gemma's ids begin with its bos. Its greedy answer to the first
  prompt does not name Paris, which comes third.
- `smollm2_scores.json`: 200 short texts (`tools/golden/sentences.txt`, written for this purpose: English, numbers,
  other scripts, code) with their token ids and the sum of log p(`ids[i + 1]` | `ids[:i + 1]`); every 20th has each of
  these, `logprobs`.
"""


def write_readme(out: Path, summaries: list[Summary]) -> None:
    rows = [
        f"| {s.name} | {s.seed} | {s.min_gap:.3f} | {s.noise:.1e} | "
        f"{'' if s.twin_change is None else format(s.twin_change, '.1f')} | {round(s.size / 1000)} |"
        for s in summaries
    ]
    text = TEXT.format(
        python=platform.python_version(),
        packages=", ".join(f"{name} {version(name).split('+')[0]}" for name in PACKAGES),
        last=len(PROMPT_LENGTHS) - 1,
        lengths=", ".join(map(str, PROMPT_LENGTHS)),
        new=NEW_TOKENS,
        distinct=MIN_DISTINCT,
        rows="\n".join(rows),
    )
    (out / "README.md").write_text(text, encoding="utf-8")
