"""Pausing, and weights and cached prefixes changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execution.test_swap import A, B
from headrace.engine.engine import Engine, PauseMode, TokenOutput
from headrace.engine.request import Request
from headrace.sampling.params import SamplingParams
from tiny import SMALL, SOLO, FailsOnce, check_pages, run, tiny_engine, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPTS = [[10 + i] * n for i, n in enumerate((40, 17, 5, 33, 20, 30))]


@pytest.fixture(params=[True, False], ids=["overlap", "no overlap"])
def engine(tiny_folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = tiny_engine(tiny_folder, "llama2", config={"overlap": request.param}, **SMALL)
    yield engine
    engine.manager.update_graphs(A)


def solo(folder: Path, prompt: list[int], weights: object = A) -> list[int]:
    alone = tiny_engine(folder, "llama2", **SOLO)
    alone.update_graphs(weights)
    [outputs] = run(alone, [(prompt, GREEDY)])
    alone.update_graphs(A)
    return tokens(outputs)


def begin(engine: Engine, steps: int) -> dict[str, list[TokenOutput]]:
    """Six requests, of which four have a slot, after some steps."""
    got: dict[str, list[TokenOutput]] = {str(i): [] for i in range(len(PROMPTS))}
    for name, prompt in zip(got, PROMPTS, strict=True):
        engine.add(name, prompt, GREEDY)
    for _ in range(steps):
        take(got, engine.step())
    return got


def take(got: dict[str, list[TokenOutput]], outputs: list[TokenOutput]) -> None:
    for output in outputs:
        got[output.request_id].append(output)


def finish(engine: Engine, got: dict[str, list[TokenOutput]]) -> None:
    while engine.has_unfinished:
        take(got, engine.step())
        check_pages(engine)
    assert engine.pool.num_available == engine.pool.num_pages


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_pause_changes_no_token(engine: Engine, tiny_folder: Path, mode: PauseMode, steps: int) -> None:
    got = begin(engine, steps)
    running = {r.request_id for r in engine.scheduler.running}
    take(got, engine.pause(mode))
    check_pages(engine)
    assert engine.is_paused
    ended = {name for name, outputs in got.items() if outputs and outputs[-1].finish_reason}
    if mode == "wait":
        assert running <= ended
        assert engine.scheduler.running == []
        assert {r.request_id for r in engine.scheduler.waiting} == got.keys() - ended
    else:
        assert {r.request_id for r in engine.scheduler.running} == running - ended
    assert engine.step() == []
    engine.add("later", [9] * 20, GREEDY)
    got["later"] = []
    assert engine.step() == []
    engine.resume()
    finish(engine, got)
    for name, prompt in zip(got, [*PROMPTS, [9] * 20], strict=True):
        assert tokens(got[name]) == solo(tiny_folder, prompt)


def test_an_aborting_pause_ends_every_request_with_the_tokens_it_had(engine: Engine, tiny_folder: Path) -> None:
    got = begin(engine, 7)
    take(got, engine.pause("abort"))
    assert not engine.has_unfinished
    assert engine.pool.num_available == engine.pool.num_pages
    for name, prompt in zip(got, PROMPTS, strict=True):
        assert got[name][-1].finish_reason == "abort"
        assert tokens(got[name]) == solo(tiny_folder, prompt)[: len(tokens(got[name]))]
    assert sum(len(tokens(outputs)) for outputs in got.values()) > 4
    engine.resume()
    [again] = run(engine, [(PROMPTS[0], GREEDY)])
    assert tokens(again) == solo(tiny_folder, PROMPTS[0])


def test_an_unknown_mode_is_refused_and_nothing_changes(engine: Engine) -> None:
    with pytest.raises(ValueError, match="mode: 'stop' is not one of wait, abort, keep"):
        engine.pause("stop")  # type: ignore[arg-type]
    assert not engine.is_paused


def test_prefixes_of_old_weights_are_never_found(engine: Engine, tiny_folder: Path) -> None:
    [first] = run(engine, [(PROMPTS[0], GREEDY)])
    engine.update_graphs(B)
    [second] = run(engine, [(PROMPTS[0], GREEDY)])
    assert second[-1].num_cached_tokens == 0
    assert tokens(second) == solo(tiny_folder, PROMPTS[0], B) != tokens(first)
    # Nor those of a request that was under way: its cache is partly of the old weights.
    engine.add("old", PROMPTS[0], GREEDY)
    for _ in range(4):
        engine.step()
    engine.update_graphs(A)
    while engine.has_unfinished:
        engine.step()
    [third] = run(engine, [(PROMPTS[0], GREEDY)])
    assert third[-1].num_cached_tokens == 0
    assert tokens(third) == tokens(first)


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_running_requests_can_be_computed_anew_with_new_weights(
    engine: Engine, tiny_folder: Path, mode: PauseMode
) -> None:
    got = begin(engine, 5)
    take(got, engine.pause(mode))
    engine.update_graphs(B)
    take(got, engine.reset_prefix_cache(recompute_running=True))
    known = {r.request_id: list(r.token_ids) for r in engine.scheduler.waiting}
    engine.resume()
    finish(engine, got)
    # What follows is what the new weights say after the tokens known so far, as if those were the prompt.
    for name, ids in known.items():
        rest = len(PROMPTS[int(name)]) + GREEDY.max_tokens - len(ids)
        alone = tiny_engine(tiny_folder, "llama2", **SOLO)
        alone.update_graphs(B)
        [expected] = run(alone, [(ids, SamplingParams(temperature=0, max_tokens=rest, ignore_eos=True))])
        alone.update_graphs(A)
        assert tokens(got[name])[-rest:] == tokens(expected)


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_fault_13_pages_and_what_is_known_of_them_are_kept_or_lost_together(
    engine: Engine, tiny_folder: Path, mode: PauseMode
) -> None:
    run(engine, [(PROMPTS[0], GREEDY)])
    engine.pause(mode)
    engine.resume()
    [warm] = run(engine, [(PROMPTS[0], GREEDY)])
    assert warm[-1].num_cached_tokens == 32
    assert tokens(warm) == solo(tiny_folder, PROMPTS[0])

    engine.manager = FailsOnce(engine.manager, 1, RuntimeError("lost"))  # type: ignore[assignment]
    engine.add("r", PROMPTS[1], GREEDY)
    with pytest.raises(RuntimeError, match="lost"):
        engine.step()
    engine.abort("r")
    [cold] = run(engine, [(PROMPTS[0], GREEDY)])
    assert cold[-1].num_cached_tokens == 0
    assert tokens(cold) == solo(tiny_folder, PROMPTS[0])


@pytest.mark.parametrize("step", [1, 2, 5, 9, 14])
def test_what_was_known_before_a_step_failed_is_returned_by_the_next_call(
    engine: Engine, tiny_folder: Path, step: int
) -> None:
    got = begin(engine, 5)
    engine.manager = FailsOnce(engine.manager, step, RuntimeError("lost"))  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="lost"):
        engine.pause("wait")
    assert not engine.is_paused
    finish(engine, got)
    for name, prompt in zip(got, PROMPTS, strict=True):
        assert tokens(got[name]) == solo(tiny_folder, prompt)
        assert got[name][-1].finish_reason == "length"


@pytest.mark.parametrize("row", range(4))
def test_an_interrupt_between_two_rows_loses_neither(
    engine: Engine, tiny_folder: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = begin(engine, 9)
    taken: list[str] = []
    append = Request.append

    def interrupted(request: Request, token: int) -> str:
        if len(taken) == row:
            taken.append("now")
            raise KeyboardInterrupt
        taken.append(request.request_id)
        return append(request, token)

    monkeypatch.setattr(Request, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(engine, got)
    finish(engine, got)
    for name, prompt in zip(got, PROMPTS, strict=True):
        assert tokens(got[name]) == solo(tiny_folder, prompt)
