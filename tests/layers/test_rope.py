"""Rotary frequencies against transformers' (NUM-03), through every spelling of the configuration."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import golden
from headrace.errors import ModelError
from headrace.layers.rope import apply_rope, inverse_frequencies, rope_cos_sin
from headrace.models.family import config_rope
from headrace.models.spec import RopeSpec

FACTS = golden.facts("rope")
HEAD_DIM: int = FACTS["head_dim"]
CASES: list[dict[str, Any]] = FACTS["cases"]
SPELLINGS = [
    pytest.param(case, config, id=f"{case['name']}-{i}") for case in CASES for i, config in enumerate(case["configs"])
]


def cos_sin(rope: RopeSpec, positions: list[int], prompt_lens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    frequencies = jnp.asarray(inverse_frequencies(rope)[0])
    cos, sin = rope_cos_sin(rope, frequencies, jnp.asarray(positions, jnp.int32), jnp.asarray(prompt_lens, jnp.int32))
    return np.asarray(cos), np.asarray(sin)


@pytest.mark.parametrize(("case", "config"), SPELLINGS)
def test_num_03_frequencies_and_attention_factor(case: dict[str, Any], config: dict[str, Any]) -> None:
    frequencies, factor = inverse_frequencies(config_rope(config, HEAD_DIM))
    assert factor == pytest.approx(case["attention_factor"], rel=1e-6)
    if case["seq_len"] is None:
        np.testing.assert_allclose(frequencies, case["inv_freq"], rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_num_03_cos_and_sin_far_from_the_start(case: dict[str, Any]) -> None:
    rope = config_rope(case["configs"][0], HEAD_DIM)
    positions = FACTS["positions"]
    if case["seq_len"] is not None:  # one length for all positions: those within it
        positions = [position for position in positions if position < case["seq_len"]]
    # The dynamic kind without a length has the frequencies of the original length, where only small positions occur.
    if rope.kind == "dynamic" and case["seq_len"] is None:
        positions = [position for position in positions if position < rope.original_max_position]
    assert len(positions) >= 3
    cos, sin = cos_sin(rope, positions, [case["seq_len"] or 1] * len(positions))
    # A frequency's last bit turns into an angle of position * 2**-24; transformers' own float32 angles have that error.
    within = np.maximum(np.array(positions)[:, None] * np.array(case["inv_freq"]) * 2.0**-22, 2e-6)
    for ours, theirs in ((cos, case["cos"]), (sin, case["sin"])):
        difference = np.abs(ours - np.array(theirs)[: len(positions)])
        assert (difference <= within).all(), difference.max()


def test_dynamic_frequencies_follow_prompt_length_and_position() -> None:
    rope = RopeSpec(10_000.0, HEAD_DIM, "dynamic", 4.0, 8192)
    by_length = {case["seq_len"]: np.array(case["inv_freq"]) for case in CASES if case["name"].startswith("dynamic")}
    # A prompt's tokens all have the base of the whole prompt; a generated token that of its own length.
    lengths = [16384, 60001]
    for positions, prompts in (([100] * 2, lengths), ([n - 1 for n in lengths], [1] * 2)):
        _, sin = cos_sin(rope, positions, prompts)
        angles = np.array(positions)[:, None] * np.stack([by_length[n] for n in lengths])
        np.testing.assert_allclose(sin, np.sin(angles), atol=0.02)  # the angles reach 60,000: 0.004 is one rounding
        far = np.abs(np.sin(angles) - np.sin(np.array(positions)[:, None] * by_length[None])).max(-1)
        assert (far > 0.04).all()
    within, _ = cos_sin(rope, [8191], [8192])
    np.testing.assert_allclose(within[0], np.cos(8191 * by_length[None]), atol=2e-3)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_an_unknown_kind_is_refused(key: str) -> None:
    config = {"max_position_embeddings": 4096, "rope_scaling": {key: "longrope", "factor": 2.0}}
    with pytest.raises(ModelError, match=r"'longrope'.*default, linear, dynamic, llama3, yarn"):
        config_rope(config, HEAD_DIM)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
def test_a_scaling_without_its_factor_is_refused(kind: str) -> None:
    config = {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": kind, "rope_theta": 1e4}}
    with pytest.raises(ModelError, match="factor"):
        config_rope(config, HEAD_DIM)


def test_rotation_pairs_the_halves_and_keeps_lengths() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 8)).astype(np.float32)
    angles = rng.normal(size=(3, 4)) * 100
    turned = np.asarray(apply_rope(jnp.asarray(x), jnp.asarray(np.cos(angles)), jnp.asarray(np.sin(angles))))
    # The same as complex numbers: x[i] + i x[i + 4] times e^(i angle).
    expected = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[:, None, :]
    np.testing.assert_allclose(turned, np.concatenate([expected.real, expected.imag], -1), rtol=1e-4, atol=1e-5)
