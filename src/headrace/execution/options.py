"""What an ExecutionManager is made for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.numpy as jnp

from headrace.kernels.attention import AttentionChoice
from headrace.sampling.chain import LogprobsMode

CompileGuard = Literal["off", "count", "raise"]


@dataclass(frozen=True)
class ExecutionOptions:
    """Sizes that the compiled steps depend on; of one data parallel rank, where there are several.

    Attributes:
        dtype: of keys, values and attention products.
        num_pages: pages in the pool of each layer.
        page_size: tokens per page.
        max_model_len: longest sequence, in tokens.
        max_num_seqs: slots, and the largest request bucket.
        max_num_batched_tokens: the largest token bucket.
        min_input_pad: the smallest request bucket.
        vocab_limit: ids from here on are never sampled.
        max_logprobs, logprobs_mode: see `SamplerOptions`.
        attention: which attention kernel; see `attention_for`.
        max_compiled_variants: capacity of the cache of compiled steps.
        use_aot_forward: compile every step in `compile`; else each at its first use, with a warning.
        compile_guard: what happens when a step that is compiled ahead of time compiles something all the same: "off",
            "count" (see `compilations_while_serving`) or "raise".
        saved_steps: folder where compiled steps are kept for the next start; None keeps none.
        debug: before each step compare its arguments with what it was compiled for, and name those that differ. It
            costs some milliseconds.
    """

    dtype: jnp.dtype
    num_pages: int
    page_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_limit: int
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw"
    attention: AttentionChoice = "auto"
    min_input_pad: int = 8
    max_compiled_variants: int = 64
    use_aot_forward: bool = True
    compile_guard: CompileGuard = "count"
    saved_steps: Path | None = None
    debug: bool = False
