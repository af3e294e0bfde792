"""The numerics cases of public bug reports: a sliding window in every way that a token can be computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import golden
from models.runs import all_logits, checkpoint, driver, load, scaled, teacher_forced

WINDOWED = ["mistral_window", "qwen2_window", "gemma3"]  # on all layers, on the upper one, on all but one in three


@pytest.mark.parametrize("chunk", [70, 32, 7, 1], ids=["whole", "chunks of 32", "chunks of 7", "decode"])
@pytest.mark.parametrize("name", WINDOWED)
def test_num_01_a_window_in_prefill_chunks_and_decode(name: str, chunk: int) -> None:
    data = golden.load(name)
    prompt, reference = data.prompts[2], data.logits[2]
    assert len(prompt) == 70  # the windows are 16
    got = teacher_forced(driver(name, [prompt]), chunk)
    assert len(got) == -(-70 // chunk)
    for position, logits in got.items():
        np.testing.assert_allclose(logits, reference[position], rtol=0, atol=scaled(reference), err_msg=str(position))


def test_num_01_layers_declared_full_ignore_the_window(tmp_path: Path) -> None:
    name = "qwen2_window"
    config = json.loads((golden.ROOT / name / "config.json").read_text())
    assert config["sliding_window"] == 16
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(golden.ROOT / name / "model.safetensors", tmp_path)
    full, weights = load(tmp_path)
    assert [layer.window for layer in full.spec.layers] == [None, None]

    prompt = golden.load(name).prompts[2]
    changed = [prompt[0] + 1, *prompt[1:]]
    one, other = all_logits(full.spec, weights, [prompt, changed])
    assert np.abs(one - other)[-1].max() > 0.01  # 69 tokens back and still seen

    # Through a window on every layer the last of 70 tokens sees 16 - 1 back per layer, 30 in all.
    mistral, its_weights = checkpoint("mistral_window")
    prompt = golden.load("mistral_window").prompts[2]
    one, other = all_logits(mistral.spec, its_weights, [prompt, [prompt[0] + 1, *prompt[1:]]])
    np.testing.assert_array_equal(one[31:], other[31:])
    assert np.abs(one - other)[30].max() > 0
