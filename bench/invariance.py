"""Whether what a request gets depends on anything but the request, on a real model, and what it costs that it does not.

    python bench/invariance.py smollm2 --requests 1000 --dtype bfloat16
    python bench/invariance.py smollm2 --cost

Each request runs alone in an engine without prefix cache whose steps take whole prompts, and then among all others in
engines whose batches, chunks, buckets, cache hits and preemptions are random. Tokens and log-probabilities must be
equal in each bit. `--cost` measures decoding with and without the two measures that fix the bits of products and sums;
attention's fixed tiles stay, for there is no other kernel.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from typing import Any

import jax

from headrace import LLM, SamplingParams
from headrace.engine.engine import Engine, TokenOutput
from headrace.kernels import jax_attention
from headrace.layers import linear, reduce

WORDS = (
    *[
        "the",
        "of",
        "river",
        "stone",
        "light",
        "under",
        "seven",
        "because",
        "window",
        "salt",
        "music",
        "never",
        "green",
        "however",
        "train",
    ],
    "1984",
    "π",
)


def requests(llm: LLM, count: int, seed: int) -> list[tuple[list[int], SamplingParams]]:
    """Random prompts, some of which begin alike, and random parameters."""
    rng = random.Random(seed)
    beginnings = [" ".join(rng.choices(WORDS, k=40)) for _ in range(8)]
    made = []
    for _ in range(count):
        text = rng.choice([*beginnings, "", ""]) + " ".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 4, 8, 8, 24]),
            temperature=rng.choice([0.0, 0.0, 0.7, 1.2]),
            top_k=rng.choice([0, 0, 20]),
            top_p=rng.choice([1.0, 1.0, 0.9]),
            min_p=rng.choice([0.0, 0.0, 0.05]),
            presence_penalty=rng.choice([0.0, 0.0, 0.8]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            logprobs=rng.choice([0, 2, 5]),
            prompt_logprobs=rng.choice([None, None, None, 1]),
            seed=rng.getrandbits(63),
            ignore_eos=True,
        )
        made.append((llm.tokenizer.encode(text), params))
    return made


def facts(outputs: list[TokenOutput]) -> list[Any]:
    """What a caller gets of a request."""
    return [(o.token_id, o.text, o.finish_reason, o.logprobs, o.prompt_logprobs) for o in outputs]


def together(engine: Engine, cases: list[tuple[list[int], SamplingParams]], rng: random.Random) -> list[list[Any]]:
    """All requests at random times in one engine, in random order; what each gets."""
    waiting, got = rng.sample(range(len(cases)), len(cases)), [[] for _ in cases]
    while waiting or engine.has_unfinished:
        while waiting and (rng.random() < 0.5 or not engine.has_unfinished):
            i = waiting.pop()
            engine.add(str(i), *cases[i])
        for output in engine.step():
            got[int(output.request_id)].append(output)
    return [facts(outputs) for outputs in got]


def invariance(model: str, dtype: str, count: int, seed: int, num_alone: int) -> int:
    """The number of requests that got anything else among others, or in other company, than alone."""
    wrong: set[int] = set()
    cases: list[tuple[list[int], SamplingParams]] = []
    results: list[list[list[Any]]] = []
    # Plenty of room and large chunks; few pages and small chunks, so that requests are preempted.
    for chunk, memory in ((512, 256 << 20), (48, 10 << 20 if dtype == "float32" else 5 << 20)):
        llm = LLM(model, dtype=dtype, max_model_len=192, max_num_batched_tokens=chunk, kv_cache_bytes=memory)
        cases = cases or requests(llm, count, seed)
        begin = time.perf_counter()
        results.append(together(llm.engine, cases, random.Random(seed + chunk)))
        wrong |= {i for i in range(count) if results[-1][i] != results[0][i]}
        metrics = llm.engine.metrics
        print(
            f"{dtype}, chunks of {chunk}, {metrics.pages} pages: {time.perf_counter() - begin:.0f} s, "
            f"{metrics.preemptions} preemptions, {metrics.prefix_hit_tokens} tokens from the cache, "
            f"{metrics.compilations} compilations, {count - len(wrong)} of {count} equal",
            flush=True,
        )
        del llm
    llm = LLM(model, dtype=dtype, max_num_seqs=1, max_model_len=192, prefix_caching=False, kv_cache_bytes=256 << 20)
    begin = time.perf_counter()
    for i, case in enumerate(cases[:num_alone], 1):
        llm.engine.add("x", *case)
        outputs: list[TokenOutput] = []
        while llm.engine.has_unfinished:
            outputs += llm.engine.step()
        if any(result[i - 1] != facts(outputs) for result in results):
            wrong.add(i - 1)
        if i % 100 == 0 or i == num_alone:
            print(f"{i} alone, {time.perf_counter() - begin:.0f} s, {len(wrong)} differ", flush=True)
    return len(wrong)


def decode_rate(engine: Engine, batch: int) -> float:
    """Tokens per second of a batch that decodes."""
    for i in range(batch):
        engine.add(str(i), [300 + i] * 30, SamplingParams(max_tokens=70, temperature=0, ignore_eos=True))
    for _ in range(20):
        engine.step()
    begin = time.perf_counter()
    for _ in range(40):
        engine.step()
    seconds = time.perf_counter() - begin
    for i in range(batch):
        engine.abort(str(i))
    return 40 * batch / seconds


def cost(model: str, dtype: str) -> None:
    """Decoding with fixed bits and without, by turns. Nothing is saved: files know the source, not what is set here."""
    fixed = linear.MIN_ROWS, reduce.MIN_SUMMED
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)  # whoever sets one of his own gets no saved steps
        for batch in (1, 2, 8, 32):
            engines = {}
            for invariant in (True, False):
                rows, summed = fixed if invariant else (1, 1)
                linear.MIN_ROWS, jax_attention.MIN_ROWS, reduce.MIN_SUMMED = rows, rows, summed
                engines[invariant] = LLM(model, dtype=dtype, max_model_len=512, max_num_seqs=batch).engine
            texts = {engine.manager.compiled_text(engine.manager.buckets[0]) for engine in engines.values()}
            rates: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(5):
                for invariant, engine in engines.items():
                    rates[invariant].append(decode_rate(engine, batch))
            with_bits, without = (statistics.median(rates[invariant]) for invariant in (True, False))
            note = "" if len(texts) == 2 else " (the same program)"
            print(f"{dtype} B={batch}: {with_bits:.1f} tok/s with fixed bits, {without:.1f} without{note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--alone", type=int, help="how many of them also run alone; all, if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    if args.cost:
        cost(args.model, args.dtype)
        return
    alone = args.requests if args.alone is None else args.alone
    wrong = invariance(args.model, args.dtype, args.requests, args.seed, alone)
    print(f"{args.requests - wrong} of {args.requests} requests are equal in every bit; {alone} of them also ran alone")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
