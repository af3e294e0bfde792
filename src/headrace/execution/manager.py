"""The ExecutionManager: batches in, sampled tokens out, one compiled dispatch per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from headrace.errors import StepError
from headrace.execution.arguments import Arguments, PreparedBatch
from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.buckets import (
    Bucket,
    bucket_pairs,
    check_paddings,
    fewest_scored_tokens,
    is_for_decodes,
    request_buckets,
    select_bucket,
    token_buckets,
)
from headrace.execution.compiled import OLDER_EMITTERS, CacheStats, CompiledSteps, Executable, compilations_in_thread
from headrace.execution.constraints import constraint_words, fill_constraints
from headrace.execution.options import ExecutionOptions
from headrace.execution.processes import Group
from headrace.execution.retrace import differences
from headrace.execution.saved import SavedStep, fingerprint
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.spare import SpareLogits
from headrace.execution.spread import (
    PER_RANK,
    RankedBatch,
    empty_state,
    in_step_order,
    largest_rank,
    over_mesh,
)
from headrace.execution.state import DeviceState, new_state
from headrace.execution.step import SamplerOptions, StepResult, fused_step
from headrace.execution.swap import check_spec, place_like
from headrace.execution.transfer import Transfers
from headrace.kernels.attention import attention_for
from headrace.kernels.native_attention import NativeAttention
from headrace.layers.product import all_packed
from headrace.models.sharding import data_parallel_of, device_spec, tensor_parallel_of
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights

log = logging.getLogger(__name__)


class ExecutionManager:
    """Prepares a ragged batch on the host and runs one compiled step on the device.

    `compile` first, then `execute` per step. The device state is consumed and replaced by each step; nothing else
    may hold on to it.

    With a mesh each rank has slots, pages and a page table of its own, and a step holds rows of all ranks.

    Attributes:
        mesh: the devices; None for the default one alone.
        num_ranks: data parallel ranks.
        sequences: the host's copy of the sequences that hold a slot; the caller keeps it up to date.
        compilations_while_serving: programs that steps compiled after warm-up, and steps compiled at first use; 0 when
            all is well, and not counted with the guard off.
        transfers: what steps move between host and device, and how much it was.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        options: ExecutionOptions,
        mesh: Mesh | None = None,
        group: Group | None = None,
    ) -> None:
        """Allocates the state.

        Args:
            spec: of the whole model.
            weights: as `load_weights` gives them for the same mesh.
            group: the processes that the mesh lies in, if they are several.
        """
        self.spec, self.options, self.mesh, self._group = spec, options, mesh, group
        self.num_ranks = data_parallel_of(mesh)
        self.sequences = SequenceTable(self.num_ranks * options.max_num_seqs, options.max_model_len)
        self._device_spec = device_spec(spec, tensor_parallel_of(mesh))
        self._weights = weights
        devices = 1 if mesh is None else mesh.size
        self._kernel = attention_for(
            options.dtype, jax.default_backend(), options.attention, page_size=options.page_size, devices=devices
        )
        self._is_native = isinstance(self._kernel, NativeAttention) and all_packed(weights)
        self._compiled = CompiledSteps(options.max_compiled_variants)
        self._batches: dict[Bucket, HostBatch | RankedBatch] = {}
        self._no_constraints: dict[int, jax.Array] = {}  # by logits rows
        self._spare_logits = SpareLogits.where_it_pays(self._device_spec.vocab_size, mesh)
        self._new_state = self._device_state if mesh is None else empty_state(self._device_state, mesh)
        self._state: DeviceState = self._new_state()
        self._prepared: PreparedBatch | None = None
        self._fewest_scored = 0  # tokens of the smallest step that scores prompts
        self._forms = jax.tree.map(self._form_of, (self._weights, self._state))
        self.compilations_while_serving = 0
        self.transfers = Transfers(next(iter(self._state.last_tokens.devices())), mesh)

    def compile(
        self,
        num_tokens_paddings: Sequence[int] | None = None,
        num_reqs_paddings: Sequence[int] | None = None,
        *,
        threads: int | None = None,
        progress: bool = False,
    ) -> float:
        """Compiles a step for every reachable bucket and returns the seconds it took. What sequences have in the cache
        stays; steps of buckets that are not asked for again are forgotten. Without `use_aot_forward` it only settles
        the buckets.

        Args:
            num_tokens_paddings: token sizes for steps that hold prefill; None takes powers of two, or with native
                kernels, which skip padding, the largest alone.
            num_reqs_paddings: request sizes; None takes `min_input_pad`, then powers of two, or with those of four.

        Raises:
            ConfigError: sizes that leave some batch without a bucket, or more steps than the cache holds.
        """
        start, o = time.perf_counter(), self.options
        few, most = {"skips_padding": self._is_native}, (o.max_num_seqs, o.max_num_batched_tokens)
        tokens = num_tokens_paddings or token_buckets(*most, **few)
        requests = num_reqs_paddings or request_buckets(o.min_input_pad, o.max_num_seqs, **few)
        tokens = check_paddings("num_tokens_paddings", tokens, o.max_num_batched_tokens)
        requests = check_paddings("num_reqs_paddings", requests, o.max_num_seqs)
        pairs = bucket_pairs(tokens, requests)
        self._batches = {b: self._batches.get(b) or self._new_batch(b) for b in pairs}
        self._fewest_scored = fewest_scored_tokens(pairs)
        ranks = () if self.mesh is None else (self.num_ranks,)
        zeros = {rows: np.zeros((*ranks, self._constraints_size((tokens, rows))), np.int32) for tokens, rows in pairs}
        self._no_constraints = {rows: self.transfers.to_device(array) for rows, array in zeros.items()}
        if o.use_aot_forward:
            meet = None if self._group is None else self._group.meet
            self._compiled.warm_up(pairs, self._lower, self._try_out, threads=threads, progress=progress, meet=meet)
        if self._spare_logits is not None:
            self._spare_logits.prepare(zeros)
        return time.perf_counter() - start

    def start_async_prep(self, step: ScheduledStep) -> None:
        """Prepares a batch and begins its transfer, while the device may still be busy with the one before.

        Raises:
            StepError: no compiled bucket holds the batch.
        """
        self._prepared = self._prepare(step)

    def get_async_prep_result(self) -> PreparedBatch | None:
        """The batch of the last `start_async_prep`, once; None when none is pending."""
        prepared, self._prepared = self._prepared, None
        return prepared

    def execute(self, batch: ScheduledStep | PreparedBatch) -> StepResult:
        """Dispatches one step and returns its result on the device, without waiting for it.

        Rows of the result are in the step's order; rows past it are padding. With several ranks the rows of the first
        come first, then its padding, then those of the next.

        Raises:
            StepError: no compiled bucket holds the batch, and the state is as before; or the compile guard found a
                compilation, and the state is that after the step.
        """
        prepared = batch if isinstance(batch, PreparedBatch) else self._prepare(batch)
        if self.options.debug:
            self._check_arguments(prepared)
        before = compilations_in_thread()
        with nullcontext() if self._group is None else self._group.step(prepared.bucket, prepared.host):
            result = self._run(prepared.bucket, prepared.executable, prepared.packed, prepared.constraints)
        if self.options.compile_guard != "off":
            self._check_compilations(compilations_in_thread() - before, prepared.bucket)
        return result

    def _run(self, bucket: Bucket, executable: Executable, packed: jax.Array, constraints: jax.Array) -> StepResult:
        spare = None if self._spare_logits is None else self._spare_logits.take(bucket[1])
        result: StepResult
        self._state, result = executable(self._weights, self._state, packed, constraints, spare)
        return result

    def release(self, result: StepResult) -> None:
        """Takes the memory of a result's logits for a later step: they must not be read any more. Not to call this is
        no error; a large array then costs page faults at each step."""
        if self._spare_logits is not None:
            self._spare_logits.put(result.logits)

    def execute_packed(self, bucket: Bucket, packed: np.ndarray) -> StepResult:
        """Dispatches the step that another process has announced; see `Group.step`."""
        _, executable = self._step_for(*bucket)
        lines = packed.reshape(self.num_ranks, -1)
        size = self._layout(bucket).size
        return self.execute(self._on_its_way(bucket, executable, lines[:, :size], lines[:, size:], packed))

    def _check_arguments(self, prepared: PreparedBatch) -> None:
        forms = self._argument_forms(prepared.bucket)
        given = Arguments(self._weights, self._state, prepared.packed, prepared.constraints, forms.spare)
        found = list(differences(forms, given))
        if found:
            raise StepError(f"arguments that no step was compiled for: {'; '.join(found)}")

    def _check_compilations(self, found: int, bucket: Bucket) -> None:
        self.compilations_while_serving += found
        if found and self.options.compile_guard == "raise":
            raise StepError(f"a step of {bucket[0]} tokens x {bucket[1]} requests compiled {found} programs")

    def _prepare(self, step: ScheduledStep) -> PreparedBatch:
        tokens, rows = largest_rank(step, self.options.max_num_seqs, self.num_ranks)
        if step.scores_prompt is not None:
            tokens = max(tokens, self._fewest_scored)
        bucket, executable = self._step_for(tokens, rows)
        batch = self._batches[bucket]
        batch.fill(step, self.sequences)
        # A copy: on the CPU the step may read NumPy's own memory, and the next batch may be filled before it has.
        packed = batch.packed.copy()
        if not step.constraints:
            return self._on_its_way(bucket, executable, packed, None, packed)
        constraints = self._fill_constraints(step, bucket)
        host = packed if self._group is None else np.concatenate([packed, constraints], axis=-1)
        return self._on_its_way(bucket, executable, packed, constraints, host)

    def _on_its_way(
        self,
        bucket: Bucket,
        executable: Executable,
        packed: np.ndarray,
        constraints: np.ndarray | None,
        host: np.ndarray,
    ) -> PreparedBatch:
        """Begins the transfer of a batch."""
        if constraints is None or not constraints.size:
            there = self._no_constraints[bucket[1]]
        else:
            there = self.transfers.to_device(constraints)
        return PreparedBatch(bucket, executable, self.transfers.to_device(packed), there, host)

    def _fill_constraints(self, step: ScheduledStep, bucket: Bucket) -> np.ndarray:
        """What the batch's rows forbid and prefer, flat; with a mesh a line for each rank."""
        seqs, vocab = self.options.max_num_seqs, self.spec.vocab_size
        if self.mesh is None:
            return fill_constraints(step, bucket[1], vocab).reshape(-1)
        ranks = [step.of_slots(rank * seqs, seqs) for rank in range(self.num_ranks)]
        return np.stack([fill_constraints(part, bucket[1], vocab).reshape(-1) for part in ranks])

    def _step_for(self, num_tokens: int, num_reqs: int) -> tuple[Bucket, Executable]:
        if self.options.use_aot_forward:
            return self._compiled.get(num_tokens, num_reqs)
        bucket = select_bucket(self._batches, num_tokens, num_reqs)
        executable = self._compiled.find(bucket)
        if executable is None:
            log.warning("compiling a step of %d tokens x %d requests while serving", *bucket)
            executable = self._lower(bucket).compile()
            self.compilations_while_serving += 1
            self._compiled.put(bucket, executable)
        return bucket, executable

    def bucket_for(self, num_tokens: int, num_logits: int) -> Bucket:
        """The bucket (tokens, logits rows) of a step that has so many of both; StepError if none is large enough."""
        return select_bucket(self._batches, num_tokens, num_logits)

    def read_tokens(self, result: StepResult, step: ScheduledStep) -> np.ndarray:
        """Waits for a step and fetches the tokens [logits rows] int32 of its rows; see `StepResult.tokens`."""
        return self._read(result.tokens, step, step.num_logits)

    def read_scores(self, result: StepResult, step: ScheduledStep) -> np.ndarray:
        """The log-probabilities of what a step sampled, [logits rows, …] int32; see `StepResult.scores`."""
        return self._read(result.scores, step, step.num_logits)

    def read_prompt_scores(self, result: StepResult, step: ScheduledStep) -> np.ndarray:
        """Those of the prompt tokens after a step's tokens, [tokens, …] int32; see `StepResult.prompt_scores`."""
        return self._read(result.prompt_scores, step, step.num_tokens)

    @property
    def has_hidden(self) -> bool:
        """Whether the host can read hidden states: not those of ranks that are in other processes."""
        return self._group is None or self.num_ranks == 1

    def read_hidden(self, result: StepResult, step: ScheduledStep) -> np.ndarray:
        """The last hidden states of a step's logits rows, [logits rows, hidden] float32."""
        return self._read(result.hidden, step, step.num_logits)

    def read_token_hidden(self, result: StepResult, step: ScheduledStep) -> np.ndarray:
        """Those of all its tokens, [tokens, hidden] float32."""
        return self._read(result.token_hidden, step, step.num_tokens)

    def _read(self, array: jax.Array, step: ScheduledStep, counts: np.ndarray) -> np.ndarray:
        if self._group is not None:
            self._group.wait(array)
        lines = self.transfers.to_host(array)
        return in_step_order(lines, step.slots, counts, self.options.max_num_seqs, self.num_ranks)

    def update_graphs(
        self,
        model: DecoderWeights | None = None,
        *,
        graphdef: DecoderSpec | None = None,
        graphstate: DecoderWeights | None = None,
        graphother: tuple[Any, ...] | None = None,
    ) -> None:
        """Uses other weights from the next step on; nothing is compiled, and running sequences keep their cache.

        A step that was dispatched before still uses the old ones. Arrays come in the form that `load_weights` gives
        for the manager's mesh, wherever they lie: where tensor parallel devices share the model, `gate_up` is divided
        into shards and key/value heads may be there several times, see `LayerWeights`.

        Args:
            model: all arrays: weights and rotary frequencies.
            graphdef: the static structure, which compiled steps have built in: it must be the model's own.
            graphstate: the weights; its rotary frequencies are left aside.
            graphother: the rotary frequencies, [head_dim / 2] float32 for each rotation of the model.

        Raises:
            ValueError: no argument, or `model` together with others.
            StepError: something differs in structure, shape or dtype; the first difference is named, and nothing
                has changed. Or several processes serve the model: there weights stay as they were loaded.
        """
        if model is None and graphdef is None and graphstate is None and graphother is None:
            raise ValueError("update_graphs: give model, graphdef, graphstate or graphother")
        if model is not None and (graphstate is not None or graphother is not None):
            raise ValueError("update_graphs: model has graphstate and graphother in it; give one or the others")
        if self._group is not None:
            raise StepError("update_graphs: not possible where several processes serve one model")
        if graphdef is not None:
            check_spec(self.spec, graphdef)
        new = model or graphstate or self._weights
        if model is None:
            new = replace(new, inv_freqs=self._weights.inv_freqs if graphother is None else graphother)
        self._weights = place_like(self._weights, new)

    @property
    def weights(self) -> DecoderWeights:
        """The arrays that steps compute with."""
        return self._weights

    def change_pages(self, change: Callable[[jax.Array], jax.Array]) -> None:
        """Replaces each layer's pages by what `change` makes of them, in their form; it may take them as donated."""
        self._state = replace(self._state, pages=tuple(change(pages) for pages in self._state.pages))

    def reset_state(self) -> None:
        """Replaces the device state by an empty one: every page and slot is forgotten. For use after a failed step,
        which may have consumed the state."""
        with nullcontext() if self._group is None else self._group.reset():
            del self._state  # first, so that there are never two pools
            self._state, self._prepared = self._new_state(), None
        self.sequences.device_position[:] = -1

    def clear_cache(self) -> None:
        """Forgets the compiled steps; `compile` makes them again."""
        self._compiled.clear()
        self._batches.clear()
        self._no_constraints.clear()
        if self._spare_logits is not None:
            self._spare_logits.prepare([])

    @property
    def buckets(self) -> list[Bucket]:
        """The compiled (tokens, requests) pairs, ascending."""
        return self._compiled.buckets

    @property
    def cache_stats(self) -> CacheStats:
        """Hits, misses and evictions of the cache of compiled steps."""
        return self._compiled.stats

    def compiled_text(self, bucket: Bucket) -> str:
        """The optimised HLO of a compiled bucket, for looking into."""
        if bucket not in self._compiled.buckets:
            raise StepError(f"no step is compiled for {bucket}; available: {self._compiled.buckets}")
        return str(self._compiled.get(*bucket)[1].as_text())  # type: ignore[attr-defined]

    def _layout(self, bucket: Bucket) -> BatchLayout:
        return BatchLayout(bucket, self.options.page_size)

    def _lower(self, bucket: Bucket) -> Any:
        o = self.options
        scores_prompts = bucket[0] >= self._fewest_scored
        sampler = SamplerOptions(o.vocab_limit, o.max_logprobs, o.logprobs_mode, scores_prompts)
        static = self._device_spec, self._kernel, self._layout(bucket), sampler
        forms = self._argument_forms(bucket)

        def lower(name: str = "fused_step") -> Any:
            function: Any = partial(fused_step, *static)
            if self.mesh is not None:
                function = over_mesh(function, self.mesh, self._forms[0])

            def step(weights: Any, state: Any, packed: Any, constraints: Any, spare: Any) -> Any:
                return function(weights, state, packed, constraints)  # XLA puts the logits into what is donated

            step.__name__ = name
            options = OLDER_EMITTERS if self._is_native else None
            return jax.jit(step, donate_argnums=(1, 4), keep_unused=True, compiler_options=options).lower(*forms)

        folder = self.options.saved_steps
        if folder is None or self.mesh is not None:
            return lower()  # for which order of devices it was made a file would not tell; there is JAX's own cache
        return SavedStep(folder / fingerprint(*static, forms=forms), lower)

    def _argument_forms(self, bucket: Bucket) -> Arguments:
        """Shapes instead of arrays: what a step is compiled for."""
        weights, state = self._forms
        sizes = self._layout(bucket).size, self._constraints_size(bucket)
        if self.mesh is None:
            packed, constraints = (jax.ShapeDtypeStruct((size,), jnp.int32) for size in sizes)
            spare = jax.ShapeDtypeStruct((bucket[1], self._device_spec.vocab_size), jnp.float32)
            return Arguments(weights, state, packed, constraints, None if self._spare_logits is None else spare)
        sharding = NamedSharding(self.mesh, PER_RANK)
        shapes = [(self.num_ranks, size) for size in sizes]
        packed, constraints = (jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding) for shape in shapes)
        return Arguments(weights, state, packed, constraints)

    def _constraints_size(self, bucket: Bucket) -> int:
        return bucket[1] * constraint_words(self.spec.vocab_size)

    def _try_out(self, bucket: Bucket, executable: Executable) -> None:
        """Runs a fresh step once without rows, if it is for decoding: what XLA prepares at a first call, 0.3 s of one
        core, must not hold up requests that are under way. For prefill it would take a third of a start, to spare the
        first prompt of each size that much. Processes run all, which also connects their devices."""
        if not is_for_decodes(bucket) and self._group is None:
            return
        empty = np.empty(0, np.int32)
        batch = self._batches[bucket]
        batch.fill(ScheduledStep(empty, empty, empty, empty), self.sequences)
        packed = self.transfers.to_device(batch.packed.copy())
        result = self._run(bucket, executable, packed, self._no_constraints[bucket[1]])
        result.tokens.block_until_ready()
        self.release(result)

    def _device_state(self) -> DeviceState:
        """The empty state of one device."""
        o = self.options
        return new_state(self._device_spec, self._kernel, o.num_pages, o.page_size, o.max_num_seqs, o.max_model_len)

    def _new_batch(self, bucket: Bucket) -> HostBatch | RankedBatch:
        layout, num_slots = self._layout(bucket), self.options.max_num_seqs
        return HostBatch(layout, num_slots) if self.mesh is None else RankedBatch(layout, num_slots, self.num_ranks)

    def _form_of(self, array: jax.Array) -> jax.ShapeDtypeStruct:
        sharding = None if self.mesh is None else array.sharding
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
