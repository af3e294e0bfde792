"""The loader cases of public bug reports: row order of q and k, what Gemma's GGUF files leave out, its norms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

import golden
from headrace.errors import ModelError
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights
from headrace.weights.gguf import GGUFFile
from headrace.weights.load import open_checkpoint
from models import gguf_models
from models.runs import all_logits, checkpoint, load, scaled


def assert_same_spec(ours: DecoderSpec, theirs: DecoderSpec) -> None:
    assert ours.norm_eps == float(np.float32(theirs.norm_eps))  # GGUF files hold it in float32
    assert ours == replace(theirs, norm_eps=ours.norm_eps)


def assert_same_weights(ours: DecoderWeights, theirs: DecoderWeights) -> None:
    for (path, one), (_, other) in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves_with_path(theirs), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", ["smollm2", "llama2"])  # six heads on two, and as many of both
def test_lod_01_permuted_rows_of_a_llama_file(name: str, tmp_path: Path) -> None:
    data = golden.load(name)
    opened, weights = load(gguf_models.write(data.folder, tmp_path / "model.gguf", "llama", permute=True))
    assert_same_spec(opened.spec, checkpoint(name)[0].spec)
    assert_same_weights(weights, checkpoint(name)[1])
    for ours, theirs in zip(all_logits(opened.spec, weights, data.prompts), data.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=scaled(theirs))


def test_lod_01_a_wrong_order_shows_from_the_second_token_on(tmp_path: Path) -> None:
    data = golden.load("smollm2")
    opened, weights = load(gguf_models.write(data.folder, tmp_path / "model.gguf", "llama", permute=False))
    for ours, theirs in zip(all_logits(opened.spec, weights, data.prompts), data.logits, strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=scaled(theirs))
        assert np.abs(ours - theirs)[1:].max(-1).min() > 0.1


def test_lod_01_rows_of_a_qwen_file_are_as_they_are(tmp_path: Path) -> None:
    data = golden.load("qwen3")
    opened, weights = load(gguf_models.write(data.folder, tmp_path / "model.gguf", "qwen3"))
    assert_same_spec(opened.spec, checkpoint("qwen3")[0].spec)
    assert_same_weights(weights, checkpoint("qwen3")[1])


def test_lod_01_biases_of_a_qwen2_file(tmp_path: Path) -> None:
    data = golden.load("qwen2")
    config = json.loads(data.config_path.read_text())
    config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(data.folder / "model.safetensors")
    opened, weights = load(gguf_models.write(tmp_path, tmp_path / "model.gguf", "qwen2"))
    assert_same_spec(opened.spec, checkpoint("qwen2")[0].spec)
    assert_same_weights(weights, checkpoint("qwen2")[1])


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Gemma as real files have it: a global layer every six, the scale that follows from the head size."""
    folder, data = tmp_path_factory.mktemp("gemma"), golden.load("gemma3")
    config = json.loads(data.config_path.read_text())
    tensors = load_file(data.folder / "model.safetensors")
    layers = 7
    for key in ("_sliding_window_pattern", "sliding_window_pattern"):
        del config[key]
    config["num_hidden_layers"], config["query_pre_attn_scalar"] = layers, config["head_dim"]
    config["layer_types"] = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    for layer in range(4, layers):
        for name in [name for name in tensors if name.startswith(f"model.layers.{layer - 4}.")]:
            tensors[name.replace(f"layers.{layer - 4}.", f"layers.{layer}.")] = tensors[name]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    gguf_models.write(folder, folder / "model.gguf", "gemma3", norm_offset=1.0)
    return folder


def test_lod_03_a_gemma_file_without_local_base_and_pattern(gemma: Path) -> None:
    opened, weights = load(gemma / "model.gguf")
    reference, reference_weights = load(gemma)
    assert_same_spec(opened.spec, reference.spec)
    assert [layer.window for layer in opened.spec.layers] == [16] * 5 + [None, 16]
    assert_same_weights(weights, reference_weights)


def test_lod_03_layers_of_the_real_gemma(gemma3_path: Path) -> None:
    spec = open_checkpoint(gemma3_path).spec
    assert spec.num_layers == 18
    for i, layer in enumerate(spec.layers):
        rope = spec.ropes[layer.rope]
        expected = (None, 1e6) if i % 6 == 5 else (512, 1e4)
        assert (layer.window, rope.theta, rope.kind, rope.head_dim) == (*expected, "default", 256)
    assert (spec.num_heads, spec.num_kv_heads, spec.hidden_size, spec.head_dim) == (4, 1, 640, 256)
    assert spec.attention_scale == 256**-0.5
    assert spec.tied_head


def test_lod_04_gguf_norms_are_used_as_they_are_and_others_are_offset_by_one(gemma: Path) -> None:
    stored, raw = GGUFFile.open(gemma / "model.gguf"), load_file(gemma / "model.safetensors")
    for path in (gemma / "model.gguf", gemma):
        weights = load(path)[1]
        np.testing.assert_array_equal(weights.final_norm, stored.read("output_norm.weight"))
        np.testing.assert_array_equal(weights.final_norm, raw["model.norm.weight"] + 1)
        for i, layer in enumerate(weights.layers):
            for field, name in (
                ("attn_norm", "input_layernorm"),
                ("q_norm", "self_attn.q_norm"),
                ("k_norm", "self_attn.k_norm"),
                ("post_attn_norm", "post_attention_layernorm"),
                ("mlp_norm", "pre_feedforward_layernorm"),
                ("post_mlp_norm", "post_feedforward_layernorm"),
            ):
                np.testing.assert_array_equal(getattr(layer, field), raw[f"model.layers.{i}.{name}.weight"] + 1)


def test_lod_04_other_families_store_the_norm_itself() -> None:
    raw = load_file(golden.ROOT / "qwen3" / "model.safetensors")
    np.testing.assert_array_equal(checkpoint("qwen3")[1].final_norm, raw["model.norm.weight"])


@pytest.mark.parametrize("count", [0, 10**9])
def test_a_gguf_that_claims_an_impossible_number_of_layers(tmp_path: Path, count: int) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(count)
    for key in ("embedding_length", "feed_forward_length", "attention.head_count", "context_length"):
        writer.add_uint32(f"llama.{key}", 64)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=rf"llama\.block_count is {count}, with 1 tensors"):
        open_checkpoint(path)
