"""Structured output, bad words and end tokens in the engine: the cases of public bug reports, in the small geometry."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from headrace.engine.engine import Engine, TokenOutput
from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.state import compute_mask
from structured.documents import check_document
from structured.schemas import random_schema
from tiny import SMALL, FailsOnce, check_pages, run, text, tiny_engine, tokens

GEOMETRY: dict[str, Any] = {**SMALL, "max_model_len": 128, "max_num_batched_tokens": 33}  # 12 pages of 16 tokens
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog", "no pet"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 4},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}
PLAIN = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
FORM = SamplingParams(temperature=1, seed=3, max_tokens=80, structured_outputs=StructuredOutputs(json=SCHEMA))
EOS = 2

Case = tuple[Sequence[int], SamplingParams]


def engine_of(folder: Path, *, overlap: bool = True) -> Engine:
    return tiny_engine(folder, config={"overlap": overlap}, **GEOMETRY)


def solo(folder: Path, case: Case) -> list[TokenOutput]:
    return run(engine_of(folder), [case])[0]


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 256) for _ in range(length)]


def byte_ids(engine: Engine, word: str) -> list[int]:
    return engine.tokenizer.encode(word)


def check_form(outputs: list[TokenOutput]) -> None:
    """The document is whole, fits the schema, and the closing brace was the last token."""
    jsonschema.validate(json.loads(text(outputs)), SCHEMA)
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].text.endswith("}")
    assert len(tokens(outputs)) == len(text(outputs))  # one token for each byte, and none after them


@pytest.mark.parametrize("overlap", [True, False])
def test_sch_06_masks_reach_their_rows_whatever_becomes_of_the_others(tiny_folder: Path, overlap: bool) -> None:
    """Two forms and three plain rows: one begins in the middle of a prefill, one is preempted, one aborted."""
    cases: dict[str, Case] = {
        "plain": (prompt(0, 40), PLAIN),
        "form": (prompt(1, 30), FORM),
        "aborted": (prompt(2, 20), PLAIN),
        "long form": (prompt(3, 70), replace(FORM, seed=4, temperature=0)),
        "last": (prompt(4, 50), PLAIN),
    }
    engine = engine_of(tiny_folder, overlap=overlap)
    outputs: dict[str, list[TokenOutput]] = {name: [] for name in cases}
    todo = list(cases)
    steps = 0
    while todo or engine.has_unfinished:
        if todo and steps % 4 == 0:
            engine.add(todo[0], *cases[todo.pop(0)])
        if steps == 14:
            engine.abort("aborted")
        for output in engine.step():
            outputs[output.request_id].append(output)
        check_pages(engine)
        steps += 1
    assert engine.scheduler.num_preemptions > 0
    assert 0 < len(outputs.pop("aborted")) < 60
    for name, got in outputs.items():
        assert tokens(got) == tokens(solo(tiny_folder, cases[name])), name
        if "form" in name:
            check_form(got)


def test_sch_03_forms_that_do_not_fit_together_equal_their_solo_results(tiny_folder: Path) -> None:
    cases: list[Case] = [(prompt(i, 62), replace(FORM, seed=i)) for i in range(4)]
    engine = engine_of(tiny_folder)
    for case, outputs in zip(cases, run(engine, cases), strict=True):
        check_form(outputs)
        alone = solo(tiny_folder, case)
        assert [(o.token_id, o.text) for o in outputs] == [(o.token_id, o.text) for o in alone]
    assert engine.scheduler.num_preemptions > 0


def test_a_step_that_fails_advances_no_grammar(tiny_folder: Path) -> None:
    case = prompt(5, 20), FORM
    alone = solo(tiny_folder, case)
    for failing in (1, 2, 9):
        engine = engine_of(tiny_folder)
        engine.manager = FailsOnce(engine.manager, failing, RuntimeError("lost"))  # type: ignore[assignment]
        engine.add("a", *case)
        outputs: list[TokenOutput] = []
        while engine.has_unfinished:
            try:
                outputs += engine.step()
            except RuntimeError:
                continue
        assert tokens(outputs) == tokens(alone)
        check_form(outputs)


def test_documents_of_forty_random_schemas_fit_or_are_cut_off(tiny_folder: Path) -> None:
    """Four at a time in the engine; the model is random, so its strings are too. `bench/json_schemas.py` has 500 on a
    real one."""
    schemas = [schema for schema in map(random_schema, range(90)) if "\\u" not in json.dumps(schema)][:40]
    params = SamplingParams(max_tokens=100, temperature=1)
    cases = [
        (prompt(i, 20), replace(params, seed=i, structured_outputs=StructuredOutputs(json=schema)))
        for i, schema in enumerate(schemas)
    ]
    reasons = []
    for schema, outputs in zip(schemas, run(engine_of(tiny_folder), cases), strict=True):
        reasons.append(outputs[-1].finish_reason)
        if reasons[-1] == "stop":
            check_document(schema, text(outputs))
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") > 20


def test_choices_follow_a_grammar_of_their_own_each(tiny_folder: Path) -> None:
    [outputs] = run(engine_of(tiny_folder), [(prompt(6, 20), replace(FORM, n=4))])
    choices = [[o for o in outputs if o.index == index] for index in range(4)]
    for choice in choices:
        check_form(choice)
    assert len({text(choice) for choice in choices}) > 1


@pytest.mark.parametrize("overlap", [True, False])
def test_bad_words_of_several_tokens_are_banned_with_tokens_in_flight(tiny_folder: Path, overlap: bool) -> None:
    engine, ids = engine_of(tiny_folder, overlap=overlap), prompt(7, 20)
    free = tokens(solo(tiny_folder, (ids, PLAIN)))
    pairs = [(i, free[i : i + 2]) for i in range(5, 30)]
    first, pair = next((i, pair) for i, pair in pairs if all(chr(byte).isascii() for byte in _bytes(engine, pair)))
    word = _bytes(engine, pair).decode()
    got, beside = run(engine, [(ids, replace(PLAIN, bad_words=[word])), (prompt(8, 20), PLAIN)])
    begin = next(i for i in range(60) if free[i : i + 2] == pair)
    assert begin <= first
    assert tokens(got)[: begin + 1] == free[: begin + 1]
    assert all(tokens(got)[i : i + 2] != pair for i in range(60))
    assert tokens(beside) == tokens(solo(tiny_folder, (prompt(8, 20), PLAIN)))


def _bytes(engine: Engine, ids: Sequence[int]) -> bytes:
    return b"".join(map(engine.tokenizer.token_bytes, ids))


def test_rules_that_leave_nothing_end_their_request_alone(tiny_folder: Path) -> None:
    """In the middle of a form it is an error; where the form may end, it is its end. No token shows for it."""
    engine = engine_of(tiny_folder)
    a, b = byte_ids(engine, "ab")
    stuck = SamplingParams(structured_outputs=StructuredOutputs(choice=["abc"]), allowed_token_ids=[a, b])
    done = SamplingParams(structured_outputs=StructuredOutputs(regex="ab(c)?"), allowed_token_ids=[a, b], min_tokens=9)
    cases: list[Case] = [(prompt(9, 20), one) for one in (stuck, replace(done, max_tokens=30), PLAIN)]
    (first, second, third) = run(engine, cases)
    assert (tokens(first), text(first), first[-1].finish_reason) == ([a, b], "ab", "error")
    assert first[-1].token_id is None
    assert first[-1].error is not None
    assert "structured_outputs" in first[-1].error
    assert (tokens(second), text(second), second[-1].finish_reason) == ([a, b], "ab", "stop")
    assert second[-1].error is None
    assert tokens(third) == tokens(solo(tiny_folder, cases[2]))


@pytest.mark.parametrize("failing", [1, 2, 9])
def test_a_mask_that_fails_ends_its_request_alone(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The 1st mask of all is made when the form is compiled, so the engine has it before."""
    engine, calls = engine_of(tiny_folder), []
    cases: list[Case] = [(prompt(1, 20), FORM), (prompt(2, 20), PLAIN), (prompt(3, 20), replace(FORM, seed=5))]
    for case in cases:
        engine.check(*case)
    alone = [solo(tiny_folder, case) for case in cases]

    def fails_once(matcher: Any, *args: Any) -> np.ndarray:
        calls.append(matcher)
        if len(calls) == failing:
            raise RuntimeError("no mask")
        return compute_mask(matcher, *args)

    monkeypatch.setattr("headrace.structured.state.compute_mask", fails_once)
    results = run(engine, cases)
    failed = [i for i in range(3) if results[i][-1].finish_reason == "error"]
    assert len(failed) == 1
    assert failed != [1]
    for i, (got, expected) in enumerate(zip(results, alone, strict=True)):
        if i in failed:
            assert got[-1].error == "the grammar failed: RuntimeError: no mask"
            assert tokens(got) == tokens(expected)[: len(tokens(got))]
        else:
            assert tokens(got) == tokens(expected)


