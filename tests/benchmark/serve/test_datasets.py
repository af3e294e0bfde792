"""What is asked: lengths in tokens, shared beginnings, conversations of a file."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from headrace import ConfigError
from headrace.benchmark.serve.datasets import WORDS, Dataset, Prompt, read_conversations
from text.vocabularies import gguf_tokenizer


def take(dataset: Dataset, count: int, seed: int = 0) -> list[Prompt]:
    return list(islice(dataset.prompts(seed), count))


def test_a_random_text_has_as_many_tokens_as_was_asked(smollm2_path: Path, gemma3_path: Path) -> None:
    assert len(set(WORDS)) == len(WORDS)
    for path in (smollm2_path, gemma3_path):
        tokenizer = gguf_tokenizer(path)
        assert all(len(tokenizer.encode(word, add_bos=False)) == 1 for word in WORDS)
        for prompt in take(Dataset(input_tokens=300, input_spread=0.5), 20):
            assert len(tokenizer.encode(prompt.text, add_bos=False)) == prompt.tokens


def test_lengths_spread_evenly_both_ways() -> None:
    prompts = take(Dataset(input_tokens=10, input_spread=0.5, output_spread=0.25, max_tokens=8), 500)
    assert {p.tokens for p in prompts} == set(range(5, 16))
    assert {p.max_tokens for p in prompts} == set(range(6, 11))
    assert {(p.tokens, p.max_tokens) for p in take(Dataset(input_tokens=1), 50)} == {(1, 128)}
    assert len({p.text for p in prompts}) == 500


def test_the_same_seed_gives_the_same_prompts() -> None:
    for name in ("random", "shared-prefix"):
        assert take(Dataset(name=name), 9, 1) == take(Dataset(name=name), 9, 1) != take(Dataset(name=name), 9, 2)


def test_shared_prefixes() -> None:
    dataset = Dataset(name="shared-prefix", prefixes=3, suffixes=4, prefix_tokens=20, input_tokens=5)
    assert dataset.size == 12
    prompts = take(dataset, 24)
    for prompt in prompts:
        assert prompt.tokens == len(prompt.text.split()) == 25
    for half in (prompts[:12], prompts[12:]):
        beginnings = [tuple(p.text.split()[:20]) for p in half]
        assert sorted(beginnings.count(one) for one in set(beginnings)) == [4, 4, 4]
        assert len({p.text for p in half}) == 12


def conversation(question: str, answer: str, first: str = "human") -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": first, "value": question}, {"from": "gpt", "value": answer}]}


def test_conversations_of_a_file(tmp_path: Path) -> None:
    file, q, a = tmp_path / "sharegpt.json", "q" * 16, "a" * 16
    entries = [
        conversation(q, a),
        conversation("q" * 15, a),  # too short
        conversation(q, "a" * 15),
        conversation("q" * 4099, a),  # 1024 tokens by our guess
        conversation("q" * 4100, a),  # too long
        conversation("r" * 4096, "a" * 4099),
        conversation("r" * 4096, "a" * 4100),  # too long together
        conversation(a, q, "gpt"),
        {"conversations": [{"from": "system", "value": "s"}, *conversation("s" * 20, "t" * 20)["conversations"]]},
        {"conversations": []},
        {"conversations": None},
        {"id": "none"},
        conversation(q, None),
        "text",
    ]
    file.write_text(json.dumps(entries))
    assert len(read_conversations(file)) == 8
    prompts = take(Dataset(name="sharegpt", file=file), 8)
    found = {(p.text[0], p.tokens, p.max_tokens) for p in prompts}
    assert found == {("q", 4, 4), ("q", 1024, 4), ("r", 1024, 1024), ("s", 5, 5)}
    assert prompts[:4] == prompts[4:]  # it begins anew
    assert {p.max_tokens for p in take(Dataset(name="sharegpt", file=file, max_tokens=9), 5)} == {9}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("[", "is no JSON: "),
        ("{}", "is no JSON list of objects with `conversations`"),
        ("[1]", "has no conversation of a question and an answer that fits"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"dataset_file: {re.escape(str(file))}:? .*{re.escape(message)}"):
        Dataset(name="sharegpt", file=file).prompts(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "other"}, "dataset: 'other' is none of random, sharegpt, shared-prefix"),
        ({"name": "sharegpt"}, "dataset_file: goes with --dataset sharegpt"),
        ({"file": Path("x")}, "dataset_file: goes with --dataset sharegpt"),
        ({"input_spread": 1.0}, r"input_spread: 1.0 is not in \[0, 1\)"),
        ({"output_spread": -0.1}, r"output_spread: -0.1 is not in \[0, 1\)"),
    ],
)
def test_wrong_options(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dataset(**fields)
