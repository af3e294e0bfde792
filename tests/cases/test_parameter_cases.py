"""The sampling cases of public bug reports, through the engine."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
from headrace import LLM, RequestError, SamplingParams, StructuredOutputs
from headrace.engine.engine import Engine
from random_model import write_random
from smol import END, ENDOFTEXT, RIVER, VOCAB, force
from tiny import SMALL, SOLO, run, tiny_engine, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PROMPT = [5 + i for i in range(40)]


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    return tiny_engine(tiny_folder, **SMALL)


def alone(folder: Path, prompt: list[int], params: SamplingParams) -> list[Any]:
    """What a request gives in an engine of its own, without a cache, in one chunk."""
    [outputs] = run(tiny_engine(folder, config={"prefix_caching": False}, **SOLO), [(prompt, params)])
    return [(o.index, o.token_id, o.text, o.logprobs) for o in outputs]


def test_sam_04_no_parameter_leaks_to_a_neighbour(tiny_folder: Path, engine: Engine) -> None:
    plain = replace(GREEDY, logprobs=2)
    requests = [
        plain,
        replace(plain, temperature=2.0, top_k=3, seed=1, max_tokens=4),
        replace(plain, repetition_penalty=2.0, max_tokens=7),
        replace(plain, temperature=1.0, min_p=0.5, seed=2, max_tokens=3),
        replace(plain, logit_bias={70: 3.0, 71: -100.0}),
        replace(plain, temperature=1.0, seed=99, max_tokens=6),
        replace(plain, presence_penalty=2.0, frequency_penalty=-1.5, max_tokens=8),
        replace(plain, allowed_token_ids=range(60, 90), min_tokens=3, ignore_eos=False),
        replace(plain, bad_words=["ab", "a"], top_p=0.7, temperature=0.7, seed=3),
    ]
    prompts = [[5 + i] * (3 + 4 * i) for i in range(len(requests))]
    solo = [alone(tiny_folder, prompt, one) for prompt, one in zip(prompts, requests, strict=True)]
    for count in (3, 5):
        for order in itertools.islice(itertools.permutations(range(len(requests)), count), 0, None, 211 * count):
            for i, outputs in zip(order, run(engine, [(prompts[i], requests[i]) for i in order]), strict=True):
                assert [(o.index, o.token_id, o.text, o.logprobs) for o in outputs] == solo[i], (order, i)


@pytest.mark.parametrize("n", [1, 4])
def test_sam_05_a_seed_gives_the_same_tokens_in_any_company(tiny_folder: Path, engine: Engine, n: int) -> None:
    seeded = SamplingParams(seed=42, temperature=0.9, max_tokens=16, n=n, ignore_eos=True, logprobs=1)
    other = replace(seeded, seed=None, n=1)
    right = sorted(alone(tiny_folder, PROMPT, seeded), key=lambda output: output[0])

    def check(requests: list[tuple[list[int], SamplingParams]]) -> list[tuple[int, ...]]:
        results = run(engine, requests)
        for (_, params), outputs in zip(requests, results, strict=True):
            if params is seeded:
                got = [(o.index, o.token_id, o.text, o.logprobs) for o in outputs]
                assert sorted(got, key=lambda output: output[0]) == right
        return [tuple(tokens(outputs)) for outputs in results]

    check([(PROMPT, seeded)])
    check([(PROMPT, seeded)])  # its prefix is cached now
    for neighbours in (1, 7):
        before = [(PROMPT[i:], other) for i in range(neighbours)]
        check([*before, (PROMPT, seeded)])  # in other rows, and in other chunks
        check([(PROMPT, seeded), *before])
    check([(PROMPT, seeded), (PROMPT, seeded)])
    first, second = check([(PROMPT, other), (PROMPT, other)])
    assert first != second
    engine.add("r", PROMPT, seeded)
    got: list[Any] = []
    while engine.has_unfinished:
        got += engine.step()
        if len(got) in (3, 11):
            got += engine.reset_prefix_cache(recompute_running=True)  # all of it is computed anew
    assert sorted(((o.index, o.token_id, o.text, o.logprobs) for o in got), key=lambda output: output[0]) == right


@pytest.mark.parametrize("penalty", [1.8, 0.3])
def test_sam_06_the_first_token_sees_the_prompt(engine: Engine, penalty: float) -> None:
    data = golden.load("llama3")
    i = next(i for i, prompt in enumerate(data.prompts) if len(prompt) > 20)
    prompt, logits, lengths = data.prompts[i], data.logits[i].astype(np.float64), range(2, 20)
    params = replace(GREEDY, max_tokens=1, repetition_penalty=penalty, presence_penalty=2, frequency_penalty=2)
    right = []
    for length in lengths:
        row, seen = logits[length - 1], [*{*prompt[:length]}]
        penalised = row.copy()
        penalised[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        right.append(int(penalised.argmax()))
    results = run(engine, [(prompt[:length], params) for length in lengths])
    assert [tokens(outputs)[0] for outputs in results] == right
    assert (right != [row.argmax() for row in logits[1:19]]) == (penalty < 1)


def test_sam_06_the_newest_token_already_counts(engine: Engine) -> None:
    params = replace(GREEDY, repetition_penalty=1.8)
    [outputs] = run(engine, [(PROMPT, params)])
    [free] = run(engine, [(PROMPT, GREEDY)])
    ids = tokens(outputs)
    assert ids != tokens(free)
    # It counts prompt and output alike, so the output so far may as well be prompt.
    each = [(PROMPT + ids[:count], replace(params, max_tokens=1)) for count in range(10)]
    assert [tokens(one)[0] for one in run(engine, each)] == ids


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 1.5), (-1.0, 0.5), (0.0, -2.0)])
def test_sam_06_presence_and_frequency_count_the_output_alone(
    tiny_folder: Path, presence: float, frequency: float
) -> None:
    engine = tiny_engine(tiny_folder, config={"max_logprobs": 256}, max_logprobs=256, **SOLO)
    params = replace(GREEDY, max_tokens=20, presence_penalty=presence, frequency_penalty=frequency, logprobs=256)
    [outputs] = run(engine, [(PROMPT, params)])
    counts = np.zeros(256)
    for output in outputs:
        assert output.logprobs is not None
        logprobs = np.zeros(256)
        for token, logprob in output.logprobs.top:  # before penalties
            logprobs[token] = logprob
        penalised = logprobs - frequency * counts - presence * (counts > 0)
        assert output.token_id == penalised.argmax()
        counts[output.token_id] += 1
    assert (counts > 1).any() == (frequency < 1 and presence < 2)


@pytest.mark.parametrize("end", [END, ENDOFTEXT])
@pytest.mark.parametrize("least", [0, 1, 5])
def test_sam_08_no_end_token_within_min_tokens(smol: LLM, end: int, least: int) -> None:
    [output] = smol.generate(["Hi"], force(end, min_tokens=least, max_tokens=8))
    assert (len(output.token_ids), output.finish_reason) == (least + 1, "stop")
    assert not {END, ENDOFTEXT} & {*output.token_ids[:least]}
    assert output.token_ids[-1] == end


def test_sam_08_nor_a_stop_token_nor_a_stop_string(smol: LLM) -> None:
    [output] = smol.generate(["Hi"], force(RIVER, stop_token_ids=[RIVER], min_tokens=3, max_tokens=8))
    assert (len(output.token_ids), output.finish_reason) == (4, "stop")
    assert RIVER not in output.token_ids[:3]
    assert output.token_ids[3] == RIVER
    [output] = smol.generate(["Hi"], force(RIVER, stop="river", min_tokens=3, max_tokens=8))
    assert (output.text, output.token_ids, output.finish_reason) == (" river river river ", [RIVER] * 4, "stop")


def test_sam_08_ignored_ends_and_impossible_lengths(smol: LLM) -> None:
    [output] = smol.generate(["Hi"], force(END, ignore_eos=True, max_tokens=8))
    assert (output.text, output.token_ids, output.finish_reason) == ("", [END] * 8, "length")
    with pytest.raises(RequestError, match=r"^min_tokens: 9 is more than max_tokens \(4\)"):
        SamplingParams(min_tokens=9, max_tokens=4)


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    *(("logit_bias", {"logit_bias": {key: 100}}) for key in (str(VOCAB), VOCAB, "-1", -1, "abc")),
    *(("logit_bias", {"logit_bias": {"5": value}}) for value in (101, -101, None, "1", float("nan"))),
    *((name, {name: [token]}) for name in ("stop_token_ids", "allowed_token_ids") for token in (VOCAB, -1, 2**31)),
]


@pytest.mark.parametrize(("name", "given"), FOREIGN)
def test_sam_09_ids_that_are_no_token_are_refused_and_nobody_notices(
    smol: LLM, name: str, given: dict[str, Any]
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=3)
    [right] = smol.generate(["Hi"], greedy)
    engine = smol.engine
    engine.add("neighbour", smol.tokenizer.encode("Hi"), greedy)
    outputs = engine.step()
    with pytest.raises(RequestError) as refusal:
        engine.add("bad", [5], SamplingParams(**given))
    assert refusal.value.param == name
    while engine.has_unfinished:
        outputs += engine.step()
    assert tokens(outputs) == right.token_ids
    with pytest.raises(RequestError, match=f"^{name}: "):
        smol.generate(["Hi", "Hi"], [greedy, SamplingParams(**given)])
    assert not engine.has_unfinished


@pytest.fixture(scope="module")
def wide(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model with 128 logits more than its tokenizer has tokens."""
    folder = write_random(tmp_path_factory.mktemp("wide") / "model", "llama3", vocab_size=384)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_folder / name, folder / name)
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "min_input_pad": 4, "max_model_len": 128}
    return LLM(str(folder), dtype="float32", num_tokens_paddings=[16], **options)