def test_an_ambiguous_grammar_fails_alone(tiny_folder: Path) -> None:
    form = StructuredOutputs(grammar='start: "a" | "b" | start start | start start start')
    params = SamplingParams(temperature=0, max_tokens=100, min_tokens=100, structured_outputs=form)
    cases: list[Case] = [(prompt(1, 20), params), (prompt(2, 20), PLAIN), (prompt(3, 20), FORM)]
    first, *others = run(engine_of(tiny_folder), cases)
    assert first[-1].finish_reason == "error"
    assert first[-1].error is not None
    assert first[-1].error.startswith("the grammar failed: ")
    assert 32 < len(tokens(first)) < 100
    assert set(text(first)) <= {"a", "b"}
    for case, outputs in zip(cases[1:], others, strict=True):
        assert tokens(outputs) == tokens(solo(tiny_folder, case))


def test_a_form_that_cannot_be_held_to_is_refused_and_its_neighbour_does_not_notice(tiny_folder: Path) -> None:
    engine, case = engine_of(tiny_folder), (prompt(0, 40), PLAIN)
    engine.add("plain", *case)
    outputs = engine.step()
    wrong = SamplingParams(structured_outputs=StructuredOutputs(json={"type": "array", "uniqueItems": True}))
    for refuse in (engine.check, lambda *a: engine.add("wrong", *a)):
        with pytest.raises(RequestError, match=r"structured_outputs.json: Unimplemented keys"):
            refuse([5, 6], wrong)
    while engine.has_unfinished:
        outputs += engine.step()
    assert tokens(outputs) == tokens(solo(tiny_folder, case))


