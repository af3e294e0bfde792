"""The cache cases of public bug reports, in the small geometry: 12 pages of 16 tokens, 64 tokens of context."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.engine.pages import PagePool
from headrace.engine.prefix import CacheScope, PrefixCache
from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from tiny import SMALL, SOLO, check_pages, run, tiny_engine, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PAGE = 16

Solo = Callable[[Sequence[int]], list[int]]


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    return tiny_engine(tiny_folder, **SMALL)


@pytest.fixture
def solo(tiny_folder: Path) -> Solo:
    """Tokens of a prompt alone, whole, with nothing cached."""

    @cache
    def tokens_of(prompt: tuple[int, ...]) -> list[int]:
        [outputs] = run(tiny_engine(tiny_folder, config={"prefix_caching": False}, **SOLO), [(prompt, GREEDY)])
        return tokens(outputs)

    return lambda prompt: tokens_of(tuple(prompt))


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 256) for _ in range(length)]


def cached(engine: Engine, ids: Sequence[int]) -> tuple[list[int], int]:
    """The tokens of a prompt, and how many of its own were found in the cache."""
    [outputs] = run(engine, [(ids, GREEDY)])
    return tokens(outputs), outputs[-1].num_cached_tokens


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1])
def test_cac_01_the_same_prompt_again_leaves_a_token_to_compute(engine: Engine, solo: Solo, length: int) -> None:
    ids = prompt(length, length)
    assert cached(engine, ids) == (solo(ids), 0)
    assert cached(engine, ids) == (solo(ids), (length - 1) // PAGE * PAGE)


def test_cac_01_three_at_once_and_a_strict_beginning(engine: Engine, solo: Solo) -> None:
    ids = prompt(0, 2 * PAGE)
    cached(engine, [*ids, 5])
    results = run(engine, [(ids, GREEDY)] * 3)
    assert [tokens(r) for r in results] == [solo(ids)] * 3
    # All of the prompt is cached, but its last page is computed again, each time in a page of its own.
    assert [r[-1].num_cached_tokens for r in results] == [PAGE] * 3
    assert cached(engine, ids[:20]) == (solo(ids[:20]), PAGE)
    assert cached(engine, [*ids, 5]) == (solo([*ids, 5]), 2 * PAGE)


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1])
def test_cac_01_a_hit_gives_the_log_probabilities_of_a_miss(engine: Engine, length: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)
    first, second = (run(engine, [(prompt(length, length), params)])[0] for _ in range(2))
    assert [(o.token_id, o.logprobs) for o in first] == [(o.token_id, o.logprobs) for o in second]
    assert first[0].logprobs is not None
    assert len(first[0].logprobs.top) == 3


def test_cac_01_choices_of_one_prompt_share_its_pages(engine: Engine, tiny_folder: Path) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=3, max_tokens=12, ignore_eos=True)
    alone = tiny_engine(tiny_folder, config={"prefix_caching": False}, **SOLO)
    ids = prompt(5, 2 * PAGE)
    cold, warm = run(engine, [(ids, params)])[0], run(engine, [(ids, params)])[0]
    texts = [[tokens(o for o in outputs if o.index == i) for i in range(3)] for outputs in (cold, warm)]
    want = run(alone, [(ids, params)])[0]
    assert texts == [[tokens(o for o in want if o.index == i) for i in range(3)]] * 2
    assert len({tuple(one) for one in texts[0]}) == 3
    assert {o.num_cached_tokens for o in cold if o.index} == {PAGE}


def test_cac_01_an_answer_is_cached_too(engine: Engine, solo: Solo) -> None:
    ids = prompt(1, 27)
    answer, _ = cached(engine, ids)
    turn = [*ids, *answer, 7]  # 36 tokens; the last page that is full holds 5 tokens of the answer
    assert cached(engine, turn) == (solo(turn), 2 * PAGE)


def test_cac_03_keys_hold_whole_ids_and_all_that_comes_before() -> None:
    pool = PagePool(64, 2)
    found = PrefixCache(pool)
    for first, second in [([300, 300], [7, 7]), ([1000, 1000], [7, 7]), ([1, 23], [9, 9])]:
        pages = pool.allocate(2)
        node = found.add(found.root, CacheScope(), first, pages[0])
        found.add(node, CacheScope(), second, pages[1])
    for ids in ([556, 556], [66536, 66536], [12, 3], [300 - 256, 300 - 256], [7, 7]):
        assert found.match(CacheScope(), [*ids, 7, 7, 1]) == []
    # The same second page is another page after another first one.
    assert [n.page for n in found.match(CacheScope(), [1000, 1000, 7, 7, 1])] == [
        n.page for n in found.match(CacheScope(), [1000, 1000, 7, 7, 2])
    ]
    assert len({found.match(CacheScope(), [*f, 7, 7, 1])[1].page for f in ([300, 300], [1000, 1000])}) == 2


def test_cac_04_evicted_pages_are_never_found(engine: Engine, solo: Solo) -> None:
    rng = random.Random(4)
    head = prompt(99, 32)
    prompts = [prompt(i, 56) for i in range(3)] + [[*head, *prompt(i, 24)] for i in range(3, 6)]
    hits = 0
    for turn in range(150):
        wanted = {f"{turn}-{i}": rng.choice(prompts) for i in range(rng.randint(1, 3))}
        got: dict[str, list[int]] = {name: [] for name in wanted}
        for name, ids in wanted.items():
            engine.add(name, ids, GREEDY)
        victim = rng.choice(list(wanted)) if rng.random() < 0.2 else None
        while engine.has_unfinished:
            for output in engine.step():
                got[output.request_id] += tokens([output])
                hits += output.num_cached_tokens
            check_pages(engine)
            if victim is not None and rng.random() < 0.3:
                engine.abort(victim)
        for name, ids in wanted.items():
            assert got[name] == (solo(ids)[: len(got[name])] if name == victim else solo(ids))
    assert hits > 0
    assert engine.pool.num_evictions > 50


@pytest.mark.parametrize("budget", [64, 32])
@pytest.mark.parametrize("overlap", [True, False])
def test_cac_05_equal_prompts_in_one_step(tiny_folder: Path, solo, budget: int, overlap: bool) -> None:  # type: ignore[no-untyped-def]
    ids = prompt(5, 48)
    engine = tiny_engine(tiny_folder, config={"overlap": overlap}, **{**SMALL, "max_num_batched_tokens": budget})
    results = run(engine, [(ids, GREEDY), (ids, GREEDY), ([*ids, 5], GREEDY)])
    assert [tokens(r) for r in results] == [solo(ids), solo(ids), solo([*ids, 5])]
    # Pages of the first are shared in the very step that fills them, or once it is through.
    assert [r[-1].num_cached_tokens for r in results] == [0, 32, 48]


def test_cac_08_no_page_leaks_however_requests_end(engine: Engine, solo: Solo) -> None:
    rng = random.Random(8)
    for i in range(200):
        length = rng.choice([1, 15, 16, 17, 31, 32, 33, 48])
        params = SamplingParams(
            n=rng.choice([1, 1, 3]),  # some of which end before the others
            temperature=rng.choice([0.0, 1.5]),
            max_tokens=rng.choice([0, 1, 3, 16]),
            ignore_eos=rng.random() < 0.5,
            prompt_logprobs=rng.choice([None, None, 1]),
        )
        if rng.random() < 0.1:
            with pytest.raises(RequestError):
                engine.add(str(i), [999], params)
        engine.add(str(i), prompt(rng.randrange(20), length), params)
        for _ in range(rng.randint(0, 3)):
            engine.step()
            check_pages(engine)
        if rng.random() < 0.3:
            engine.abort(str(rng.randint(max(0, i - 4), i)))  # queued, in its prompt, in its answer, or gone
            check_pages(engine)
    while engine.has_unfinished:
        engine.step()
    assert engine.scheduler.running == engine.scheduler.waiting == []
    assert engine.pool.num_available == engine.pool.num_pages
    engine.reset_prefix_cache()
    assert engine.pool.num_kept == 0
    assert engine.pool.num_available == engine.pool.num_pages


def test_cac_09_nothing_is_shared_across_salts_and_adapters(engine: Engine, solo: Solo) -> None:
    ids = prompt(9, 40)
    for salt, expected in ((None, 0), ("a", 0), ("b", 0), ("a", 32), (None, 32), ("b", 32)):
        engine.add("r", ids, GREEDY, cache_salt=salt)
        outputs = []
        while engine.has_unfinished:
            outputs += engine.step()
        assert tokens(outputs) == solo(ids)
        assert outputs[-1].num_cached_tokens == expected, salt
    for wrong in ("", 3):
        with pytest.raises(RequestError, match=r"^cache_salt: "):
            engine.add("r", ids, GREEDY, cache_salt=wrong)  # type: ignore[arg-type]


def test_cac_09_kinds_of_scope_are_kept_apart() -> None:
    pool = PagePool(8, 2)
    found = PrefixCache(pool)
    pages = pool.allocate(2)
    node = found.add(found.root, CacheScope(salt="a"), [1, 2], pages[0])
    found.add(node, CacheScope(salt="a"), [3, 4], pages[1])
    for scope in (CacheScope(), CacheScope(adapter="a"), CacheScope(salt="a", adapter="a"), CacheScope("a", None, 9)):
        assert found.match(scope, [1, 2, 3, 4, 5]) == []
    assert len(found.match(CacheScope(salt="a"), [1, 2, 3, 4, 5])) == 2


def test_cac_09_rotations_that_depend_on_the_prompts_length_are_part_of_the_key(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, "llama_dynamic", **SMALL)
    assert [engine.manager.spec.rope_length(n) for n in (1, 32, 33)] == [32, 32, 33]
    short, long = prompt(9, 32), prompt(9, 50)
    for ids, expected in ((short, 0), (long, 0), (short[:30], 16), (long[:49], 0), (long, 48)):
        [alone] = run(tiny_engine(tiny_folder, "llama_dynamic", **SOLO), [(ids, GREEDY)])
        assert cached(engine, ids) == (tokens(alone), expected)
