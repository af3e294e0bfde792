"""Models that the decoder cannot follow are refused with the reason; what is merely left over is named."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import golden
from headrace.errors import ModelError
from headrace.models.registry import family_of_config, family_of_gguf
from headrace.weights.load import load_weights, open_checkpoint

Q = "model.layers.1.self_attn.q_proj.weight"


def spec_of(name: str, **changes: Any) -> Any:
    config = json.loads((golden.ROOT / name / "config.json").read_text()) | changes
    return family_of_config(config).from_config(config)


def copy(name: str, folder: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """A golden set whose tensors were edited."""
    shutil.copy(golden.ROOT / name / "config.json", folder)
    tensors = load_file(golden.ROOT / name / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path) -> None:
    load_weights(open_checkpoint(folder), jnp.dtype(jnp.float32))


@pytest.mark.parametrize("names", [["MixtralForCausalLM"], [], None])
def test_an_unknown_architecture_is_answered_with_those_that_are_known(names: list[str] | None) -> None:
    with pytest.raises(ModelError) as refusal:
        family_of_config({"architectures": names})
    assert (names or ["(none)"])[0] in str(refusal.value)
    for known in (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Gemma3ForCausalLM",
    ):
        assert known in str(refusal.value)
        assert family_of_config({"architectures": ["SomethingElse", known]}).hf_architectures == (known,)


def test_an_unknown_gguf_architecture_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(ModelError, match="'mamba' is not known; known: llama, mistral, qwen2, qwen3, gemma3"):
        family_of_gguf("mamba")


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama2", {"mlp_bias": True}, "mlp_bias"),
        ("llama2", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("qwen2", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "soft-capping"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "soft-capping"),
        ("gemma3", {"attention_bias": True}, "attention_bias"),
        ("llama2", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'.*known: default, linear"),
        ("llama2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama2", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ("qwen3", {"vocab_size": None}, "vocab_size is missing"),
    ],
)
def test_an_option_that_would_change_the_logits_is_refused(name: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        spec_of(name, **changes)


def test_options_that_change_nothing_are_accepted() -> None:
    assert spec_of("llama2", mlp_bias=False, hidden_act="swish") == spec_of("llama2")
    assert spec_of("gemma3", attn_logit_softcapping=None, final_logit_softcapping=None) == spec_of("gemma3")


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    folder = copy("qwen3", tmp_path, lambda tensors: tensors.pop(Q))
    with pytest.raises(ModelError, match=rf"{Q} is missing$"):
        load(folder)


def test_of_many_missing_tensors_the_first_three_are_named(tmp_path: Path) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if "layers.1." in name]:
            del tensors[name]

    with pytest.raises(ModelError, match=r"(layers\.1\.\S+ is missing.*){3}\(and \d+ more\)"):
        load(copy("qwen3", tmp_path, edit))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors[Q] = np.ascontiguousarray(tensors[Q].T)

    with pytest.raises(ModelError, match=rf"{Q} has shape \[64, 128\], expected \[128, 64\]"):
        load(copy("qwen3", tmp_path, edit))


def test_tensors_that_nothing_uses_are_named_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)  # of old files, harmless
        tensors["model.layers.0.self_attn.sinks"] = np.ones(4, np.float32)
        tensors["model.layers.2.input_layernorm.weight"] = np.ones(64, np.float32)

    with caplog.at_level(logging.WARNING):
        load(copy("llama2", tmp_path, edit))
    [message] = [record.getMessage() for record in caplog.records]
    assert "2 tensors are not used" in message
    assert "model.layers.0.self_attn.sinks" in message
    assert "model.layers.2.input_layernorm.weight" in message
    assert "inv_freq" not in message


def test_a_complete_model_loads_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for name in golden.names():
        load(golden.ROOT / name)
    assert not caplog.records


@pytest.mark.parametrize(("text", "reason"), [("{", "not valid JSON"), (None, "no readable config.json")])
def test_a_folder_without_a_readable_configuration(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=reason):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of 1 to 1000, not 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers must be an integer"),
        ({"num_attention_heads": "x"}, "num_heads must be a positive integer, not 'x'"),
        ({"num_attention_heads": 3}, "3 heads cannot share 2 key/value heads evenly"),
        ({"head_dim": -16}, "head_dim must be a positive integer, not -16"),
        ({"rms_norm_eps": -1}, "norm_eps must be a positive number, not -1"),
        ({"rope_parameters": 5}, "describes no model that can be understood"),
        ({"architectures": [5]}, "architecture 5 is not known"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
    ],
)
def test_a_config_that_makes_no_sense(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((golden.ROOT / "llama3" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=re.escape(message)) as refusal:
        open_checkpoint(tmp_path)
    assert str(tmp_path / "config.json") in str(refusal.value)


@pytest.mark.parametrize("text", ["[]", "null", "7"])
def test_a_config_that_is_no_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="describes no model that can be understood"):
        open_checkpoint(tmp_path)
