"""From scheduled rows to one packed array: what a step needs of the host, in a single transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from headrace.execution.buckets import Bucket
from headrace.execution.schedule import MAX_SHARED_PAGE_UPDATES, ScheduledStep
from headrace.execution.sequences import NEUTRAL_SAMPLING, SAMPLING_FIELDS, SequenceTable

NOT_SCORED, NO_NEXT = -2, -1
HAS_MASK, HAS_BIAS = 1, 2


@dataclass(frozen=True)
class BatchLayout:
    """Where each field lies in the packed int32 array of a bucket. Host and device read the same layout.

    Attributes:
        bucket: (tokens, requests).
        page_size: tokens per page.
    """

    bucket: Bucket
    page_size: int

    @property
    def num_updates(self) -> int:
        """Most pages that a step can add: a row takes at most one more than its tokens fill; and shared ones."""
        tokens, requests = self.bucket
        return tokens // self.page_size + requests + MAX_SHARED_PAGE_UPDATES

    def fields(self) -> Iterator[tuple[str, tuple[int, ...], type]]:
        """Name, shape and element type (4 bytes) of each field, in order.

        Rows are those of a `ScheduledStep`; logits rows are one or more for each of them.
        """
        tokens, requests = self.bucket
        yield "input_ids", (tokens,), np.int32  # -1: the token that the device sampled last for the row's slot
        yield "positions", (tokens,), np.int32
        yield "token_rows", (tokens,), np.int32  # padding: the number of requests of the bucket
        yield "query_start_loc", (requests + 1,), np.int32
        yield "seq_lens", (requests,), np.int32
        yield "prompt_lens", (requests,), np.int32
        yield "slots", (requests,), np.int32  # padding: the number of slots, which is out of range
        # The prompt token after the row's last one; `NO_NEXT` if there is none, `NOT_SCORED` if nobody asks.
        yield "next_ids", (requests,), np.int32
        yield "logits_rows", (requests,), np.int32  # of each logits row, its row; padding: 0
        yield "logits_indices", (requests,), np.int32  # and its token
        yield "samples", (requests,), np.int32  # and whether it samples
        yield "flags", (requests,), np.int32  # and `HAS_MASK`, `HAS_BIAS`
        yield "sampling", (requests, len(SAMPLING_FIELDS)), np.int32  # and its parameters, as bits
        yield "page_updates", (self.num_updates, 3), np.int32  # padding: a slot out of range
        yield "num_requests", (1,), np.int32
        yield "num_decodes", (1,), np.int32
        yield "num_logits", (1,), np.int32  # logits rows that are not padding

    @property
    def size(self) -> int:
        """Length of the packed array."""
        return sum(int(np.prod(shape)) for _, shape, _ in self.fields())

    def unpack(self, packed: jax.Array) -> dict[str, jax.Array]:
        """The fields of a packed array on the device."""
        out, start = {}, 0
        for name, shape, dtype in self.fields():
            size = int(np.prod(shape))
            out[name] = jax.lax.bitcast_convert_type(packed[start : start + size], jnp.dtype(dtype)).reshape(shape)
            start += size
        return out


class HostBatch:
    """The packed array of one bucket with its fields as views; filled anew for each step, allocated once."""

    def __init__(self, layout: BatchLayout, num_slots: int, packed: np.ndarray | None = None) -> None:
        self.layout = layout
        self.packed = np.zeros(layout.size, np.int32) if packed is None else packed
        self._num_slots = num_slots
        self._arange = np.arange(layout.bucket[0], dtype=np.int32)
        self._views: dict[str, np.ndarray] = {}
        start = 0
        for name, shape, dtype in layout.fields():
            size = int(np.prod(shape))
            self._views[name] = self.packed[start : start + size].view(dtype).reshape(shape)
            start += size

    def __getitem__(self, name: str) -> np.ndarray:
        return self._views[name]

    def fill(self, step: ScheduledStep, table: SequenceTable) -> None:
        """Writes every field, padding included, so that nothing of an earlier step is left."""
        rows, total = len(step.slots), step.total_tokens
        v, slots = self._views, step.slots
        starts, ends = v["query_start_loc"][:rows], v["query_start_loc"][1 : rows + 1]
        v["query_start_loc"][0] = 0
        np.add.accumulate(step.num_tokens, out=ends)  # cumsum is the same, by way of Python: slow when it is cold
        v["query_start_loc"][rows + 1 :] = total

        token_rows = self._arange[:rows].repeat(step.num_tokens)
        token_slots, positions = slots[token_rows], v["positions"][:total]
        np.subtract(self._arange[:total], (starts - step.num_computed)[token_rows], out=positions)
        v["token_rows"][:total] = token_rows
        v["input_ids"][:total] = table.token_ids[token_slots, positions]
        v["input_ids"][:total][positions == table.device_position[token_slots]] = -1
        v["token_rows"][total:], v["input_ids"][total:], v["positions"][total:] = self.layout.bucket[1], 0, 0

        seq_lens, prompt_lens = step.num_computed + step.num_tokens, table.prompt_lens[slots]
        self._set_rows("seq_lens", seq_lens, 0)
        self._set_rows("prompt_lens", prompt_lens, 0)
        self._set_rows("slots", slots, self._num_slots)
        self._set_rows("next_ids", self._next_ids(step, table, seq_lens, prompt_lens), NOT_SCORED)
        self._fill_logits_rows(step, table, ends)

        updates = v["page_updates"]
        if step.page_updates:
            updates[: len(step.page_updates)] = step.page_updates
        updates[len(step.page_updates) :] = self._num_slots
        v["num_requests"][0] = rows
        v["num_decodes"][0] = np.count_nonzero(step.num_tokens == 1)

    def _fill_logits_rows(self, step: ScheduledStep, table: SequenceTable, ends: np.ndarray) -> None:
        counts, total = step.num_logits, step.total_logits
        self._views["num_logits"][0] = total
        rows = self._arange[: len(counts)]
        if total > len(counts):
            rows = rows.repeat(counts)
            firsts = np.cumsum(counts) - counts
            indices = ends[rows] - counts[rows] + self._arange[:total] - firsts[rows]
        else:
            firsts, indices = rows, ends - 1
        self._set_rows("logits_rows", rows, 0)
        self._set_rows("logits_indices", indices, 0)
        self._set_rows("samples", step.samples[rows] > 0, 0)
        v = self._views["sampling"]
        v[:total], v[total:] = table.sampling[step.slots[rows]], NEUTRAL_SAMPLING
        flags = self._views["flags"]
        flags[:] = 0
        if step.constraints:
            for slot, first, count in zip(step.slots.tolist(), firsts.tolist(), counts.tolist(), strict=True):
                if one := step.constraints.get(slot):
                    kinds = HAS_MASK * (one.allowed is not None) | HAS_BIAS * (one.bias is not None)
                    flags[first : first + count] = kinds

    @staticmethod
    def _next_ids(
        step: ScheduledStep, table: SequenceTable, seq_lens: np.ndarray, prompt_lens: np.ndarray
    ) -> np.ndarray:
        if step.scores_prompt is None:
            return np.full(len(seq_lens), NOT_SCORED)
        last = table.token_ids.shape[1] - 1
        following = table.token_ids[step.slots, np.minimum(seq_lens, last)]
        return np.where(step.scores_prompt, np.where(seq_lens < prompt_lens, following, NO_NEXT), NOT_SCORED)

    def _set_rows(self, name: str, values: np.ndarray, padding: float) -> None:
        view = self._views[name]
        view[: len(values)], view[len(values) :] = values, padding
