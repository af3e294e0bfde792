"""The comparison with other engines: when a run's figures begin and end, ratios, table, picture, and turns."""

from __future__ import annotations

import importlib.util
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
# As a package of its own: with its folder on the path its files would stand before the tests' folders.
_spec = importlib.util.spec_from_file_location("peers", BENCH / "peers" / "__init__.py")
assert _spec is not None
sys.modules["peers"] = importlib.util.module_from_spec(_spec)

from peers.engines import HEADRACE, LLAMA_CPP, VLLM, Engine  # noqa: E402
from peers.measure import Comparison, Model  # noqa: E402
from peers.plot import draw  # noqa: E402
from peers.runners.protocol import timing  # noqa: E402
from peers.table import Spread, agreement, best_peer, markdown, ratio  # noqa: E402
from peers.workload import COLD_START, MEMORY, RATES, WARM_START, sample  # noqa: E402

# An engine that takes a millisecond per step, and gives each request a token in each.
RUNNER = f"""
import sys, time
sys.path.insert(0, {str(BENCH / "peers" / "runners")!r})
from protocol import serve

def load(settings):
    if sys.argv[0].endswith("broken.py"):
        raise ValueError("no such model")
    def generate(prompts, outputs):
        left = list(outputs)
        while any(left):
            time.sleep(0.001)
            got = [(i, 100 + more) for i, more in enumerate(left) if more]
            left = [max(more - 1, 0) for more in left]
            yield got
    return generate

serve(load)
"""


def test_decoding_counts_from_when_all_have_a_token_until_one_has_all() -> None:
    # The second prompt is computed while the first request decodes; then two steps of both, and the second's rest.
    steps = [(1.0, [0]), (2.0, [0, 1]), (2.5, [0, 1]), (3.0, [0, 1]), (4.0, [1])]
    assert timing(steps, [4, 4]) == {"seconds": 4.0, "first_s": 2.0, "together_s": 1.0, "together_tokens": 4}
    assert timing([(1.0, [0]), (2.0, [1])], [1, 1])["together_tokens"] == 0  # never together
    assert timing([(1.0, [0, 0]), (2.0, [0, 0])], [4])["together_tokens"] == 2  # two tokens in a step
    with pytest.raises(RuntimeError, match=r"requests got \[1\] tokens, not \[2\]"):
        timing([(1.0, [0])], [2])


def test_every_engine_gets_the_same_requests_and_no_prompt_comes_twice() -> None:
    seen: list[list[list[int]]] = []

    def run(prompts: list[list[int]], outputs: list[int]) -> dict[str, float]:
        seen.append(prompts)
        tokens = sum(outputs)
        return {"seconds": 2.0, "first_s": 0.5, "together_s": 4.0, "together_tokens": tokens, "others": 0.25}

    by_name = {figure.name: figure for figure in RATES}
    assert sample(by_name["prefill, 512 tokens"], run, 1000, 0) == (1024.0, 0.25)
    assert sample(by_name["decode, 8 requests"], run, 1000, 0) == (8 * (64 + 2) / 4.0, 0.25)
    assert sample(by_name["prefill, 512 tokens"], run, 1000, 0)[0] == 1024.0
    assert seen[:3] == seen[4:]
    assert len({str(prompts) for prompts in seen[:4]}) == 4
    assert [len(prompt) for prompt in seen[3]] == [128] * 8


SAMPLES = {
    "decode, 1 request": {"headrace": [200.0, 220.0, 300.0], "llama.cpp": [100.0, 200.0, 200.0], "vllm": [50.0]},
    COLD_START.name: {"headrace": [6.0], "llama.cpp": [1.5], "vllm": [60.0]},
    MEMORY.name: {"llama.cpp": [500.0]},
}


def test_ratios_are_of_each_round_to_the_peer_with_the_best_median() -> None:
    decode = RATES[0]
    assert best_peer(decode, SAMPLES[decode.name]) == "llama.cpp"
    assert ratio(decode, SAMPLES[decode.name]) == Spread(1.5, 1.1, 2.0)
    assert ratio(COLD_START, SAMPLES[COLD_START.name]) == Spread(0.25, 0.25, 0.25)  # four times the time
    assert ratio(MEMORY, SAMPLES[MEMORY.name]) is None
    assert best_peer(decode, {"headrace": [1.0], "vllm": []}) is None
    lines = markdown(SAMPLES, [HEADRACE, LLAMA_CPP], {"vllm": "ended"}).splitlines()
    assert lines[2] == "| decode, 1 request, tok/s | 220 (200–300) | 200 (100–200) | 1.50 (1.10–2.00), llama.cpp |"
    assert lines[3] == "| start to first token, empty cache, s | 6.0 | 1.5 | 0.25, llama.cpp |"
    assert lines[4] == "| peak memory, MB | – | 500 | – |"
    assert lines[-1] == "vllm has no figures, or not all: ended"


def test_it_is_told_whose_tokens_differ() -> None:
    answers = {"headrace": [1, 2, 3], "vllm": [1, 2, 3]}
    assert agreement(answers) == "All continue one text with the same 3 tokens."
    answers["llama.cpp"] = [1, 5, 3]
    assert agreement(answers) == "Of 3 tokens after one text, others than Headrace's: llama.cpp from token 2 on."
    assert agreement({"vllm": [1]}) == ""


def test_bars_of_the_picture_have_the_height_of_their_medians() -> None:
    root = ET.fromstring(draw("<both>", SAMPLES, [HEADRACE, LLAMA_CPP, VLLM]))
    rects = [element for element in root if element.tag.endswith("rect")]
    bars = [float(rect.get("height", "")) for rect in rects[1 + 3 :]]  # after the ground and three legends
    assert len(bars) == 7
    assert bars[1] / bars[0] == pytest.approx(200 / 220, abs=0.01)
    assert bars[2] / bars[0] == pytest.approx(50 / 220, abs=0.01)
    assert bars[0] == pytest.approx(115 * 220 / 300, abs=0.1)  # the largest value, with its bar of errors, fits
    texts = [element.text for element in root if element.tag.endswith("text")]
    assert texts[0] == "<both>"
    assert texts.count("–") == 2


def test_engines_take_turns_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    engines = []
    for name in ("one", "other", "broken"):
        runner = tmp_path / f"{name}.py"
        runner.write_text(RUNNER)
        engines.append(Engine(name, name, str(runner), ("nothing",), batches_continuously=name == "one"))
    comparison = Comparison(dict.fromkeys(engines, Path(sys.executable)), tmp_path)
    figures = [RATES[0], RATES[-1]]
    begin = time.perf_counter()
    results = comparison.measure(Model("m", tmp_path / "m.gguf", tmp_path, 1000, [7], 4), 3, 1, figures)
    seconds = time.perf_counter() - begin
    assert results.answers == {key: [108, 107, 106, 105, 104, 103, 102, 101] for key in ("one", "other")}
    assert results.failures == {"broken": "broken: ValueError: no such model"}
    samples = results.samples
    assert {name: len(values) for name, values in samples[RATES[0].name].items()} == {"one": 3, "other": 3}
    assert all(0 < value < 1000 for values in samples[RATES[0].name].values() for value in values)
    assert {name: len(values) for name, values in samples[RATES[-1].name].items()} == {"one": 2}  # every other round
    assert [list(samples[figure.name]) for figure in (COLD_START, WARM_START, MEMORY)] == [["one", "other"]] * 3
    assert all(0 < samples[COLD_START.name][name][0] < seconds for name in ("one", "other"))
    assert all(1 < samples[MEMORY.name][name][0] < 1000 for name in ("one", "other"))
