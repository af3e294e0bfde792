"""Engine options: the bounds of each field, and what `resolve` makes of those left open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import psutil
import pytest

import golden
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.models.spec import DecoderSpec
from headrace.weights.load import open_checkpoint

# llama3: 2 layers of 2 KV heads of 16, keys and values: 128 numbers per token; it was made for 256 tokens.
PAGE_BYTES = 16 * 128 * 4  # 16 tokens in float32


@pytest.fixture(scope="module")
def spec() -> DecoderSpec:
    spec = open_checkpoint(golden.ROOT / "llama3").spec
    assert (spec.max_position, spec.num_layers, spec.num_kv_heads, spec.head_dim) == (256, 2, 2, 16)
    return spec


def config(**options: Any) -> EngineConfig:
    # Plain JAX keeps heads as they are; the native kernel pads them to multiples of 32 numbers.
    return EngineConfig(model="m", **{"dtype": "float32", "attention": "jax", **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "auto"},
        {"dtype": "bfloat16"},
        {"weights_dtype": "auto"},
        {"weights_dtype": "float32"},
        {"weights_dtype": "bfloat16"},
        {"weights_dtype": "int8"},
        {"weights_dtype": "gguf"},
        {"page_size": 8},
        {"page_size": 64},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 7, "max_num_batched_tokens": 7},
        {"max_model_len": 2},
        {"kv_cache_bytes": 1},
        {"kv_cache_share": 1e-9},
        {"kv_cache_share": 1},
        {"attention": "jax"},
        {"attention": "pallas"},
        {"min_input_pad": 1},
        {"max_compiled_variants": 1},
        {"num_tokens_paddings": [1], "num_reqs_paddings": (1, 2)},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_values_at_the_bounds_are_taken(options: dict[str, Any]) -> None:
    made = config(**options)
    assert {name: getattr(made, name) for name in options} == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype: 'float16' is not one of auto, float32, bfloat16"),
        ({"dtype": "int8"}, "dtype: 'int8' is not one of auto, float32, bfloat16"),
        (
            {"weights_dtype": "int4"},
            "weights_dtype: 'int4' is not one of auto, float32, bfloat16, int8, gguf",
        ),
        ({"weights_dtype": None}, "weights_dtype: None is not one of"),
        ({"dtype": None}, "dtype: None is not one of"),
        ({"page_size": 4}, "page_size: 4 is not one of 8, 16, 32, 64"),
        ({"page_size": 16.0}, "page_size: 16.0 is not one of"),
        ({"page_size": "16"}, "page_size: '16' is not one of"),
        ({"max_num_seqs": 0}, "max_num_seqs: must be a positive integer, not 0"),
        ({"max_num_seqs": True}, "max_num_seqs: must be a positive integer, not True"),
        ({"max_num_seqs": 8.0}, "max_num_seqs: must be a positive integer, not 8.0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens: must be a positive integer"),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            r"max_num_batched_tokens: 7 is less than max_num_seqs \(8\)",
        ),
        ({"max_model_len": 0}, "max_model_len: must be a positive integer"),
        ({"max_model_len": 1}, "max_model_len: must be at least 2"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes: must be a positive integer"),
        ({"kv_cache_bytes": 1e9}, "kv_cache_bytes: must be a positive integer"),
        ({"kv_cache_share": 0}, "kv_cache_share: must be > 0 and <= 1, not 0"),
        ({"kv_cache_share": 1.01}, "kv_cache_share: must be > 0 and <= 1, not 1.01"),
        ({"kv_cache_share": float("nan")}, "kv_cache_share: must be > 0 and <= 1, not nan"),
        ({"kv_cache_share": "0.5"}, "kv_cache_share: must be > 0 and <= 1, not '0.5'"),
        ({"kv_cache_share": True}, "kv_cache_share: must be > 0 and <= 1, not True"),
        ({"kv_cache_share": 0.5, "kv_cache_bytes": 1}, "kv_cache_share: cannot be given together with kv_cache_bytes"),
        ({"attention": "flash"}, "attention: 'flash' is not one of auto, jax, pallas, native"),
        ({"attention": None}, "attention: None is not one of"),
        ({"min_input_pad": 0}, "min_input_pad: must be a positive integer"),
        ({"max_compiled_variants": 0}, "max_compiled_variants: must be a positive integer"),
        ({"num_tokens_paddings": "46"}, "num_tokens_paddings: must be a list of sizes, not '46'"),
        ({"num_tokens_paddings": []}, "num_tokens_paddings: must be a list of sizes"),
        ({"num_tokens_paddings": 64}, "num_tokens_paddings: must be a list of sizes, not 64"),
        ({"num_reqs_paddings": [8.0]}, "num_reqs_paddings: must be a positive integer, not 8.0"),
        ({"speculative_tokens": -1}, "speculative_tokens: must be an integer >= 0, not -1"),
        ({"speculative_tokens": True}, "speculative_tokens: must be an integer >= 0, not True"),
        ({"speculative_tokens": 2.0}, "speculative_tokens: must be an integer >= 0, not 2.0"),
        (
            {"speculative_tokens": 4, "max_num_seqs": 4},
            r"speculative_tokens: 4 must be less than max_num_seqs \(4\): .* give max_num_seqs at least 5",
        ),
        ({"prompt_lookup_max": 0}, "prompt_lookup_max: must be a positive integer, not 0"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min: must be a positive integer, not 0"),
        (
            {"prompt_lookup_min": 3, "prompt_lookup_max": 2},
            r"prompt_lookup_min: 3 is more than prompt_lookup_max \(2\)",
        ),
        ({"seed": "x"}, "seed: must be an integer, not 'x'"),
        ({"seed": 0.5}, "seed: must be an integer"),
    ],
)
def test_values_past_the_bounds_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{message}"):
        config(**options)


def test_an_unknown_option_is_named_and_the_known_ones_listed() -> None:
    with pytest.raises(ConfigError, match=r"^max_seqs: unknown option; known: dtype, weights_dtype, max_model_len, "):
        EngineConfig.from_options("m", {"max_seqs": 3})
    assert EngineConfig.from_options("m", {"max_num_seqs": 3}) == EngineConfig(model="m", max_num_seqs=3)


def test_resolve_fills_in_everything_and_changes_nothing_given(spec: DecoderSpec) -> None:
    given = EngineConfig(model="m", max_num_seqs=4, attention="jax")
    full = given.resolve(spec)
    assert (full.dtype, full.jax_dtype) == ("bfloat16", jnp.bfloat16)
    assert full.max_model_len == 256
    # No more pages than all slots can use: 4 requests of 16 pages.
    assert full.num_pages(spec) == 64
    assert full.kv_cache_bytes == 64 * PAGE_BYTES // 2
    same = {"dtype", "weights_dtype", "max_model_len", "kv_cache_bytes"}
    assert replace(full, **{name: getattr(given, name) for name in same}) == given
    assert full.resolve(spec) == full


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_x10_weights_take_the_dtype_unless_they_are_given_one(spec: DecoderSpec, dtype: str) -> None:
    assert config(dtype=dtype).resolve(spec).weights_dtype == dtype
    for weights in ("float32", "bfloat16", "int8", "gguf"):
        full = config(dtype=dtype, weights_dtype=weights).resolve(spec)
        assert (full.dtype, full.weights_dtype) == (dtype, weights)


def test_a_kernel_that_the_machine_has_not_is_refused(spec: DecoderSpec) -> None:
    wide = replace(spec, head_dim=32)
    assert config(attention="jax").resolve(wide).kv_cache_bytes == config(attention="auto").resolve(wide).kv_cache_bytes
    with pytest.raises(ConfigError, match="attention: there is no Pallas kernel for cpu; give auto or jax"):
        config(attention="pallas").resolve(spec)


def test_a_context_longer_than_the_models_is_refused(spec: DecoderSpec) -> None:
    assert config(max_model_len=256).resolve(spec).max_model_len == 256
    with pytest.raises(ConfigError, match=r"^max_model_len: 257 is more than the model's 256"):
        config(max_model_len=257).resolve(spec)


@pytest.mark.parametrize("length", [2, 16, 17, 100, 144, 145, 256])
def test_the_bytes_that_the_message_asks_for_are_enough(spec: DecoderSpec, length: int) -> None:
    # 144 tokens take 9 pages, which is none of the few sizes that other pools are rounded to.
    needed = -(-length // 16) * PAGE_BYTES
    message = (
        rf"^kv_cache_bytes: {needed - 1} bytes hold \d+ tokens, less than max_model_len \({length}\), .* {needed} b"
    )
    with pytest.raises(ConfigError, match=message):
        config(max_model_len=length, kv_cache_bytes=needed - 1).resolve(spec)
    full = config(max_model_len=length, kv_cache_bytes=needed).resolve(spec)
    assert full.num_pages(spec) == needed // PAGE_BYTES
    assert full.max_model_len == length


def test_a_small_cache_shortens_a_context_that_was_not_asked_for(spec: DecoderSpec) -> None:
    assert config(kv_cache_bytes=3 * PAGE_BYTES).resolve(spec).max_model_len == 48
    assert config(kv_cache_bytes=PAGE_BYTES).resolve(spec).max_model_len == 16
    with pytest.raises(
        ConfigError, match=rf"^kv_cache_bytes: {PAGE_BYTES - 1} bytes hold not even one page, .* 8192 b"
    ):
        config(kv_cache_bytes=PAGE_BYTES - 1).resolve(spec)
    with pytest.raises(ConfigError, match=r"^kv_cache_share: that much memory holds not even one page"):
        config(kv_cache_share=1e-12).resolve(spec)


def test_fault_21_pools_come_in_few_sizes(spec: DecoderSpec) -> None:
    sizes = {config(kv_cache_bytes=n * PAGE_BYTES).resolve(spec).num_pages(spec) for n in range(1024, 2049)}
    assert sizes == {1024, 1280, 1536, 1792, 2048}
    for pages in (1024, 1279, 1280, 5000):
        got = config(kv_cache_bytes=pages * PAGE_BYTES).resolve(spec).num_pages(spec)
        assert 0.8 * pages < got <= pages


def test_a_share_is_of_the_free_memory(spec: DecoderSpec) -> None:
    # Slots for more than the memory holds, so that the share alone decides.
    free = psutil.virtual_memory().available
    many = {"max_num_seqs": 2**16, "max_num_batched_tokens": 2**16}
    for share in (0.01, 0.1):
        got = config(kv_cache_share=share, **many).resolve(spec).kv_cache_bytes
        assert got is not None
        assert 0.6 * share * free < got < 1.2 * share * free
    automatic = config(**many).resolve(spec)
    assert automatic.kv_cache_bytes is not None
    assert automatic.kv_cache_bytes <= 2**30
    assert automatic.kv_cache_share is None


def test_a_share_too_small_still_holds_one_request_of_the_length_asked_for(spec: DecoderSpec) -> None:
    full = config(kv_cache_share=1e-9, max_model_len=100).resolve(spec)
    assert full.num_pages(spec) == 7


def test_a_cache_larger_than_the_machine_is_refused(spec: DecoderSpec) -> None:
    memory = psutil.virtual_memory().total
    with pytest.raises(ConfigError, match=rf"^kv_cache_bytes: \d+ bytes are more than the {memory} of this machine"):
        config(kv_cache_bytes=2 * memory).resolve(spec)


@pytest.mark.parametrize("name", ["use_aot_forward", "debug", "overlap"])
def test_switches_are_true_or_false(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be true or false, not 'no'"):
        EngineConfig(model="m", **{name: "no"})


@pytest.mark.parametrize(("name", "value"), [("tensor_parallel", 0), ("data_parallel", -1), ("num_processes", True)])
def test_x9_numbers_of_devices_and_processes_are_positive(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: must be a positive integer, not {value}"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_processes": 2}, "coordinator: must be HOST:PORT of process 0.* for 2 processes, not None"),
        ({"num_processes": 2, "coordinator": "localhost"}, "coordinator: must be HOST:PORT"),
        ({"num_processes": 2, "coordinator": ":9000"}, "coordinator: must be HOST:PORT"),
        ({"num_processes": 2, "coordinator": "h:65535"}, "coordinator: must be HOST:PORT.* with a port below 65535"),
        ({"num_processes": 2, "coordinator": "h:1", "process_id": 2}, "process_id: must be 0 … 1, not 2"),
        ({"num_processes": 2, "coordinator": "h:1", "process_id": -1}, "process_id: must be 0 … 1, not -1"),
        ({"coordinator": "h:1"}, "num_processes: must be at least 2 with coordinator or process_id"),
        ({"process_id": 1}, "num_processes: must be at least 2 with coordinator or process_id"),
        ({"num_processes": 2, "coordinator": "h:1", "use_aot_forward": False}, "use_aot_forward: must be true where"),
    ],
)
def test_x9_processes_that_cannot_find_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        config(**options)
    assert config(num_processes=2, coordinator="h:65534", process_id=1).process_id == 1


def test_x9_a_device_holds_pages_for_its_own_heads_only(spec: DecoderSpec) -> None:
    def num_pages(devices: int) -> int:
        return config(kv_cache_bytes=8 * PAGE_BYTES, tensor_parallel=devices).resolve(spec).num_pages(spec)

    assert [num_pages(devices) for devices in (1, 2, 4)] == [8, 16, 16]  # 2, 1 and 1 of the 2 key/value heads
    with pytest.raises(ConfigError, match=r"^tensor_parallel: 3 devices cannot share 4 heads.*; possible: 1, 2, 4$"):
        num_pages(3)


def test_x9_devices_made_of_one_cpu_share_its_memory(spec: DecoderSpec) -> None:
    memory, share = psutil.virtual_memory().total, 0.1
    many = {"max_num_seqs": 2**16, "max_num_batched_tokens": 2**16, "data_parallel": 4}
    got = config(kv_cache_share=share, **many).resolve(spec).kv_cache_bytes
    assert got is not None
    assert 0.6 * share < 4 * got / psutil.virtual_memory().available < 1.2 * share
    with pytest.raises(ConfigError, match=rf"^kv_cache_bytes: \d+ bytes are more than the {memory} of this machine"):
        config(kv_cache_bytes=memory // 2, **many).resolve(spec)
