"""Golden data written by tools/make_golden.py: reference logits and greedy tokens from transformers, in float32."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent / "data" / "golden"


@dataclass(frozen=True)
class Golden:
    """One tiny checkpoint and what transformers computes with it; the lists have one item per prompt."""

    name: str
    folder: Path
    config_path: Path
    prompts: list[list[int]]
    logits: list[np.ndarray]  # float32 [prompt length, vocab]: row i predicts token i + 1
    continuations: list[list[int]]  # greedy ids that follow the prompt, never an end token
    logprobs: list[np.ndarray]  # float32 [continuation length]: log-softmax of each continuation token
    gaps: list[np.ndarray]  # float32 [continuation length]: logit of the best token minus the second


def names() -> list[str]:
    """Names of all tiny checkpoints that have golden logits."""
    return sorted(path.parent.name for path in ROOT.glob("*/golden.npz"))


def load(name: str) -> Golden:
    """Load one tiny checkpoint's golden data; KeyError for a name that does not exist."""
    folder = ROOT / name
    if not (folder / "golden.npz").is_file():
        raise KeyError(f"no golden set {name!r}; there are {names()}")
    with np.load(folder / "golden.npz") as data:
        count = sum(key.startswith("prompt_") for key in data.files)
        return Golden(
            name=name,
            folder=folder,
            config_path=folder / "config.json",
            prompts=[data[f"prompt_{i}"].tolist() for i in range(count)],
            logits=[data[f"logits_{i}"] for i in range(count)],
            continuations=[data[f"continuation_{i}"].tolist() for i in range(count)],
            logprobs=[data[f"logprobs_{i}"] for i in range(count)],
            gaps=[data[f"gaps_{i}"] for i in range(count)],
        )


def facts(name: str) -> Any:
    """The contents of a JSON file of golden facts, such as "rope" or "embeddings"."""
    return json.loads((ROOT / f"{name}.json").read_text(encoding="utf-8"))
