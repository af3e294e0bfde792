"""The decoder against transformers, on every golden set."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from headrace.kernels.gpu_attention import GpuAttention
from headrace.kernels.native_attention import NativeAttention
from headrace.kernels.tpu_attention import TpuAttention
from headrace.models.registry import family_of_config
from headrace.native import available
from kernels.interpret import interpreted
from models.runs import JAX, all_logits, checkpoint, scaled

LEGACY = [name for name in golden.names() if (golden.ROOT / name / "config_legacy.json").exists()]


@pytest.mark.parametrize("native", [False, True], ids=["jax", "native"])
@pytest.mark.parametrize("name", golden.names())
def test_logits_at_every_position_and_the_tokens_that_follow(name: str, native: bool) -> None:
    if native and not available():
        pytest.skip("the native kernels are absent")
    data, (opened, weights) = golden.load(name), checkpoint(name, native)
    kernel = NativeAttention(jnp.dtype(jnp.float32)) if native else JAX
    lens = [len(prompt) for prompt in data.prompts]
    sequences = [[*prompt, *more] for prompt, more in zip(data.prompts, data.continuations, strict=True)]
    for i, logits in enumerate(all_logits(opened.spec, weights, sequences, lens, kernel)):
        tolerance = scaled(data.logits[i])
        np.testing.assert_allclose(logits[: lens[i]], data.logits[i], rtol=0, atol=tolerance)
        # The rows that the continuation was taken from: from the last of the prompt to the last but one.
        rows = logits[lens[i] - 1 : -1].astype(np.float64)
        assert data.gaps[i].min() > 4 * tolerance  # no near tie that rounding could decide
        assert rows.argmax(-1).tolist() == data.continuations[i]
        best = np.sort(rows, axis=-1)[:, ::-1]
        np.testing.assert_allclose(best[:, 0] - best[:, 1], data.gaps[i], rtol=0, atol=2 * tolerance)
        logprobs = best[:, 0] - np.log(np.exp(rows - best[:, :1]).sum(-1)) - best[:, 0]
        np.testing.assert_allclose(logprobs, data.logprobs[i], rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize(("kernel", "name"), [(GpuAttention, "gemma3"), (TpuAttention, "llama3")])
def test_x8_the_same_logits_through_the_kernels_for_gpu_and_tpu(kernel: type[Any], name: str) -> None:
    data, (opened, weights) = golden.load(name), checkpoint(name)
    with interpreted():
        found = all_logits(opened.spec, weights, data.prompts, kernel=kernel(jnp.dtype(jnp.float32)))
    for ours, theirs in zip(found, data.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=scaled(theirs))


@pytest.mark.parametrize("name", LEGACY)
def test_the_older_form_of_the_configuration_says_the_same(name: str) -> None:
    config = json.loads((golden.ROOT / name / "config_legacy.json").read_text())
    assert family_of_config(config).from_config(config) == checkpoint(name)[0].spec


def test_there_are_sets_of_every_family_and_with_older_configurations() -> None:
    assert len(golden.names()) == 16
    assert {checkpoint(name)[0].spec.family for name in golden.names()} == {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma3",
    }
    assert {"llama3", "llama_yarn_mscale", "llama_dynamic", "qwen2_window", "gemma3_linear"} <= set(LEGACY)


def test_shards_hold_the_same_weights() -> None:
    whole, sharded = (jax.tree.leaves(checkpoint(name)[1]) for name in ("llama3", "llama3_sharded"))
    for one, other in zip(whole, sharded, strict=True):
        np.testing.assert_array_equal(one, other)
