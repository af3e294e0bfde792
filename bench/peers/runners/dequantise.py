"""Writes a GGUF file's values in bfloat16 as a Hugging Face folder: dequantise.py FILE FOLDER.

It is run in the environment of transformers, whose own reader of GGUF files it uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


def main(source: Path, folder: Path) -> None:
    """The folder appears when it is whole; it has no tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    save_file(weights, partial / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
