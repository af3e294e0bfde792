"""The offline API on tiny models: prompts in, texts out, and nothing left behind whatever happens."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
from headrace import LLM, ConfigError, HeadraceError, ModelError, PoolingParams, RequestError, SamplingParams
from headrace.engine.engine import Engine
from headrace.outputs import CompletionOutput, RequestOutput
from tiny import FailsOnce, write_model

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
GOLDEN = golden.load("llama3")
PLAIN: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 64}


@pytest.fixture(scope="module")
def shared_llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_model(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE)
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "min_input_pad": 4, "seed": 0}
    return LLM(str(folder), dtype="float32", **options)


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    yield shared_llm
    assert idle(shared_llm), "the test left something behind"


def idle(llm: LLM) -> bool:
    engine = llm.engine
    engine.pool.check([])
    return not (engine.has_unfinished or engine.scheduler.waiting or engine.scheduler.running)


@pytest.fixture(scope="module")
def plain_llm(tiny_folder: Path) -> LLM:
    """Without a chat template, for one request at a time."""
    return LLM(str(tiny_folder), **PLAIN)


def test_the_answer_is_the_references(llm: LLM) -> None:
    [output] = llm.generate(GOLDEN.prompts[0], replace(GREEDY, max_tokens=24))
    assert output == RequestOutput(
        prompt=None,
        prompt_token_ids=GOLDEN.prompts[0],
        outputs=[
            CompletionOutput(
                index=0,
                text=llm.tokenizer.decode(GOLDEN.continuations[0]),
                token_ids=GOLDEN.continuations[0],
                finish_reason="length",
            )
        ],
    )
    first = output.outputs[0]
    assert (output.text, output.token_ids, output.finish_reason) == (first.text, first.token_ids, first.finish_reason)
    assert (output.logprobs, output.error) == (None, None)
    assert (output.num_prompt_tokens, output.num_output_tokens) == (5, 24)


def test_a_prompt_that_begins_like_an_earlier_one_says_what_was_cached(llm: LLM) -> None:
    first = llm.generate([[9] * 40], GREEDY)[0]
    assert first.num_cached_tokens == 0
    again = llm.generate([[9] * 40, [9] * 20 + [8] * 20], GREEDY)
    assert [o.num_cached_tokens for o in again] == [32, 16]
    assert again[0].token_ids == first.token_ids


def test_a_paused_engine_is_refused_rather_than_waited_for(llm: LLM) -> None:
    llm.engine.pause()
    with pytest.raises(HeadraceError, match="paused"):
        llm.generate("Hello", GREEDY)
    llm.engine.resume()
    assert llm.generate("Hello", GREEDY)[0].finish_reason == "length"


def test_prompts_may_be_text_or_ids_or_a_list_of_both(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Hello")
    one, two = llm.generate("Hello", GREEDY), llm.generate(ids, GREEDY)
    assert one[0].prompt == "Hello"
    assert two[0].prompt is None
    assert one[0].prompt_token_ids == two[0].prompt_token_ids == ids
    assert one[0].token_ids == two[0].token_ids
    both = llm.generate(["Hello", ids, tuple(ids)], GREEDY)
    assert [o.token_ids for o in both] == [one[0].token_ids] * 3
    assert llm.generate([], GREEDY) == []


def test_results_come_in_the_order_of_the_prompts_whatever_ends_first(llm: LLM) -> None:
    prompts = [[7 + i] * (40 - 4 * i) for i in range(10)]
    each = [replace(GREEDY, max_tokens=1 + 5 * (i % 3)) for i in range(10)]
    outputs = llm.generate(prompts, each)
    assert [o.prompt_token_ids for o in outputs] == prompts
    assert [o.num_output_tokens for o in outputs] == [p.max_tokens for p in each]
    assert [o.token_ids for o in outputs] == [
        llm.generate(p, e)[0].token_ids for p, e in zip(prompts, each, strict=True)
    ]


def test_without_parameters_the_defaults_apply(llm: LLM) -> None:
    assert llm.generate("Hello")[0].num_output_tokens <= SamplingParams().max_tokens
    assert len(llm.generate(["Hello", "Bye"], [None, GREEDY])) == 2  # type: ignore[list-item]


def test_a_stream_gives_what_generate_gives(llm: LLM) -> None:
    params = replace(GREEDY, max_tokens=40, temperature=0.8, seed=5)
    [whole] = llm.generate("Once upon", params)
    outputs = list(llm.stream("Once upon", params))
    assert "".join(o.text for o in outputs) == whole.text
    assert [o.token_id for o in outputs] == whole.token_ids
    assert [o.finish_reason for o in outputs] == [None] * 39 + ["length"]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_a_stream_early_frees_what_it_holds(llm: LLM, taken: int) -> None:
    outputs = llm.stream([5] * 50, GREEDY)
    for _ in range(taken):
        next(outputs)
    outputs.close()  # type: ignore[attr-defined]
    assert idle(llm)
    assert llm.generate("Hello", GREEDY)[0].num_output_tokens == 12


def test_a_stream_that_nobody_reads_stands_in_nobodys_way(llm: LLM) -> None:
    forgotten = llm.stream("Hello", GREEDY)
    assert llm.generate("Hello", GREEDY)[0].num_output_tokens == 12
    assert len(list(forgotten)) == 12


def test_other_work_beside_an_open_stream_is_refused_and_the_stream_goes_on(llm: LLM) -> None:
    expected = llm.generate("Hello", GREEDY)[0].token_ids
    outputs = llm.stream("Hello", GREEDY)
    got = [next(outputs).token_id]
    with pytest.raises(HeadraceError, match="a stream of this LLM is still open"):
        llm.generate("Bye", GREEDY)
    with pytest.raises(HeadraceError, match="a stream of this LLM is still open"):
        next(llm.stream("Bye", GREEDY))
    assert got + [o.token_id for o in outputs] == expected


def test_a_chat_is_the_templates_prompt(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = llm.encode_chat(messages)
    assert llm.tokenizer.decode(ids) == "[system]Be brief.[user]Hi[a]"
    assert llm.has_chat_template
    assert llm.chat(messages, GREEDY).token_ids == llm.generate(ids, GREEDY)[0].token_ids


@pytest.mark.parametrize(
    "messages", [[], "Hi", [{"role": "user"}], [{"content": "Hi"}], [{"role": "user", "content": 5}]]
)
def test_a_malformed_chat_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^messages: "):
        llm.chat(messages)


def test_without_a_template_there_is_no_chat(plain_llm: LLM) -> None:
    assert not plain_llm.has_chat_template
    with pytest.raises(ModelError, match="has no chat template; give it a plain prompt"):
        plain_llm.encode_chat([{"role": "user", "content": "Hi"}])
    with pytest.raises(ModelError, match="has no chat template"):
        plain_llm.chat([{"role": "user", "content": "Hi"}])


BAD_PROMPTS: list[Any] = [
    "",
    "a\ud800b",
    [],
    [256],
    [-1],
    [1.5],
    [True],
    [None],
    ["a", 1],
    [[1], ["b"]],
    [[[1]]],
    None,
    5,
    1.5,
    b"abc",
    bytearray(b"abc"),
    [memoryview(b"abc")],
    {"prompt": "a"},
    {1, 2},
    np.array([1, 2]),
    [np.int32(5)],
    [5] * 256,
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=lambda prompt: re.sub(r" at 0x\w+", "", repr(prompt)))
def test_a_wrong_prompt_is_a_request_error(llm: LLM, prompt: Any) -> None:
    if isinstance(prompt, list) and not prompt:
        prompt = [prompt]
    with pytest.raises(RequestError, match=r"^prompt: "):
        llm.generate(prompt, GREEDY)


@pytest.mark.parametrize("prompt", ["", "a\ud800b", [], [256], None, 5, b"abc", ["a"], [5] * 256], ids=repr)
def test_a_wrong_prompt_of_a_stream_is_refused_at_once(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"^prompt: "):
        llm.stream(prompt, GREEDY)


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_wrong_prompt_among_many_runs_none(llm: LLM, place: int) -> None:
    prompts: list[Any] = [[5 + i] * 9 for i in range(6)]
    prompts.insert(place, [999])
    with pytest.raises(RequestError, match="prompt: 999 is not a token id"):
        llm.generate(prompts, GREEDY)
    assert idle(llm)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([GREEDY], "params: 1 given for 2 prompts"),
        ([GREEDY] * 3, "params: 3 given for 2 prompts"),
        ([GREEDY, {"temperature": 0}], "params: must be SamplingParams, not dict"),
        ({"temperature": 0}, "params: must be SamplingParams, not dict"),
        ("ab", "params: must be SamplingParams, not str"),
        (0, "params: must be SamplingParams, not int"),
        ([GREEDY, replace(GREEDY, stop_token_ids=[256])], "stop_token_ids: 256 is not a token id; ids are 0 … 255"),
    ],
)
def test_wrong_parameters_are_refused_and_nothing_runs(llm: LLM, params: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(["a", "b"], params)
    assert idle(llm)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_an_interrupt_in_the_middle_leaves_the_engine_usable(tiny_folder: Path, step: int) -> None:
    llm = LLM(str(tiny_folder), **PLAIN)
    prompts = ["Hello", "Bye"]
    expected = [o.token_ids for o in llm.generate(prompts, GREEDY)]
    engine = llm.engine
    llm.engine = Engine(engine.config, engine.tokenizer, FailsOnce(engine.manager, step, KeyboardInterrupt()))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY)
    assert idle(llm)
    assert [o.token_ids for o in llm.generate(prompts, GREEDY)] == expected


def test_the_summary_is_logged_and_says_what_is_served(tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headrace.llm"):
        llm = LLM(str(tiny_folder), **PLAIN)
    assert llm.built.describe() in caplog.text
    lines = llm.built.describe().splitlines()
    assert lines[0].startswith(f"model {tiny_folder} (llama, {tiny_folder.name}), dtype float32 on ")
    assert lines[1] == "KV cache 4 pages of 16 tokens, longest context 64 tokens, up to 1 requests at once"
    assert lines[2] == "compiled steps (tokens x requests): 8x1"
    assert 0 < llm.built.phases["compile"] < llm.built.startup_s


def test_the_defaults_work(tmp_path: Path) -> None:
    # Everything but the number of steps to compile.
    llm = LLM(str(write_model(tmp_path, "qwen2")), num_tokens_paddings=[512], num_reqs_paddings=[32])
    assert llm.engine.config.dtype == "bfloat16"
    assert llm.engine.manager.options.max_num_seqs == 32
    assert llm.generate("Hello", GREEDY)[0].num_output_tokens == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seqs": 4}, "max_seqs: unknown option"),
        ({"dtype": "int8"}, "dtype: 'int8' is not one of"),
        ({"max_model_len": 257}, "max_model_len: 257 is more than the model's 256"),
        ({"max_compiled_variants": 1}, "max_compiled_variants: [36] steps are to be compiled but the cache holds 1"),
        ({"num_tokens_paddings": [64]}, "num_tokens_paddings: the last size must be 512, not 64"),
    ],
)
def test_wrong_options_are_config_errors(tiny_folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{message}"):
        LLM(str(tiny_folder), **options)


def test_a_model_may_be_a_path_object(tiny_folder: Path) -> None:
    assert LLM(tiny_folder, **PLAIN).engine.config.model == str(tiny_folder)
    with pytest.raises(ModelError, match="there is no such file"):
        LLM(tiny_folder / "missing.gguf")


def test_a_broken_folder_is_a_model_error(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        LLM(str(folder))
    shutil.copy(golden.ROOT / "llama3" / "config.json", folder / "config.json")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        LLM(str(folder))


def test_an_id_that_the_tokenizer_knows_but_the_model_does_not_is_refused(tmp_path: Path) -> None:
    # The model has 256 embeddings; reading beyond them would give another token's.
    backend = write_model(tmp_path) / "tokenizer.json"
    data = json.loads(backend.read_text())
    data["added_tokens"].append({**data["added_tokens"][0], "id": 256, "content": "<extra>"})
    backend.write_text(json.dumps(data))
    engine = LLM(str(tmp_path), **PLAIN).engine
    assert engine.tokenizer.vocab_size == 257
    for ids in ([256], engine.tokenizer.encode("a<extra>")):
        with pytest.raises(RequestError, match="256 is not a token id; ids are 0 … 255"):
            engine.add("x", ids, GREEDY)
    with pytest.raises(RequestError, match="stop_token_ids: 256 is not a token id; ids are 0 … 255"):
        engine.add("x", [5], replace(GREEDY, stop_token_ids=[256]))


@pytest.mark.parametrize("end", ["abort", "wait", "pause abort"])
def test_a_stream_ends_when_its_request_was_ended_elsewhere(llm: LLM, end: str) -> None:
    stream = llm.stream([9] * 20, GREEDY)
    first = next(stream)
    if end == "abort":
        llm.engine.abort(first.request_id)
    else:
        llm.engine.pause("abort" if end == "pause abort" else "wait")
        llm.engine.resume()
    assert list(stream) == []


def test_a_stream_of_a_paused_engine_says_so(llm: LLM) -> None:
    stream = llm.stream([9] * 20, GREEDY)
    next(stream)
    llm.engine.pause("keep")
    with pytest.raises(HeadraceError, match="paused"):
        next(stream)
    llm.engine.resume()


def test_more_prompts_than_may_wait_are_queued_as_there_is_room(tiny_folder: Path) -> None:
    llm = LLM(str(tiny_folder), **{**PLAIN, "max_num_seqs": 2, "max_queued_requests": 1})
    prompts = [[5 + i] * (3 + i) for i in range(6)]
    together = llm.generate(prompts, GREEDY)
    assert [o.token_ids for o in together] == [llm.generate(p, GREEDY)[0].token_ids for p in prompts]


def test_calls_share_prefixes_within_one_salt(llm: LLM) -> None:
    prompt = [7, 8] * 20
    cached = [llm.generate([prompt], GREEDY, cache_salt=salt)[0].num_cached_tokens for salt in (None, "a", "a", None)]
    assert cached == [0, 0, 32, 32]
    assert list(llm.stream(prompt, GREEDY, cache_salt="a"))[-1].num_cached_tokens == 32
    assert list(llm.stream(prompt, GREEDY, cache_salt="b"))[-1].num_cached_tokens == 0
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match=r"^cache_salt: must be a text that is not empty"):
            call(prompt, GREEDY, cache_salt="")


def test_embeddings_are_the_references_in_the_order_of_the_prompts(llm: LLM) -> None:
    want = golden.facts("embeddings")["llama3"]
    prompts = GOLDEN.prompts[:2] * 3
    for pooling in ("mean", "last"):
        raw = [np.array(one[pooling]) for one in want[:2]] * 3
        for right, got in zip(raw, llm.embed(prompts, pooling, normalize=False), strict=True):
            np.testing.assert_allclose(got, right, atol=3e-5)
        for right, got in zip(raw, llm.embed(prompts, pooling), strict=True):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, right / np.linalg.norm(right), atol=1e-5)
    assert llm.embed([]) == []


def test_text_is_embedded_as_generation_reads_it(llm: LLM) -> None:
    [text], [ids] = llm.embed("Hello"), llm.embed(llm.tokenizer.encode("Hello"))
    assert text.tobytes() == ids.tobytes()


def test_wrong_embeddings_are_refused_and_nothing_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"^pooling: must be one of mean, last, not 'max'"):
        llm.embed("Hello", "max")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^prompt: "):
        llm.embed(["Hello", []])
    with pytest.raises(RequestError, match=r"^params: "):
        llm.generate("Hello", PoolingParams())  # type: ignore[arg-type]
