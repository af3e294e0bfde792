"""The fused step: everything between a packed batch and sampled tokens, as one pure function to compile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from headrace.execution.batch import HAS_BIAS, HAS_MASK, BatchLayout
from headrace.execution.prompt_scores import score_prompts
from headrace.execution.sequences import SAMPLING_FIELDS
from headrace.execution.state import DeviceState
from headrace.kernels.attention import AttentionKernel, RaggedBatch
from headrace.models import decoder
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights
from headrace.sampling.chain import LogprobsMode, next_tokens
from headrace.sampling.logprobs import scores
from headrace.sampling.penalties import PenaltyRows
from headrace.sampling.sampler import NO_TOKEN, SamplingRows
from headrace.sampling.scores import score_columns


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepResult:
    """What a step leaves on the device besides the state; only what is asked for crosses to the host.

    Logits rows are those of the step's rows, in their order; see `ScheduledStep.num_logits`.

    Attributes:
        tokens: [logits rows] int32, the sampled token; `NO_TOKEN` where the row does not sample, `BAD_LOGITS` where it
            had nothing to choose from.
        scores: [logits rows, score_columns(max_logprobs)] int32, how likely what was sampled is, where that is asked
            for; see `logprobs.scores`.
        prompt_scores: [tokens, score_columns(max_logprobs)] int32, the same of the prompt token after each token;
            [0, …] in a step that cannot score prompts.
        logits: [logits rows, vocab] float32, as the model gives them; of padding they have no meaning. After
            `ExecutionManager.release` they are gone.
        hidden: [logits rows, hidden] float32, the last hidden states behind those logits.
        token_hidden: [tokens, hidden] float32, those of all tokens of the step.
    """

    tokens: jax.Array
    scores: jax.Array
    prompt_scores: jax.Array
    logits: jax.Array
    hidden: jax.Array
    token_hidden: jax.Array


@dataclass(frozen=True)
class SamplerOptions:
    """What sampling depends on and does not change from step to step.

    Attributes:
        vocab_limit: ids from here on have no token and are never sampled.
        max_logprobs: most log-probabilities of other tokens that a request may ask for at each position.
        logprobs_mode: of the model's own distribution ("raw"), or of what is drawn from ("processed"). Prompt tokens
            are always scored by the model's own.
        scores_prompts: prompt tokens can be scored.
    """

    vocab_limit: int
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw"
    scores_prompts: bool = True


def fused_step(
    spec: DecoderSpec,
    kernel: AttentionKernel,
    layout: BatchLayout,
    options: SamplerOptions,
    weights: DecoderWeights,
    state: DeviceState,
    packed: jax.Array,
    constraints: jax.Array,
) -> tuple[DeviceState, StepResult]:
    """Gather tokens, run the decoder over the pages, take logits at each row's last tokens, sample, update the state.

    Args:
        layout: layout of `packed`; static, as are the other arguments before `weights`.
        packed: [layout.size] int32.
        constraints: [logits rows * words] int32, see `fill_constraints`; only read where a row's flags say so.
    """
    batch = layout.unpack(packed)
    updates = batch["page_updates"]
    page_table = state.page_table.at[updates[:, 0], updates[:, 1]].set(updates[:, 2], mode="drop")
    ragged = ragged_batch(batch, page_table, layout.page_size, state.pages[0].shape[0])

    token_slots = batch["slots"].at[batch["token_rows"]].get(mode="clip")
    from_device = state.last_tokens.at[token_slots].get(mode="clip")
    tokens = jnp.where(batch["input_ids"] < 0, from_device, batch["input_ids"])
    places = state.page_tokens.reshape(-1).at[ragged.write_index]
    page_tokens = places.set(tokens, mode="drop", unique_indices=True).reshape(state.page_tokens.shape)
    prompt_lens = batch["prompt_lens"].at[batch["token_rows"]].get(mode="clip")
    hidden, pages = decoder.decode(spec, kernel, weights, state.pages, tokens, prompt_lens, ragged)

    last_hidden = hidden[batch["logits_indices"]]
    logits_of = partial(_logits, spec, weights, options.vocab_limit)
    logits = logits_of(last_hidden, batch["num_logits"])
    samples, slots = batch["samples"] > 0, batch["slots"][batch["logits_rows"]]
    with jax.named_scope("sample"):
        histories = page_tokens, page_table.at[slots].get(mode="clip")
        rows, penalties, rules = sampling_rows(batch), penalty_rows(batch), _constraints(batch, constraints)
        sampled, scored_by = next_tokens(logits, rows, penalties, histories, rules, options.logprobs_mode)
    with jax.named_scope("logprobs"):
        asks = samples & (_sampling(batch)["logprobs"] > 0)
        scored = scores(scored_by, jnp.maximum(sampled, 0), asks, options.max_logprobs)
        prompt_scored = jnp.zeros((0, score_columns(options.max_logprobs)), jnp.int32)
        if options.scores_prompts:
            prompt_scored = score_prompts(logits_of, hidden, tokens, batch, options.max_logprobs)
    # Of several samples of one row any may come last here: the host decides which holds, and sends it.
    written = jnp.where(samples, slots, state.last_tokens.shape[0])
    last_tokens = state.last_tokens.at[written].set(jnp.maximum(sampled, 0), mode="drop")
    sampled = jnp.where(samples, sampled, NO_TOKEN)
    result = StepResult(sampled, scored, prompt_scored, logits, last_hidden, hidden)
    return DeviceState(pages, page_table, page_tokens, last_tokens), result


def _logits(
    spec: DecoderSpec, weights: DecoderWeights, vocab_limit: int, hidden: jax.Array, num_rows: jax.Array | None = None
) -> jax.Array:
    logits = decoder.logits(spec, weights, hidden, num_rows)
    if vocab_limit < logits.shape[1]:
        logits = jnp.where(jnp.arange(logits.shape[1]) < vocab_limit, logits, -jnp.inf)
    return logits


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


def sampling_rows(batch: dict[str, jax.Array]) -> SamplingRows:
    """The sampling parameters of the logits rows of an unpacked batch."""
    values = _sampling(batch)
    return SamplingRows(
        **{name: values[name] for name in ("temperature", "top_k", "top_p", "min_p")},
        seeds=jnp.stack([values["seed_high"], values["seed_low"]], axis=1),
        choices=values["choice"],
        output_positions=_history_lens(batch) - batch["prompt_lens"][batch["logits_rows"]],
    )


def penalty_rows(batch: dict[str, jax.Array]) -> PenaltyRows:
    """What the penalties of the logits rows of an unpacked batch depend on."""
    values = _sampling(batch)
    return PenaltyRows(
        **{name: values[name] for name in ("repetition", "presence", "frequency")},
        prompt_lens=batch["prompt_lens"][batch["logits_rows"]],
        history_lens=_history_lens(batch),
    )


def _sampling(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        name: jax.lax.bitcast_convert_type(batch["sampling"][:, column], jnp.dtype(dtype))
        for column, (name, dtype) in enumerate(SAMPLING_FIELDS.items())
    }


def _history_lens(batch: dict[str, jax.Array]) -> jax.Array:
    """[logits rows] int32, tokens up to and with the one behind a row's logits."""
    return batch["positions"][batch["logits_indices"]] + 1


def _constraints(batch: dict[str, jax.Array], constraints: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Words [logits rows, words] uint32, and which rows [logits rows] have a mask and a bias in them."""
    words = jax.lax.bitcast_convert_type(constraints, jnp.uint32).reshape(batch["flags"].shape[0], -1)
    return words, batch["flags"] & HAS_MASK > 0, batch["flags"] & HAS_BIAS > 0
