"""Pre-tokenizer rules: the words that each makes of the same text."""

from __future__ import annotations

import pytest

from headrace.errors import ModelError
from headrace.text.pretokenizers import PRE_RULES, pre_rule

TEXT = "I'M don't HelloWorld 12345 a/\n\n  b"
GPT2 = ["I", "'", "M", " don", "'t", " HelloWorld", " 12345", " a", "/", "\n\n ", " b"]
WORDS = {
    "gpt-2": GPT2,
    "smollm": [*GPT2[:6], " ", "1", "2", "3", "4", "5", *GPT2[7:]],
    "llama-bpe": ["I", "'M", " don", "'t", " HelloWorld", " ", "123", "45", " a", "/\n\n", " ", " b"],
    "qwen2": ["I", "'M", " don", "'t", " HelloWorld", " ", "1", "2", "3", "4", "5", " a", "/\n\n", " ", " b"],
    "tekken": ["I", "'M", " don", "'t", " Hello", "World", " ", "1", "2", "3", "4", "5", " a", "/\n\n", " ", " b"],
    "gpt-4o": ["I'M", " don't", " Hello", "World", " ", "123", "45", " a", "/\n\n", " ", " b"],
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    spans = [span for _, span in pre_rule(name).split().pre_tokenize_str(TEXT)]
    assert [TEXT[start:end] for start, end in spans] == WORDS[name]


@pytest.mark.parametrize("name", PRE_RULES)
def test_no_rule_loses_text(name: str) -> None:
    text = TEXT + "  naïve e\u0301 日本語 ½ ٣ 🎈\t\r\n "
    spans = [span for _, span in pre_rule(name).split().pre_tokenize_str(text)]
    assert "".join(text[start:end] for start, end in spans) == text


def test_combining_marks_belong_to_the_word_where_the_rule_says_so() -> None:
    def words(name: str) -> int:
        return len(pre_rule(name).split().pre_tokenize_str("xe\u0301x"))

    assert words("qwen2") == 2
    assert words("qwen35") == 1


def test_families_that_take_whole_words_or_nfc() -> None:
    assert {name for name, rule in PRE_RULES.items() if rule.ignore_merges} >= {"llama-bpe", "llama3", "tekken"}
    assert {name for name, rule in PRE_RULES.items() if rule.nfc} == {"qwen2", "qwen35"}
    assert not PRE_RULES["smollm"].adds_bos


@pytest.mark.parametrize("name", [None, "", "default", "klingon"])
def test_an_unknown_rule_is_refused(name: str | None) -> None:
    with pytest.raises(ModelError, match="not a known pre-tokenizer rule"):
        pre_rule(name)
