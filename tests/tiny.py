"""Engines of tiny random-weight models, with a byte tokenizer, for tests of everything above the execution layer."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import golden
from headrace.config import EngineConfig
from headrace.engine.engine import Engine, TokenOutput
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.models.weights import DecoderWeights
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from headrace.weights.load import load_weights, open_checkpoint
from headrace.weights.packed import wanted

# The small geometry of the boundary cases: 12 pages of 16 tokens, 32 tokens per step, 64 tokens of context.
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "page_size": 16,
    "num_pages": 12,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "min_input_pad": 2,
}
# Room for everything at once, whole prompts in one chunk: what a request gives when nothing disturbs it.
SOLO: dict[str, Any] = {**SMALL, "max_num_seqs": 1, "max_num_batched_tokens": 64}


def write_model(folder: Path, name: str = "llama3", chat_template: str | None = None) -> Path:
    """A Hugging Face folder of a golden checkpoint with a tokenizer of bytes: ids 0 to 2 are pad, BOS and EOS."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(golden.ROOT / name / file, folder / file)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *alphabet[:253]])}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<pad>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@cache
def tiny_weights(name: str, dtype: str) -> DecoderWeights:
    """Weights of a golden checkpoint."""
    return load_weights(open_checkpoint(golden.ROOT / name), jnp.dtype(dtype), native=wanted(None))


_MANAGERS: dict[Any, ExecutionManager] = {}
# A compiled step takes some 400 memory maps, of which Linux gives a process 65,530: without a bound the tests run out.
_MOST_MANAGERS = 8


def tiny_manager(name: str = "llama3", *, weights: DecoderWeights | None = None, **geometry: Any) -> ExecutionManager:
    """A compiled manager; kept for the next caller with the same geometry, unless weights are given."""
    key = (name, tuple(sorted(geometry.items())))
    if weights is None and key in _MANAGERS:
        manager = _MANAGERS[key] = _MANAGERS.pop(key)  # the newest again
        manager.reset_state()
        return manager
    dtype = geometry.pop("dtype", "float32")
    options = ExecutionOptions(dtype=jnp.dtype(dtype), vocab_limit=256, **{"compile_guard": "raise", **geometry})
    manager = ExecutionManager(open_checkpoint(golden.ROOT / name).spec, weights or tiny_weights(name, dtype), options)
    manager.compile()
    if weights is None:
        _MANAGERS[key] = manager
        if len(_MANAGERS) > _MOST_MANAGERS:
            del _MANAGERS[next(iter(_MANAGERS))]
            gc.collect()
    return manager


def tiny_engine(
    folder: Path, name: str = "llama3", *, config: Mapping[str, Any] | None = None, **geometry: Any
) -> Engine:
    """An engine over `tiny_manager`, with the tokenizer of `folder`; `config` are further options of the engine."""
    manager = tiny_manager(name, **geometry)
    return Engine(EngineConfig(model=name, **{"seed": 0, **(config or {})}), Tokenizer.from_folder(folder), manager)


def run(engine: Engine, requests: Iterable[tuple[Sequence[int], SamplingParams]]) -> list[list[TokenOutput]]:
    """Adds all requests, steps until none is left, checks the pages after each step; outputs per request."""
    ids = []
    for i, (prompt, params) in enumerate(requests):
        ids.append(f"r{i}")
        engine.add(ids[-1], prompt, params)
    outputs: dict[str, list[TokenOutput]] = {i: [] for i in ids}
    while engine.has_unfinished:
        for output in engine.step():
            outputs[output.request_id].append(output)
        check_pages(engine)
    assert all(pool.num_available == pool.num_pages for pool in engine.pools)
    return list(outputs.values())


def check_pages(engine: Engine) -> None:
    """The pools' counts are those of the requests, nobody holds more than it needs, and the prefix caches agree."""
    scheduler, seqs = engine.scheduler, engine.manager.options.max_num_seqs
    for rank, (pool, prefix) in enumerate(zip(engine.pools, engine.prefixes, strict=True)):
        prefix.check()
        pool.check(r.pages for r in scheduler.running if r.slot is not None and r.slot // seqs == rank)
    for request in scheduler.waiting:
        assert request.pages == []
        assert request.slot is None
    for request in scheduler.running:
        least = engine.pool.pages_for(request.num_computed)
        most = engine.pool.pages_for(max(request.num_computed, request.num_tokens))  # drafts in flight are computed
        if request.has_all_pages:
            most = engine.pool.pages_for(request.max_total)
        assert least <= len(request.pages) <= most
    slots = [request.slot for request in scheduler.running]
    assert len(set(slots)) == len(slots)


def tokens(outputs: Iterable[TokenOutput]) -> list[int]:
    """The token ids of one request's outputs."""
    return [o.token_id for o in outputs if o.token_id is not None]


def text(outputs: Iterable[TokenOutput]) -> str:
    """The text of one request's outputs."""
    return "".join(o.text for o in outputs)


class FailsOnce:
    """A manager whose n-th step raises, after the real one has consumed the device state."""

    def __init__(self, manager: ExecutionManager, step: int, error: BaseException) -> None:
        self._manager, self._left, self._error = manager, step, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def execute(self, step: Any) -> Any:
        result = self._manager.execute(step)
        self._left -= 1
        if self._left == 0:
            raise self._error
        return result