@pytest.mark.parametrize("form", [None, StructuredOutputs(json_object=True)])
def test_sam_10_ids_without_a_token_are_never_sampled(wide: LLM, form: StructuredOutputs | None) -> None:
    hot = SamplingParams(temperature=5.0, seed=1, max_tokens=125, n=4, ignore_eos=True, structured_outputs=form)
    [output] = wide.generate([[70]], replace(hot, logprobs=20))
    assert {id for choice in output.outputs for id in choice.token_ids} <= {*range(256)}
    assert form is not None or output.num_output_tokens == 500
    for choice in output.outputs:
        assert choice.text == wide.tokenizer.decode(choice.token_ids)
        assert all(id < 256 for one in choice.logprobs or () if one is not None for id, _ in one.top)
        if form is not None and choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.text), dict)


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_sam_10_such_an_id_is_refused(wide: LLM, name: str) -> None:
    for token in (256, 383):
        with pytest.raises(RequestError, match=rf"^{name}: {token} is not a token id; ids are 0 … 255"):
            wide.generate([[70]], SamplingParams(**{name: {token: 1} if name == "logit_bias" else [token]}))
    with pytest.raises(RequestError, match=r"^prompt: 256 is not a token id"):
        wide.generate([[256]], GREEDY)


def test_every_parameter_at_once(smol: LLM) -> None:
    rng = random.Random(0)
    params = SamplingParams(
        n=2,
        max_tokens=12,
        min_tokens=2,
        temperature=0.9,
        top_p=0.95,
        top_k=50,
        min_p=0.01,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias={RIVER: 5.0, "12": -5.0},  # type: ignore[dict-item]
        allowed_token_ids=[*sorted(rng.sample(range(3, VOCAB), 2000)), RIVER],
        bad_words=["whispered", "the river"],
        stop=["\n\n"],
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        seed=3,
        logprobs=3,
        prompt_logprobs=2,
        echo=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        truncate_prompt_tokens=3,
        priority=-1,
    )
    [output] = smol.generate(["Once upon a time"], params)
    assert output == smol.generate(["Once upon a time"], params)[0]
    assert output.num_prompt_tokens == 3
    for choice in output.outputs:
        assert choice.text == smol.tokenizer.decode([*output.prompt_token_ids, *choice.token_ids], skip_special=False)
        assert {*choice.token_ids} <= {*params.allowed_token_ids}  # type: ignore[misc]
        assert len(choice.logprobs or ()) == 3 + len(choice.token_ids)
