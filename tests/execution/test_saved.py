"""What a second start finds on disk: no program is compiled again, and nothing found there can change a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import golden
from headrace.execution.saved import SavedStep, fingerprint

PROMPT = golden.load("llama3").prompts[0]

# A process that serves once and tells what it cost: programs that JAX's cache did not have, traces of the step, tokens.
CHILD = """
import json, sys
import jax
import headrace.execution.manager as manager
from headrace import LLM, SamplingParams

missed = []
jax.monitoring.register_event_listener(lambda e, **_: missed.append(e) if e.endswith("/cache_misses") else None)
traced = []
jax.monitoring.register_event_duration_secs_listener(
    lambda e, s, fun_name="", **_: traced.append(fun_name) if e.endswith("jaxpr_trace_duration") else None
)
llm = LLM(sys.argv[1], dtype="float32", max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16,
          kv_cache_bytes=1 << 20, compile_guard="raise")
tokens = llm.generate([json.loads(sys.argv[2])], SamplingParams(temperature=0, max_tokens=8))[0].token_ids
steps = sum("fused_step" in str(name) for name in traced)
buckets = len(llm.engine.manager.buckets)
print(json.dumps({"missed": len(missed), "traced": steps, "buckets": buckets, "tokens": tokens}))
"""


@dataclass(frozen=True)
class Start:
    missed: int
    traced: int
    buckets: int
    tokens: list[int]


def start(model: Path, cache: Path) -> tuple[Start, str]:
    """A process with this cache directory: what it printed, and its stderr."""
    command = [sys.executable, "-c", CHILD, str(model), json.dumps(PROMPT)]
    environment = {**os.environ, "HEADRACE_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Start(**json.loads(done.stdout)), done.stderr


def test_a_second_start_compiles_nothing_and_traces_no_step(tiny_folder: Path, tmp_path: Path) -> None:
    first, _ = start(tiny_folder, tmp_path)
    assert first.missed > first.buckets
    assert first.traced == first.buckets > 1
    expected = golden.load("llama3").continuations[0][:8]
    assert first.tokens == expected

    again, _ = start(tiny_folder, tmp_path)
    assert (again.missed, again.traced) == (0, 0)
    assert again.tokens == expected

    # Damage of every kind is found and mended, although JAX's own cache has the steps: its copies cannot be saved.
    saved = sorted(tmp_path.glob("xla/*/steps/*"))
    assert len(saved) == first.buckets
    content = saved[0].read_bytes()
    saved[0].write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    saved[1].unlink()
    mended, stderr = start(tiny_folder, tmp_path)
    assert stderr.count("is damaged; the step is compiled anew") == 1
    assert (mended.missed, mended.traced, mended.tokens) == (2, 4, expected)
    again, _ = start(tiny_folder, tmp_path)
    assert (again.missed, again.traced, again.tokens) == (0, 0, expected)
    assert sorted(tmp_path.glob("xla/*/steps/*")) == saved


def test_a_file_that_cannot_be_removed_is_compiled_anew_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "name"
    folder.mkdir()  # in the place of the file, so that it can neither be read, replaced nor removed
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), jnp.float32))
    compiled = SavedStep(folder, lambda name: lowered).compile()
    assert compiled(jnp.float32(1)) == 2
    assert list(tmp_path.iterdir()) == [folder], "nothing unfinished is left"


def forms(**changes: Any) -> Any:
    fields = {"shape": (3, 4), "dtype": jnp.float32, **changes}
    return {"w": jax.ShapeDtypeStruct(**fields)}


@pytest.mark.parametrize(
    "other",
    [
        fingerprint("a", 2, forms=forms()),
        fingerprint("a", forms=forms()),
        fingerprint("a", 1, forms=forms(shape=(4, 3))),
        fingerprint("a", 1, forms=forms(dtype=jnp.bfloat16)),
        fingerprint("a", 1, forms=forms(weak_type=True)),
        fingerprint("a", 1, forms=forms(sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))),
        fingerprint("a", 1, forms={"v": forms()["w"]}),
    ],
)
def test_whatever_the_code_depends_on_changes_its_name(other: str) -> None:
    assert fingerprint("a", 1, forms=forms()) == fingerprint("a", 1, forms=forms()) != other


def test_settings_change_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(forms=forms())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert fingerprint(forms=forms()) != before
    monkeypatch.undo()
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert fingerprint(forms=forms()) != before
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    assert fingerprint(forms=forms()) == before
