"""Checkpoints of any size, with random weights, for tests that compare us with ourselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import golden
from headrace.models.registry import family_of_config
from headrace.models.weights import declare


def write_random(folder: Path, name: str, **changes: Any) -> Path:
    """A Hugging Face folder with the configuration of a golden set, changed."""
    config = json.loads((golden.ROOT / name / "config.json").read_text()) | changes
    family, rng = family_of_config(config), np.random.default_rng(0)
    tensors = {
        family.hf_names[part.role].format(layer=declaration.layer): _random(rng, part.shape)
        for declaration in declare(family.from_config(config))
        for part in declaration.parts
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices that keep the size of what they multiply, and vectors around 1."""
    noise = rng.standard_normal(shape, np.float32)
    return noise / np.sqrt(np.float32(shape[-1])) if len(shape) == 2 else 1 + noise / 4
