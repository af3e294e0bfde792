"""Runs a decoder on prompts: all positions at once, or step by step through an ExecutionManager."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import golden
from execution.steps import Driver
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.kernels.attention import AttentionKernel, RaggedBatch
from headrace.kernels.jax_attention import JaxAttention
from headrace.models import decoder
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights
from headrace.weights.load import Checkpoint, load_weights, open_checkpoint

PAGE = 16
TOKENS = 176  # the three prompts of a golden set have 98, and 72 follow
LENGTH = 96  # of a sequence: 70 of a prompt and 24 that follow
JAX = JaxAttention(jnp.dtype(jnp.float32))


@cache
def checkpoint(name: str, native: bool = False) -> tuple[Checkpoint, DecoderWeights]:
    """A golden set opened and loaded in float32."""
    return load(golden.ROOT / name, native)


def load(path: Path, native: bool = False) -> tuple[Checkpoint, DecoderWeights]:
    """A model on disk opened and loaded in float32."""
    opened = open_checkpoint(path)
    return opened, load_weights(opened, jnp.dtype(jnp.float32), native=native)


def all_logits(
    spec: DecoderSpec,
    weights: DecoderWeights,
    sequences: Sequence[Sequence[int]],
    prompt_lens: Sequence[int] | None = None,
    kernel: AttentionKernel = JAX,
) -> list[np.ndarray]:
    """Logits [length, vocab] of each sequence, in one pass over all of them; all prompt unless lengths are given."""
    lens = [len(sequence) for sequence in sequences]
    rows, per_row = len(sequences), -(-LENGTH // PAGE)
    positions = np.concatenate([np.arange(n) for n in lens])
    token_rows = np.repeat(np.arange(rows), lens)
    padding = TOKENS - len(positions)
    page_table = np.random.default_rng(0).permutation(rows * per_row).reshape(rows, per_row)
    writes = page_table[token_rows, positions // PAGE] * PAGE + positions % PAGE
    batch = (
        np.pad(positions, (0, padding)),
        np.pad(token_rows, (0, padding), constant_values=rows),
        np.concatenate([writes, page_table.size * PAGE + np.arange(padding)]),
        np.cumsum([0, *lens]),
        np.array(lens),
        np.arange(rows),
        page_table,
        np.array([0, rows, rows]),
    )
    ragged = RaggedBatch(*(jnp.asarray(x, jnp.int32) for x in batch), page_size=PAGE)
    tokens = np.pad(np.concatenate(sequences), (0, padding)).astype(np.int32)
    prompts = np.pad(np.repeat(lens if prompt_lens is None else prompt_lens, lens), (0, padding)).astype(np.int32)
    pool = kernel.make_pages(page_table.size, PAGE, spec.num_kv_heads, spec.head_dim)
    logits = np.asarray(_forward(spec, kernel)(weights, (pool,) * spec.num_layers, tokens, prompts, ragged))
    return np.split(logits[: len(positions)], np.cumsum(lens)[:-1])


@cache
def _forward(spec: DecoderSpec, kernel: AttentionKernel) -> object:
    @jax.jit
    def run(
        weights: DecoderWeights,
        pages: tuple[jax.Array, ...],
        tokens: jax.Array,
        prompt_lens: jax.Array,
        batch: RaggedBatch,
    ) -> jax.Array:
        hidden, _ = decoder.decode(spec, kernel, weights, pages, tokens, prompt_lens, batch)
        return decoder.logits(spec, weights, hidden)

    return run


@cache
def _manager(name: str) -> ExecutionManager:
    opened, weights = checkpoint(name)
    options = ExecutionOptions(
        dtype=jnp.dtype(jnp.float32),
        num_pages=3 * LENGTH // PAGE,
        page_size=PAGE,
        max_model_len=LENGTH,
        max_num_seqs=3,
        max_num_batched_tokens=TOKENS,
        vocab_limit=opened.spec.vocab_size,
    )
    manager = ExecutionManager(opened.spec, weights, options)
    manager.compile([TOKENS], [3])
    return manager


def driver(name: str, prompts: Sequence[Sequence[int]]) -> Driver:
    """The prompts in the slots of a fresh manager of a golden set, each with pages here and there in the pool."""
    driver = Driver(_manager(name))
    pages = np.random.default_rng(1).permutation(3 * LENGTH // PAGE).reshape(3, -1).tolist()
    for slot, prompt in enumerate(prompts):
        driver.add(slot, prompt, pages=pages[slot])
    return driver


def generate(driver: Driver, count: int, chunk: int) -> list[list[int]]:
    """Greedy tokens that follow each prompt: `chunk` tokens of a prompt per step, next to the others' decodes."""
    lens = {slot: len(ids) for slot, ids in driver.ids.items()}
    while unfinished := [slot for slot, n in lens.items() if len(driver.ids[slot]) < n + count]:
        driver.run({slot: min(chunk, len(driver.ids[slot]) - driver.computed[slot]) for slot in unfinished})
    return [driver.ids[slot][n:] for slot, n in lens.items()]


def teacher_forced(driver: Driver, chunk: int) -> dict[int, np.ndarray]:
    """Logits [vocab] at the last position of each step, for a prompt in slot 0 computed in chunks."""
    logits = {}
    while (left := len(driver.ids[0]) - driver.computed[0]) > 0:
        step = driver.schedule({0: min(chunk, left)})
        result = driver.manager.execute(step)
        logits[int(step.num_computed[0] + step.num_tokens[0]) - 1] = np.asarray(result.logits)[0]
        driver.computed[0] += int(step.num_tokens[0])
    return logits


def scaled(logits: np.ndarray) -> float:
    """The largest difference to ask for.

    The golden logits are float32 themselves: they differ from float64 by up to 1.2e-4 where they are large, since a
    float32 is as fine as its size. 1e-4 holds for logits up to 4, and in proportion above.
    """
    return 1e-4 * max(1.0, float(np.abs(logits).max()) / 4)
