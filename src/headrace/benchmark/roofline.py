"""How near the engine comes to what the machine allows: decode and prefill against memory bandwidth and arithmetic."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax

from headrace.benchmark.context import decode, fill_pages, steps_to_begin
from headrace.benchmark.machine import Machine, probe
from headrace.benchmark.work import Counted, Limit, Row, Work
from headrace.benchmark.workload import Load, greedy, random_prompts
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import ConfigError
from headrace.execution.compiled import compilations
from headrace.llm import LLM
from headrace.models.spec import DecoderSpec
from headrace.weights.load import open_checkpoint
from headrace.weights.sources import resolve

ROOM = 4 << 30  # bytes of KV pages, unless the user says otherwise
_PREFILLS = 3


@dataclass(frozen=True)
class _Point:
    """Requests that decode together.

    Attributes:
        context: that was asked for.
        prompt: tokens of each prompt; less than that where the model's longest sequence leaves no room.
        max_tokens: that each request may get, until all have decoded together for long enough.
        pages: of the KV cache that all need.
    """

    requests: int
    context: int
    prompt: int
    max_tokens: int
    pages: int


@dataclass(frozen=True)
class _Plan:
    """What is measured, what is left out and why, and the engine's options for it."""

    points: list[_Point]
    skipped: list[dict[str, Any]]
    options: dict[str, Any]


def measure(
    model: str,
    load: Load,
    chosen: dict[str, Any],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    prefill: Sequence[int],
    steps: int,
) -> dict[str, Any]:
    """Measures the machine before and after each figure of the engine, and takes its highest limits.

    Decoding is measured with contexts that were not computed, see `benchmark.context`: the median time of a step, from
    its start to the next's, against the mean limit of these steps. Prefill is the median time of one random prompt to
    its first token, against the sum of the limits of its chunks. What each step has to do is counted by
    `benchmark.work`; a share above 1 means that some of it was still in the processor's cache.

    Args:
        load: engine options -> the loaded model.
        chosen: engine options of the user's own.
        batch_sizes, contexts: of decoding, each with each; combinations whose pages do not fit are left out.
        prefill: tokens of the prompts.
        steps: of decoding, measured for each combination.

    Returns:
        `model`, `dtype`, `weights_dtype`, `page_size`, `max_position`, `compilations_after_warmup`; `machine`: the
        fields of `Machine`; `skipped`, a list of `batch_size`, `context` and `reason`; and `results`, a list of `kind`
        ("decode" or "prefill"), `batch_size`, `asked` (the context or prompt that was asked for), `context` (tokens
        that each request had in the cache, on average; of a prefill the prompt's), `ms` (of a step, or of the whole
        prompt), `tok_s`, and what it is held against: `weight_bytes`, `page_bytes`, `operations`, `memory_ms`,
        `arithmetic_ms`, `limit_ms`, `bound` and `share`.

    Raises:
        ConfigError: an argument, or an engine that this is not for: not on a CPU, of several devices or without prefix
            cache; or nothing fits.
    """
    _check(chosen, batch_sizes, contexts, prefill, steps)
    spec = open_checkpoint(resolve(model)).spec
    plan = _plan(model, spec, chosen, batch_sizes, contexts, prefill, steps)
    llm = load(plan.options)
    engine, counted = llm.engine, Counted.of(llm.engine.manager)
    fill_pages(engine, min(max((p.pages for p in plan.points), default=0), engine.pool.num_pages))
    machine, measured, compiled = probe(counted.kinds), [], 0
    tasks = [partial(_decode, llm, counted, point, steps) for point in plan.points]
    for task in [*tasks, *(partial(_prefill, llm, counted, tokens) for tokens in prefill)]:
        before = compilations()
        measured.append(task())
        compiled += compilations() - before
        machine = machine.best(probe(counted.kinds))
    config = engine.config
    return {
        "model": config.model,
        "dtype": config.dtype,
        "weights_dtype": config.weights_dtype,
        "page_size": config.page_size,
        "max_position": spec.max_position,
        "compilations_after_warmup": compiled,
        "machine": asdict(machine),
        "skipped": plan.skipped,
        "results": [one.report(machine) for one in measured],
    }


