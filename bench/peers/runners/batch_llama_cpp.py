"""llama.cpp through its batch API: prompts and decodes share a batch, as in its own server; greedy."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any

import llama_cpp as ll
import numpy as np
from protocol import Generate, Settings, Steps, serve

BATCH, MICRO_BATCH = 2048, 512  # its defaults


@dataclass
class _Running:
    request: int
    todo: list[int]  # tokens that it has not computed
    position: int
    left: int  # output tokens


def load(settings: Settings) -> Generate:
    """The model; each run gets a context with as many sequences as it has requests, up to `max_requests`."""
    ll.llama_backend_init()
    ll.llama_log_set(_quiet, ctypes.c_void_p(0))
    model = ll.llama_model_load_from_file(settings.model.encode(), ll.llama_model_default_params())
    vocab_size = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    batch = ll.llama_batch_init(BATCH, 0, 1)

    def generate(prompts: list[list[int]], outputs: list[int]) -> Steps:
        slots = min(len(prompts), settings.max_requests)
        return steps(contexts.get(slots), slots, prompts, outputs)

    def steps(context: Any, slots: int, prompts: list[list[int]], outputs: list[int]) -> Steps:
        memory = ll.llama_get_memory(context)
        waiting = deque(_Running(i, list(p), 0, n) for i, (p, n) in enumerate(zip(prompts, outputs, strict=True)))
        running: dict[int, _Running] = {}
        while waiting or running:
            for slot in range(slots):
                if slot not in running and waiting:
                    running[slot] = waiting.popleft()
            sampled = _fill(batch, running)
            if ll.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            logits = np.ctypeslib.as_array(ll.llama_get_logits(context), (len(sampled), vocab_size))
            got = []
            for slot, token in zip(sampled, logits.argmax(1).tolist(), strict=True):
                one = running[slot]
                one.todo, one.left = [token], one.left - 1
                got.append((one.request, token))
            yield got
            for slot in sampled:
                if not running[slot].left:
                    del running[slot]
                    ll.llama_memory_seq_rm(memory, slot, -1, -1)

    contexts = _Contexts(model, settings)
    return generate


class _Contexts:
    """One context at a time, as each has the whole KV cache; divided evenly among its sequences."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._slots, self._context = 0, None

    def get(self, slots: int) -> Any:
        if slots != self._slots:
            if self._context:
                ll.llama_free(self._context)
            params = ll.llama_context_default_params()
            params.n_ctx = self._settings.kv_tokens // slots // 256 * 256 * slots  # it would round up
            params.n_seq_max = slots
            params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
            params.n_threads = params.n_threads_batch = len(self._settings.cpus)
            self._context, self._slots = ll.llama_init_from_model(self._model, params), slots
            if not self._context:
                raise RuntimeError(f"no context for {slots} sequences")
        return self._context


def _fill(batch: Any, running: dict[int, _Running]) -> list[int]:
    """Fills the batch: one token of each that decodes, then of prompts what there is room for. Slots to sample."""
    size, sampled = 0, []
    for slot, one in sorted(running.items(), key=lambda item: len(item[1].todo)):
        taken = one.todo[: BATCH - size]
        if not taken:
            continue
        for token in taken:
            batch.token[size], batch.pos[size] = token, one.position
            batch.n_seq_id[size], batch.seq_id[size][0], batch.logits[size] = 1, slot, 0
            one.position += 1
            size += 1
        one.todo = one.todo[len(taken) :]
        if not one.todo:
            batch.logits[size - 1] = 1
            sampled.append(slot)
    batch.n_tokens = size
    return sampled


@ll.llama_log_callback
def _quiet(level: int, text: bytes, data: Any) -> None:
    if level >= 4:  # an error
        print(text.decode(), end="")


if __name__ == "__main__":
    serve(load)
