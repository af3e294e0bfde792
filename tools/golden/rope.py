"""Part B: rope.json, the frequencies and attention factors that transformers derives from a configuration."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HEAD_DIM = 64
POSITIONS = (0, 1, 8191, 60000)
SHAPE = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": HEAD_DIM}


@dataclass(frozen=True)
class RopeCase:
    """One scaling (without `rope_type`'s key, so that it can be spelled both ways)."""

    name: str
    kind: str
    options: dict[str, Any]
    theta: float = 10_000.0
    max_positions: int = 8192
    seq_len: int | None = None  # current length; only dynamic rope looks at it


def cases() -> list[RopeCase]:
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    yarn = {"factor": 4.0, "original_max_position_embeddings": 8192}
    mscales = {"mscale": 0.707, "mscale_all_dim": 0.707}
    return [
        RopeCase("default", "default", {}),
        RopeCase("default_theta_1e6", "default", {}, theta=1_000_000.0),
        RopeCase("linear_8", "linear", {"factor": 8.0}, theta=1_000_000.0),
        RopeCase("dynamic_within", "dynamic", {"factor": 4.0}),
        RopeCase("dynamic_at_8193", "dynamic", {"factor": 4.0}, seq_len=8193),
        RopeCase("dynamic_at_16384", "dynamic", {"factor": 4.0}, seq_len=16384),
        RopeCase("dynamic_at_60001", "dynamic", {"factor": 4.0}, seq_len=60001),
        RopeCase("llama3_8", "llama3", {"factor": 8.0, **llama3}, theta=500_000.0, max_positions=131072),
        RopeCase("llama3_32", "llama3", {"factor": 32.0, **llama3}, theta=500_000.0, max_positions=131072),
        RopeCase("yarn_4", "yarn", yarn, max_positions=32768),
        RopeCase("yarn_4_theta_1e6", "yarn", yarn, theta=1_000_000.0, max_positions=32768),
        RopeCase("yarn_4_attention_factor", "yarn", {**yarn, "attention_factor": 1.3}, max_positions=32768),
        RopeCase("yarn_4_attention_factor_1", "yarn", {**yarn, "attention_factor": 1.0}, max_positions=32768),
        RopeCase("yarn_4_mscale_only", "yarn", {**yarn, "mscale": 0.707}, max_positions=32768),
        RopeCase("yarn_4_mscale_all_dim_only", "yarn", {**yarn, "mscale_all_dim": 0.707}, max_positions=32768),
        RopeCase("yarn_4_mscale_both", "yarn", {**yarn, "mscale": 1.0, "mscale_all_dim": 0.8}, max_positions=32768),
        RopeCase("yarn_4_mscale_equal", "yarn", {**yarn, **mscales}, max_positions=32768),
        RopeCase("yarn_4_betas", "yarn", {**yarn, "beta_fast": 16.0, "beta_slow": 2.0}, max_positions=32768),
        RopeCase("yarn_4_not_truncated", "yarn", {**yarn, "truncate": False}, max_positions=32768),
        RopeCase("yarn_original_from_max", "yarn", {"factor": 4.0}),
    ]


def spellings(case: RopeCase) -> list[dict[str, Any]]:
    """Parts of config.json that all mean `case`: transformers 5, then transformers 4 with both names of the kind."""
    base = {**SHAPE, "max_position_embeddings": case.max_positions}
    new = {**base, "rope_parameters": {"rope_type": case.kind, "rope_theta": case.theta, **case.options}}
    if case.kind == "default":
        return [new, {**base, "rope_theta": case.theta, "rope_scaling": None}, {**base, "rope_theta": case.theta}]
    old = [{**base, "rope_theta": case.theta, "rope_scaling": {key: case.kind, **case.options}} for key in KIND_KEYS]
    return [new, *old]


KIND_KEYS = ("rope_type", "type")


def frequencies(config: LlamaConfig, seq_len: int | None) -> tuple[torch.Tensor, float]:
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)


def describe(case: RopeCase) -> dict[str, Any]:
    configs = spellings(case)
    inv_freq, attention_factor = frequencies(LlamaConfig(**json.loads(json.dumps(configs[0]))), case.seq_len)
    for config in configs[1:]:
        other, other_factor = frequencies(LlamaConfig(**json.loads(json.dumps(config))), case.seq_len)
        if not torch.equal(inv_freq, other) or attention_factor != other_factor:
            raise AssertionError(f"{case.name}: the spellings of the configuration disagree")
    angles = torch.tensor(POSITIONS, dtype=torch.float32)[:, None] * inv_freq
    return {
        "name": case.name,
        "configs": configs,
        "seq_len": case.seq_len,
        "inv_freq": inv_freq.tolist(),
        "attention_factor": attention_factor,
        "cos": (angles.cos() * attention_factor).tolist(),
        "sin": (angles.sin() * attention_factor).tolist(),
    }


def write(out: Path) -> None:
    """Every case with its spellings; cos and sin are [position, frequency], float32, times the attention factor."""
    lines = [json.dumps(describe(case)) for case in cases()]
    body = ",\n".join(lines)
    text = f'{{"head_dim": {HEAD_DIM}, "positions": {list(POSITIONS)}, "cases": [\n{body}\n]}}\n'
    (out / "rope.json").write_text(text, encoding="utf-8")
