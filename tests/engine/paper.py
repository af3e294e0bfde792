"""A device on paper: it does what the host tells it, and its pages hold token ids in place of keys and values.

A token that it samples depends on all that the pages of its sequence hold, so whatever the host gets wrong shows in
what a request gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.buckets import Bucket, bucket_pairs, request_buckets, select_bucket, token_buckets
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.transfer import TransferCounts
from headrace.text.tokenizer import Tokenizer

ALPHABET = (68, 69, 70)


def next_token(history: Sequence[int]) -> int:
    """Mostly the token three places back, and now and then another, as a hash of all tokens says."""
    number = crc32(np.asarray(history, np.int32).tobytes())
    return int(history[-3]) if number % 8 and len(history) > 2 else ALPHABET[number // 8 % len(ALPHABET)]


def continuation(prompt: Sequence[int], count: int, stops: Sequence[int] = ()) -> list[int]:
    """What a request gives: so many tokens, or the first that it stops at."""
    history = [*prompt]
    while len(history) < len(prompt) + count and (len(history) == len(prompt) or history[-1] not in stops):
        history.append(next_token(history))
    return history[len(prompt) :]


@dataclass
class _Prepared:
    bucket: Bucket
    step: ScheduledStep
    batch: HostBatch


class PaperManager:
    """In place of an `ExecutionManager`. It refuses a step that has more drafts than padding.

    Args:
        vocab: tokens that there are.
        sampled: the token after a history, given that and how many tokens of it are the prompt.

    Attributes:
        most_logits: the most logits rows that a step had.
    """

    num_ranks = 1
    compilations_while_serving = 0

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        length: int,
        seqs: int,
        budget: int,
        vocab: int = 256,
        sampled: Callable[[Sequence[int], int], int] = lambda history, num_prompt: next_token(history),
    ) -> None:
        self.options = SimpleNamespace(
            num_pages=pages,
            page_size=page_size,
            max_model_len=length,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            vocab_limit=vocab,
        )
        self.spec = SimpleNamespace(rope_length=lambda prompt: 0, vocab_size=vocab)
        self.transfers = SimpleNamespace(counts=TransferCounts())
        self.sequences = SequenceTable(seqs, length)
        self.most_logits = 0
        self._sampled = sampled
        self._pairs = bucket_pairs(token_buckets(seqs, budget), request_buckets(min(8, seqs), seqs))
        self._pages = np.full((pages, page_size), -9, np.int32)
        self._table = np.zeros((seqs, -(-length // page_size)), np.int32)
        self._last = np.zeros(seqs, np.int32)

    def bucket_for(self, num_tokens: int, num_logits: int) -> Bucket:
        return select_bucket(self._pairs, num_tokens, num_logits)

    def start_async_prep(self, step: ScheduledStep) -> None:
        bucket = self.bucket_for(step.total_tokens, step.total_logits)
        drafts = step.total_logits - len(step.slots)
        assert bucket == self.bucket_for(step.total_tokens - drafts, len(step.slots))
        self.most_logits = max(self.most_logits, step.total_logits)
        batch = HostBatch(BatchLayout(bucket, self.options.page_size), self.options.max_num_seqs)
        batch.fill(step, self.sequences)
        self._prepared = _Prepared(bucket, step, batch)

    def get_async_prep_result(self) -> _Prepared:
        return self._prepared

    def execute(self, prepared: _Prepared) -> list[int]:
        b, size, sampled = prepared.batch, self.options.page_size, []
        for slot, index, page in b["page_updates"]:
            if slot < len(self._table):
                self._table[slot, index] = page
        slots = b["slots"][np.minimum(b["token_rows"], len(b["slots"]) - 1)]
        total = prepared.step.total_tokens
        for slot, position, token in zip(slots[:total], b["positions"][:total], b["input_ids"][:total], strict=True):
            page = self._table[slot, position // size]
            self._pages[page, position % size] = self._last[slot] if token < 0 else token
        for index, samples in zip(b["logits_indices"], b["samples"], strict=True):
            slot, position, row = slots[index], b["positions"][index], b["token_rows"][index]
            if samples:
                assert position + 1 < self.options.max_model_len
                history = self._pages[self._table[slot]].reshape(-1)[: position + 1]
                sampled.append(self._sampled(history, int(b["prompt_lens"][row])))
                self._last[slot] = sampled[-1]
            else:
                sampled.append(-1)
        return sampled

    def read_tokens(self, result: list[int], step: ScheduledStep) -> np.ndarray:
        return np.array(result[: step.total_logits], np.int32)

    def release(self, result: list[int]) -> None:
        result.clear()  # nothing of it is read any more

    def reset_state(self) -> None:
        self._pages[:] = -9


def paper_engine(tokenizer: Tokenizer, *, options: dict[str, object], **geometry: Any) -> Engine:
    """An engine over such a device."""
    config = EngineConfig(model="paper", **{"seed": 0, **options})
    return Engine(config, tokenizer, PaperManager(**geometry))  # type: ignore[arg-type]
