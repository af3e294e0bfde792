"""The fused step: everything between a packed batch and sampled tokens, as one pure function to compile."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace.execution.batch import BatchLayout
from headrace.execution.state import DeviceState
from headrace.kernels.attention import AttentionKernel, RaggedBatch
from headrace.models import decoder
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights
from headrace.sampling.sampler import NO_TOKEN, SamplingRows, sample


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepResult:
    """What a step leaves on the device besides the state; only what is asked for crosses to the host.

    Attributes:
        tokens: [requests] int32, the sampled token; `NO_TOKEN` where the row does not sample, `BAD_LOGITS` where it
            had nothing to choose from.
        logits: [requests, vocab] float32 at each row's last token, before sampling.
        hidden: [requests, hidden] float32, the last hidden states behind those logits.
    """

    tokens: jax.Array
    logits: jax.Array
    hidden: jax.Array


def fused_step(
    spec: DecoderSpec,
    kernel: AttentionKernel,
    layout: BatchLayout,
    vocab_limit: int,
    weights: DecoderWeights,
    state: DeviceState,
    packed: jax.Array,
) -> tuple[DeviceState, StepResult]:
    """Gather tokens, run the decoder over the pages, take logits at each row's last token, sample, update the state.

    Args:
        layout: layout of `packed`; static, as are the arguments before it.
        vocab_limit: ids from here on have no token and are never sampled.
        packed: [layout.size] int32.
    """
    batch = layout.unpack(packed)
    updates = batch["page_updates"]
    page_table = state.page_table.at[updates[:, 0], updates[:, 1]].set(updates[:, 2], mode="drop")
    ragged = ragged_batch(batch, page_table, layout.page_size, state.pages[0].shape[0])

    token_slots = batch["slots"].at[batch["token_rows"]].get(mode="clip")
    from_device = state.last_tokens.at[token_slots].get(mode="clip")
    tokens = jnp.where(batch["input_ids"] < 0, from_device, batch["input_ids"])
    prompt_lens = batch["prompt_lens"].at[batch["token_rows"]].get(mode="clip")
    hidden, pages = decoder.decode(spec, kernel, weights, state.pages, tokens, prompt_lens, ragged)

    last_hidden = hidden[batch["logits_indices"]]
    logits = decoder.logits(spec, weights, last_hidden)
    if vocab_limit < logits.shape[1]:
        logits = jnp.where(jnp.arange(logits.shape[1]) < vocab_limit, logits, -jnp.inf)
    with jax.named_scope("sample"):
        sampled = sample(logits, _sampling_rows(batch))
    samples = batch["samples"] > 0
    written = jnp.where(samples, batch["slots"], state.last_tokens.shape[0])
    last_tokens = state.last_tokens.at[written].set(jnp.maximum(sampled, 0), mode="drop")
    result = StepResult(jnp.where(samples, sampled, NO_TOKEN), logits, last_hidden)
    return DeviceState(pages, page_table, last_tokens), result


def ragged_batch(batch: dict[str, jax.Array], page_table: jax.Array, page_size: int, num_pages: int) -> RaggedBatch:
    """What the attention kernels need of an unpacked batch; see `RaggedBatch`."""
    rows, positions = batch["token_rows"], batch["positions"]
    padding = rows >= batch["slots"].shape[0]
    slots = batch["slots"].at[rows].get(mode="clip")
    page = page_table.at[slots, positions // page_size].get(mode="clip")
    # Distinct indices beyond the pool, because the write promises the compiler that no index occurs twice.
    nowhere = num_pages * page_size + jnp.arange(rows.shape[0], dtype=jnp.int32)
    return RaggedBatch(
        positions=positions,
        token_rows=rows,
        write_index=jnp.where(padding, nowhere, page * page_size + positions % page_size),
        query_start=batch["query_start_loc"],
        seq_lens=batch["seq_lens"],
        slots=batch["slots"],
        page_table=page_table,
        # Every row with more than one token is a chunk of a prompt, so the second count is the third.
        request_distribution=jnp.concatenate([batch["num_decodes"], batch["num_requests"], batch["num_requests"]]),
        page_size=page_size,
    )


def _sampling_rows(batch: dict[str, jax.Array]) -> SamplingRows:
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "output_positions")
    # One choice per request so far; its index is part of the key all the same.
    return SamplingRows(choices=jnp.zeros_like(batch["top_k"]), **{name: batch[name] for name in names})
