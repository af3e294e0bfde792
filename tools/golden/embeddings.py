"""Pooled hidden states of some of the tiny checkpoints, in float32."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

NAMES = ("llama3", "mistral_window", "qwen2", "gemma3")


@torch.no_grad()
def pooled(folder: Path) -> list[dict[str, list[float]]]:
    """For each prompt the mean of `last_hidden_state` over its tokens, and that of the last token."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    vectors = []
    with np.load(folder / "golden.npz") as data:
        for i in range(sum(key.startswith("prompt_") for key in data.files)):
            hidden = model(input_ids=torch.tensor([data[f"prompt_{i}"].tolist()])).last_hidden_state[0].double()
            vectors.append({"mean": hidden.mean(0).float().tolist(), "last": hidden[-1].float().tolist()})
    return vectors


def write(out: Path) -> None:
    """Write embeddings.json for the checkpoints that lie there."""
    facts = {name: pooled(out / name) for name in NAMES}
    (out / "embeddings.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