def _check(
    chosen: dict[str, Any], batch_sizes: Sequence[int], contexts: Sequence[int], prefill: Sequence[int], steps: int
) -> None:
    if jax.default_backend() != "cpu":
        raise ConfigError(f"roofline: is of a CPU, not of a {jax.default_backend()}; set JAX_PLATFORMS=cpu")
    for name in ("tensor_parallel", "data_parallel", "num_processes"):
        if chosen.get(name, 1) != 1:
            raise ConfigError(f"{name}: must be 1 for a roofline, which is of one device")
    if "kv_cache_share" in chosen:
        raise ConfigError("kv_cache_share: give kv_cache_bytes for a roofline, or neither")
    if chosen.get("prefix_caching") is False:
        raise ConfigError("prefix_caching: must be on for a roofline, whose contexts come from there")
    for name, values in (("batch_sizes", batch_sizes), ("contexts", contexts), ("prefill", prefill)):
        if min(values, default=1) < 1:
            raise ConfigError(f"{name}: must be positive, not {list(values)}")
    if steps < 1:
        raise ConfigError(f"steps: must be positive, not {steps}")


def _plan(
    model: str,
    spec: DecoderSpec,
    chosen: dict[str, Any],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    prefill: Sequence[int],
    steps: int,
) -> _Plan:
    longest = chosen.get("max_model_len", spec.max_position)
    if max(prefill, default=0) >= longest:
        raise ConfigError(f"prefill: {max(prefill)} tokens and the next are more than the longest sequence ({longest})")
    seqs = {"max_num_seqs": max(batch_sizes, default=1), **chosen}
    config = EngineConfig.from_options(model, seqs).resolve(spec)
    assert config.kv_cache_bytes is not None
    page_bytes = config.kv_cache_bytes // config.num_pages(spec)
    room = config.num_pages(spec) if "kv_cache_bytes" in chosen else ROOM // page_bytes
    points, skipped = [], []
    for context in contexts:
        for requests in batch_sizes:
            point = _point(config, requests, context, longest, steps)
            reason = _why_not(point, longest, config, room, page_bytes)
            if reason is None:
                points.append(point)
            else:
                skipped.append({"batch_size": requests, "context": context, "reason": reason})
    if not points and not prefill:
        raise ConfigError(f"contexts: nothing can be measured; {'; '.join(str(s['reason']) for s in skipped)}")
    length = max([p.prompt + p.max_tokens for p in points] + [tokens + 1 for tokens in prefill])
    pages = max([p.pages for p in points] + [-(-length // config.page_size)])
    needed = {"max_model_len": length, "kv_cache_bytes": _with_slack(pages) * page_bytes}
    return _Plan(points, skipped, {**needed, **seqs})


def _point(config: EngineConfig, requests: int, context: int, longest: int, steps: int) -> _Point:
    begin = steps_to_begin(requests, context + 1, config.page_size, config.max_num_batched_tokens)
    max_tokens = begin + steps + 2
    prompt = min(context + 1, longest - max_tokens)
    return _Point(requests, context, prompt, max_tokens, requests * -(-(prompt + max_tokens) // config.page_size))


def _why_not(point: _Point, longest: int, config: EngineConfig, room: int, page_bytes: int) -> str | None:
    if point.requests > config.max_num_seqs:
        return f"{point.requests} requests are more than max_num_seqs ({config.max_num_seqs})"
    if point.prompt < 1 or point.context > longest:
        return f"the longest sequence has {longest} tokens"
    if point.pages > room:
        return f"{point.pages * page_bytes} bytes of KV pages are more than the {room * page_bytes} that there are"
    return None


def _with_slack(pages: int) -> int:
    """So many pages that the engine, which rounds down to three significant bits, has at least `pages`."""
    drop = max(pages.bit_length() - 3, 0)
    return -(-pages >> drop) << drop


@dataclass(frozen=True)
class _Measured:
    """Seconds of a decode step and the work of the steps that it is the median of, or of a prompt and of its chunks."""

    kind: str
    requests: int
    asked: int
    context: int
    seconds: float
    tokens: int
    works: list[Work]

    def report(self, machine: Machine) -> dict[str, Any]:
        """As `measure` gives it."""
        count = len(self.works) if self.kind == "decode" else 1
        limits = [Limit.of(work, machine) for work in self.works]
        memory, arithmetic, limit = (
            sum(getattr(one, name) for one in limits) / count for name in ("memory_s", "arithmetic_s", "seconds")
        )
        total = sum(self.works[1:], self.works[0])
        return {
            "kind": self.kind,
            "batch_size": self.requests,
            "asked": self.asked,
            "context": self.context,
            "ms": round(1e3 * self.seconds, 4),
            "tok_s": round(self.tokens / self.seconds, 1),
            "weight_bytes": total.weight_bytes // count,
            "page_bytes": total.page_bytes // count,
            "operations": {kind: operations // count for kind, operations in total.operations.items()},
            "memory_ms": round(1e3 * memory, 4),
            "arithmetic_ms": round(1e3 * arithmetic, 4),
            "limit_ms": round(1e3 * limit, 4),
            "bound": "memory" if memory >= arithmetic else "arithmetic",
            "share": round(limit / self.seconds, 4),
        }


def _decode(llm: LLM, counted: Counted, point: _Point, steps: int) -> _Measured:
    prompts = random_prompts(llm, point.requests, point.prompt)
    decoded = decode(llm.engine, prompts, steps, point.max_tokens)
    works = [counted.step(list(_rows(cached, point.requests)), point.requests) for cached in decoded.cached]
    seconds = statistics.median(decoded.seconds)
    context = round(statistics.fmean(decoded.cached) / point.requests)
    return _Measured("decode", point.requests, point.context, context, seconds, point.requests, works)


def _rows(cached: int, requests: int) -> Iterator[Row]:
    """So many cached tokens, divided as evenly as they are: requests that began some steps apart."""
    for index in range(requests):
        yield Row((cached + index) // requests)


def _prefill(llm: LLM, counted: Counted, tokens: int) -> _Measured:
    chunk = llm.engine.manager.options.max_num_batched_tokens
    starts = range(0, tokens, chunk)
    works = [counted.step([Row(start, min(chunk, tokens - start))], int(start == starts[-1])) for start in starts]
    prompts = random_prompts(llm, 1 + _PREFILLS, tokens)
    seconds = [_first_token(llm.engine, prompt) for prompt in prompts][1:]
    return _Measured("prefill", 1, tokens, tokens, statistics.median(seconds), tokens, works)


def _first_token(engine: Engine, prompt: Sequence[int]) -> float:
    engine.reset_prefix_cache()
    begin = time.perf_counter()
    engine.add("bench", prompt, greedy(1))
    while engine.has_unfinished:
        engine.step()
    return time.perf_counter() - begin


def format_report(report: dict[str, Any]) -> str:
    """The figures as a table for the terminal."""
    machine, one = report["machine"], report["machine"]["bandwidth"]["one"]
    kernels = f"native kernels for {machine['instruction_set']}" if machine["instruction_set"] else "plain JAX"
    lines = [
        f"{report['model']}, {report['dtype']}, weights {report['weights_dtype']}; "
        f"{kernels}, {machine['threads']} threads",
        f"memory: {machine['bandwidth']['all'] / 1e9:.1f} GB/s read by all threads, {one / 1e9:.1f} by one",
    ]
    for kind, rate in machine["operations"].items():
        alone = "" if rate["one"] is None else f" by all threads, {rate['one'] / 1e9:.1f} by one"
        lines.append(f"{kind}: {rate['all'] / 1e9:.1f} billion multiply-adds per second{alone}")
    lines.append(
        f"{'':>8}{'batch':>6}{'context':>9}{'tok/s':>10}{'ms':>10}{'weights MB':>12}{'pages MB':>10}{'memory ms':>11}"
        f"{'arithmetic ms':>15}{'share':>8}  bound by"
    )
    for r in report["results"]:
        lines.append(
            f"{r['kind']:>8}{r['batch_size']:>6}{r['context']:>9}{r['tok_s']:>10.1f}{r['ms']:>10.2f}"
            f"{r['weight_bytes'] / 1e6:>12.1f}{r['page_bytes'] / 1e6:>10.1f}{r['memory_ms']:>11.2f}"
            f"{r['arithmetic_ms']:>15.2f}{r['share']:>8.1%}  {r['bound']}"
        )
    lines += [f"left out: {s['batch_size']} requests, context {s['context']}: {s['reason']}" for s in report["skipped"]]
    return "\n".join(lines)
