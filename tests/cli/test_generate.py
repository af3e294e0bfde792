"""`headrace generate`, `bench` and `models`, on tiny models."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.command import QUICK, Cli, cli, finish, start
from headrace import LLM, SamplingParams
from headrace.benchmark.throughput import measure
from headrace.weights.known import KNOWN_MODELS
from tiny import write_model

__all__ = ["cli"]

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]"
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
ANSWER = ("--max-tokens", "20", "--ignore-eos")


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def llm(chat_folder: Path) -> LLM:
    """With the options of the command line."""
    return LLM(str(chat_folder), dtype="float32", max_num_batched_tokens=64, max_num_seqs=1)


def test_the_answer_goes_to_stdout_and_all_else_to_stderr(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    outcome = cli("generate", chat_folder, *QUICK, *ANSWER, "--prompt", "Hi")
    expected = llm.chat([{"role": "user", "content": "Hi"}], GREEDY)
    assert (outcome.code, outcome.out) == (0, expected.text + "\n")
    assert outcome.err.startswith(f"model {chat_folder} (llama")
    assert "ready in" in outcome.err


def test_a_system_message_comes_first(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    outcome = cli("generate", chat_folder, *QUICK, *ANSWER, "--prompt", "Hi", "--system", "Be brief")
    expected = llm.generate("[system]Be brief[user]Hi[a]", GREEDY)[0].text
    assert outcome.out == expected + "\n"


def test_raw_continues_the_prompt_itself(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    outcome = cli("generate", chat_folder, *QUICK, *ANSWER, "--prompt", "Hi", "--raw")
    assert outcome.out == llm.generate("Hi", GREEDY)[0].text + "\n"


def test_sampling_options_reach_the_sampler(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    options = ("--temperature", 2, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.01, "--seed", 7)
    params = SamplingParams(temperature=2.0, top_k=50, top_p=0.9, min_p=0.01, seed=7, max_tokens=20, ignore_eos=True)
    text = llm.generate("Hi", params)[0].text
    outcome = cli("generate", chat_folder, *QUICK, *ANSWER, "--prompt", "Hi", "--raw", *options)
    assert outcome.out == text + "\n"
    stop = text[4:6]
    outcome = cli("generate", chat_folder, *QUICK, *ANSWER, "--prompt", "Hi", "--raw", *options, "--stop", stop)
    assert outcome.out == text[: text.index(stop)] + "\n"


def test_other_parameters_reach_the_request(cli: Cli, chat_folder: Path, llm: LLM, tmp_path: Path) -> None:
    """Each by what it does: whatever the weights, a bias of 100 decides."""
    a, b = (llm.tokenizer.encode(text)[0] for text in "ab")

    def run(*options: object) -> str:
        outcome = cli("generate", chat_folder, *QUICK, "--prompt", "Hi", "--raw", "--max-tokens", 4, *options)
        assert outcome.code == 0, outcome.err
        return outcome.out.removesuffix("\n")

    always_a = ("--logit-bias", f"{a}=100", "--logit-bias", f"{b}=50")
    assert run(*always_a) == "aaaa"
    assert run(*always_a, "--bad-words", "aa") == "abab"
    assert run("--allowed-token-ids", a, "--stop-token-ids", a) == ""
    assert run("--allowed-token-ids", a, "--stop-token-ids", a, "--include-stop-str-in-output") == "a"
    assert run(*always_a, "--stop", "aa", "--include-stop-str-in-output") == "aa"
    assert run(*always_a, "--stop", "a", "--min-tokens", 3) == "aaa"
    assert run(*always_a, "--regex", "a{2}") == "aa"
    assert run(*always_a, "--choice", "cab", "--choice", "cat") == "cab"
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"const": 7}')
    assert run("--json-schema", schema) == "7"
    grammar.write_text('start: "xyz"')
    assert run("--grammar", grammar) == "xyz"
    assert run("--json-object").startswith("{")
    cut_off = cli("generate", chat_folder, *QUICK, "--prompt", "Hi", "--raw", "--max-tokens", 4, "--regex", "a{5}")
    assert (cut_off.code, cut_off.out) == (0, "aaaa\n")
    assert cut_off.err.splitlines()[-1] == "headrace: cut off before it was complete; raise --max-tokens"
    assert run(*always_a, "--echo", "--truncate-prompt-tokens", 1) == "iaaaa"
    assert run(*always_a, "--speculative-tokens", 3) == "aaaa"


def test_several_answers_and_log_probabilities(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    options = (*ANSWER, "--temperature", 1, "--seed", 5, "--logprobs", 1, "--presence-penalty", 2)
    options += ("--frequency-penalty", 1, "--repetition-penalty", 1.5, "--prompt", "Hi", "--raw")
    params = replace(GREEDY, n=4, temperature=1, seed=5, logprobs=1)
    params = replace(params, presence_penalty=2, frequency_penalty=1, repetition_penalty=1.5)
    [result] = llm.generate(["Hi"], params)
    expected = []
    for choice in result.outputs:
        expected += [f"--- {choice.index + 1} of 4, length", *choice.text.split("\n")]
        expected += [f"{one.logprob:9.3f} {one.rank:6} " for one in choice.logprobs if one]
    lines = cli("generate", chat_folder, *QUICK, *options, "--n", 4).out.removesuffix("\n").split("\n")
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected
    one, first = cli("generate", chat_folder, *QUICK, *options, "--echo").out, result.outputs[0]
    assert one.startswith(f"Hi{first.text}\n")
    assert len(one[len(first.text) + 3 :].splitlines()) == 1 + 20  # the second token of the prompt, and the answer's


def test_without_a_template_the_prompt_is_continued_and_a_system_message_refused(
    cli: Cli, tiny_folder: Path, llm: LLM
) -> None:
    outcome = cli("generate", tiny_folder, *QUICK, *ANSWER, "--prompt", "Hi")
    assert outcome.out == llm.generate("Hi", GREEDY)[0].text + "\n"
    outcome = cli("generate", tiny_folder, *QUICK, *ANSWER, "--prompt", "Hi", "--system", "x")
    assert outcome.error.endswith("has no chat template, so it cannot take a system message")


def test_a_reader_that_leaves_early_causes_no_traceback(chat_folder: Path) -> None:
    process = start("generate", chat_folder, *QUICK, "--max-tokens", 200, "--ignore-eos", "--prompt", "Hi")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    outcome = finish(process)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert "BrokenPipe" not in outcome.err


def test_throughput_writes_the_figures_that_it_promises(cli: Cli, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    sizes = ("--batch-sizes", "1,2", "--prompt-tokens", 8, "--output-tokens", 32)
    outcome = cli("bench", "throughput", tiny_folder, *QUICK, *sizes, "--json", file)
    assert outcome.code == 0
    report = json.loads(file.read_text())
    assert set(report) == {
        "model", "dtype", "weights_dtype", "startup_s", "variants_compiled", "compilations_after_warmup",
        "peak_rss_bytes", "results",
    }  # fmt: skip
    promised = (inspect.getdoc(measure) or "").partition("Returns:")[2]
    assert set(re.findall(r"`(\w+)`", promised)) == set(report) | set(report["results"][0])
    assert report["model"] == str(tiny_folder)
    assert report["dtype"] == "float32"
    assert report["compilations_after_warmup"] == 0
    assert report["variants_compiled"] == 2
    assert report["startup_s"] > 0
    assert report["peak_rss_bytes"] > 50e6
    assert [r["batch_size"] for r in report["results"]] == [1, 2]
    for result in report["results"]:
        assert (result["prompt_tokens"], result["output_tokens"]) == (8, 32)
        assert result["prefill_tok_s"] > 0
        assert result["decode_tok_s"] > 0
        assert result["step_ms"] > 0
        assert result["decode_tok_s"] == pytest.approx(result["batch_size"] * 1e3 / result["step_ms"], rel=0.05)
    assert str(tiny_folder) in outcome.out
    assert "0 compilations after warm-up" in outcome.out
    assert len(outcome.out.splitlines()) == 4


def test_startup_writes_the_figures_that_it_promises(cli: Cli, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    outcome = cli("bench", "startup", tiny_folder, *QUICK, "--max-num-seqs", 1, "--runs", 1, "--json", file)
    assert outcome.code == 0
    report = json.loads(file.read_text())
    assert set(report) == {"model", "variants", "cold", "warm"}
    assert report["model"] == str(tiny_folder)
    assert report["variants"][-1][0] == 64
    for one in (*report["cold"], *report["warm"]):
        phases = ["import", "open", "weights", "tokenizer", "state", "compile"]
        assert list(one) == ["first_token", "total", *phases, "peak_bytes"]
        # Both ends may be read at once, on a busy machine.
        assert 0 < sum(one[phase] for phase in phases) < one["total"] <= one["first_token"]
        assert 50e6 < one["peak_bytes"] < 5e9
    assert len(outcome.out.splitlines()) == 4
    assert cli("bench", "startup", tiny_folder, *QUICK, "--max-model-len", 999, "--runs", 1).code == 2


def test_a_file_for_the_figures_that_cannot_be_written_is_refused_before_the_work(cli: Cli, tiny_folder: Path) -> None:
    sizes = ("--batch-sizes", "2", "--prompt-tokens", 8, "--output-tokens", 32)
    outcome = cli("bench", "throughput", tiny_folder, *QUICK, *sizes, "--json", tiny_folder / "no" / "x.json")
    assert "x.json: cannot be written: No such file or directory" in outcome.error
    assert outcome.out == ""


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds one known model, as far as its size tells."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    known = KNOWN_MODELS["smollm2"]
    path = tmp_path / "models" / known.name / known.file
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(known.size)
    return path


def test_models_are_listed_with_where_they_lie(cli: Cli, cached: Path) -> None:
    outcome = cli("models", "list")
    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert set(lines) == set(KNOWN_MODELS)
    assert lines["smollm2"].endswith(f"(Apache-2.0); {cached}")
    assert lines["gemma3-270m"].endswith("not fetched yet")


@pytest.mark.parametrize("command", ["path", "pull"])
def test_what_is_in_the_cache_is_not_fetched(cli: Cli, cached: Path, command: str) -> None:
    outcome = cli("models", command, "smollm2")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{cached}\n", "")


def test_the_path_of_a_folder_is_itself(cli: Cli, tiny_folder: Path) -> None:
    assert cli("models", "path", tiny_folder).out == f"{tiny_folder}\n"