@pytest.mark.parametrize("forced", ["eos", "stop token", "eos of a form"])
@pytest.mark.parametrize("min_tokens", [0, 1, 5])
def test_sam_08_no_end_token_among_the_first_and_then_at_once(tiny_folder: Path, forced: str, min_tokens: int) -> None:
    """The ban beats a bias of +100 on the end token."""
    end = 99 if forced == "stop token" else EOS
    form = StructuredOutputs(regex="[a-z]*") if forced == "eos of a form" else None
    params = SamplingParams(
        temperature=0, max_tokens=20, min_tokens=min_tokens, logit_bias={end: 100}, structured_outputs=form,
        stop_token_ids=[99] if end == 99 else (),
    )  # fmt: skip
    [outputs, beside] = run(engine_of(tiny_folder), [(prompt(1, 20), params), (prompt(2, 20), PLAIN)])
    assert end not in tokens(outputs)[:-1]
    assert (len(tokens(outputs)), tokens(outputs)[-1]) == (min_tokens + 1, end)
    assert outputs[-1].finish_reason == "stop"
    assert tokens(beside) == tokens(solo(tiny_folder, (prompt(2, 20), PLAIN)))


def test_sam_08_ignored_end_tokens_are_sampled_but_not_within_min_tokens(tiny_folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=3, ignore_eos=True, logit_bias={EOS: 100})
    [outputs] = run(engine_of(tiny_folder), [(prompt(1, 20), params)])
    assert EOS not in tokens(outputs)[:3]
    assert tokens(outputs)[3:] == [EOS] * 5
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logit_bias": {"256": 100}}, "logit_bias"),
        ({"logit_bias": {"-1": 100}}, "logit_bias"),
        ({"allowed_token_ids": [256]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"stop_token_ids": [256]}, "stop_token_ids"),
    ],
)
def test_sam_09_ids_that_are_no_tokens_are_refused(tiny_folder: Path, params: dict[str, Any], field: str) -> None:
    engine = engine_of(tiny_folder)
    engine.add("plain", prompt(0, 40), PLAIN)
    with pytest.raises(RequestError, match=f"^{field}: "):
        engine.add("wrong", [5], SamplingParams(**params))
    outputs: list[TokenOutput] = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert tokens(outputs) == tokens(solo(tiny_folder, (prompt(0, 40), PLAIN)))
