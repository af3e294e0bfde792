from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.rules import TokenRules
from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.compiler import GrammarCompiler
from headrace.text.definition import TokenizerDefinition
from headrace.text.tokenizer import Tokenizer
from structured.walks import allowed_ids
from text.vocabularies import byte_level_backend, gguf_tokenizer

TOKENIZER = Tokenizer(TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None))
KNOWN = TOKENIZER.vocab_size
VOCAB = KNOWN + 40  # ids from `KNOWN` on have no token
COMPILER = GrammarCompiler(TOKENIZER, VOCAB)
(Z,) = TOKENIZER.encode("z")
PHRASES = ["the", "dog", " dog", "lazy dog", "fox doesn't", "zzz", "日本語", "x y z", "</s>", "\n"]


def rules_of(**params: Any) -> TokenRules:
    one = SamplingParams(max_tokens=100, **params)
    grammar = None if one.structured_outputs is None else COMPILER.compile(one.structured_outputs).start()
    rules = TokenRules.of(one, TOKENIZER, VOCAB, grammar)
    assert rules is not None
    return rules


def allowed(rules: TokenRules, outputs: list[int], num_samples: int = 1) -> list[set[int]] | None:
    """What may come after `outputs`; None if nothing is forbidden."""
    constraint = rules.constraint(outputs, len(outputs), num_samples)
    if constraint is None or constraint.allowed is None:
        return None
    assert constraint.allowed.shape == (num_samples, -(-VOCAB // 32))
    assert constraint.allowed.dtype == np.uint32
    return [set(allowed_ids(row)) for row in constraint.allowed]


def test_nothing_asked_for_is_no_rules() -> None:
    assert TokenRules.of(SamplingParams(stop="x", ignore_eos=True), TOKENIZER, VOCAB, None) is None
    assert TokenRules.of(SamplingParams(logit_bias={}), TOKENIZER, VOCAB, None) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    outputs=st.lists(st.integers(0, KNOWN - 1), max_size=12),
    phrase=st.sampled_from(PHRASES),
    words=st.lists(st.sampled_from(PHRASES), max_size=4),
    ids=st.none() | st.sets(st.integers(0, KNOWN - 1), min_size=1),
    min_tokens=st.integers(0, 14),
    stops=st.lists(st.integers(0, KNOWN - 1), max_size=2),
    ignore_eos=st.booleans(),
)
def test_masks_are_those_of_the_rules_in_words(outputs, phrase, words, ids, min_tokens, stops, ignore_eos) -> None:  # type: ignore[no-untyped-def]
    """Against sets: vLLM's rule for bad words, and its ban of all end tokens within the first `min_tokens`."""
    outputs = (outputs + TOKENIZER.encode(phrase))[-14:]
    first = set(range(KNOWN)) if ids is None else set(ids)
    written = [w for word in words for w in ((word.lstrip(), " " + word.lstrip()) if word.strip() else (word,))]
    first -= {TOKENIZER.encode(w)[0] for w in written if len(TOKENIZER.encode(w)) == 1}
    expected = set(first)
    for *before, last in map(TOKENIZER.encode, written):
        if len(before) <= len(outputs) and outputs[len(outputs) - len(before) :] == before:
            expected.discard(last)
    ends = {1, 2, *stops}
    if len(outputs) < min_tokens:
        expected -= ends
    params: dict[str, Any] = {"bad_words": words, "min_tokens": min_tokens, "stop_token_ids": stops}
    params |= {"allowed_token_ids": ids and sorted(ids), "ignore_eos": ignore_eos, "logit_bias": {3: 1.5}}
    if not (first - ends if min_tokens else first):
        with pytest.raises(RequestError, match="leaves no token"):
            rules_of(**params)
        return
    rules = rules_of(**params)
    got = allowed(rules, outputs)
    assert got == [expected] or (got is None and expected == set(range(KNOWN)))
    assert (rules.error is not None) == (not expected)
    assert not rules.is_complete
    assert rules.waits_for_tokens == any(len(TOKENIZER.encode(w)) > 1 for w in written)


def test_bad_words_look_at_the_output_alone_and_at_all_of_the_word() -> None:
    *before, last = TOKENIZER.encode("fox doesn't")
    assert len(before) >= 2
    rules = rules_of(bad_words=["fox doesn't"])
    for outputs, is_banned in ((before, True), (before[1:], False), ([9, *before], True), ([*before, 9], False)):
        ((ids),) = allowed(rules, outputs) or [set()]
        assert (last in ids) != is_banned
    ((ids),) = allowed(rules, []) or [set()]
    assert ids == set(range(KNOWN))


def test_several_samples_of_one_step_have_a_mask_each() -> None:
    rules = rules_of(min_tokens=5)
    assert not rules.waits_for_tokens
    assert allowed(rules, [9] * 3, 4) == [set(range(KNOWN)) - {1, 2}] * 2 + [set(range(KNOWN))] * 2
    assert allowed(rules, [9] * 5, 4) is None
    # The output's last tokens may still be unknown to rules that do not wait for them.
    constraint = rules.constraint([9], 3, 1)
    assert constraint is not None
    assert constraint.allowed is not None


def test_bias_alone_is_no_mask() -> None:
    rules = rules_of(logit_bias={"7": -100, 9: 2.5})
    constraint = rules.constraint([], 0, 1)
    assert constraint is not None
    assert constraint.allowed is None
    assert constraint.bias is not None
    ids, values = constraint.bias
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == {7: -100.0, 9: 2.5}


def test_another_continuation_begins_anew() -> None:
    """Whatever becomes of the rules that it was made from, or of itself."""
    form, (x, y) = StructuredOutputs(regex="[xyz]+"), TOKENIZER.encode("xy")
    params: dict[str, Any] = {"structured_outputs": form, "bad_words": ["xy"], "min_tokens": 2, "logit_bias": {x: 1}}
    one, fresh = rules_of(**params), [rules_of(**params) for _ in range(3)]
    first, after = allowed(one, []), allowed(one, [x])
    for outputs in ([], [x], [x, Z]):
        other = one.another(COMPILER.compile(form).start())
        assert other.waits_for_tokens
        assert allowed(other, []) == first
        for token in outputs:
            other.accept(token)
        expected = fresh.pop()
        for token in outputs:
            expected.accept(token)
        assert allowed(other, outputs) == allowed(expected, outputs)
    broken = one.another(COMPILER.compile(form).start())
    broken.accept(TOKENIZER.encode("q")[0])
    assert broken.error is not None
    assert broken.another(COMPILER.compile(form).start()).error is None
    assert one.error is None
    assert (allowed(one, []), allowed(one, [x])) == (first, after)
    assert after is not None
    assert y not in after[0]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": TOKENIZER.encode("zz")[:1], "bad_words": ["z"]}, "allowed_token_ids"),
        ({"stop_token_ids": range(KNOWN), "min_tokens": 1}, "stop_token_ids"),
        ({"stop_token_ids": sorted({*range(KNOWN)} - {Z}), "min_tokens": 1, "bad_words": ["z"]}, "stop_token_ids"),
    ],
)
def test_rules_that_leave_nothing_to_begin_with_are_refused(params: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"{field}: leaves no token"):
        rules_of(**params)


def test_rules_that_leave_nothing_later_say_so() -> None:
    first, last = TOKENIZER.encode("zq")
    rules = rules_of(allowed_token_ids=[first, last], bad_words=["zq", "zz"])
    assert allowed(rules, []) == [{first, last}]
    assert allowed(rules, [first]) == [set()]
    assert rules.error is not None
    assert "bad_words" in rules.error


class TestWithGrammar:
    """What a grammar and the other rules make of each other."""

    def follow(self, text: str, **params: Any) -> tuple[TokenRules, list[int]]:
        """Rules that took these bytes, and the tokens taken."""
        rules, outputs = rules_of(**params), []
        for token in TOKENIZER.encode(text):
            assert token in (allowed(rules, outputs) or [set()])[0]
            rules.accept(token)
            outputs.append(token)
        return rules, outputs

    def test_it_is_complete_with_the_last_token(self) -> None:
        rules, outputs = self.follow('{"a":1', structured_outputs=StructuredOutputs(json={"enum": [{"a": 1}]}))
        assert rules.waits_for_tokens
        assert not rules.is_complete
        (ids,) = allowed(rules, outputs) or [set()]
        assert {TOKENIZER.token_bytes(id) for id in ids} == {b"}"}
        rules.accept(ids.pop())
        assert rules.is_complete
        assert rules.error is None

    def test_end_tokens_come_only_where_it_accepts(self) -> None:
        (stop,) = TOKENIZER.encode("q")
        for text, accepts in (("a", False), ("ab", True), ("abb", True)):
            rules, outputs = self.follow(text, structured_outputs=StructuredOutputs(regex="ab+"), stop_token_ids=[stop])
            (ids,) = allowed(rules, outputs) or [set()]
            assert ids & {1, 2, stop} == ({1, 2, stop} if accepts else set())

    def test_an_end_token_is_not_taken_by_it(self) -> None:
        rules, _ = self.follow("ab", structured_outputs=StructuredOutputs(regex="ab+"))
        rules.accept(1)
        assert rules.error is None

    def test_min_tokens_holds_the_end_back_while_there_is_more_to_say(self) -> None:
        form = StructuredOutputs(regex="a+")
        (a,) = TOKENIZER.encode("a")
        rules = rules_of(structured_outputs=form, min_tokens=3, allowed_token_ids=[a, 1])
        for count in range(5):
            assert allowed(rules, [a] * count) == [{a} if count < 3 else {a, 1}]
            rules.accept(a)

    def test_min_tokens_does_not_outlast_it(self) -> None:
        rules, _ = self.follow("a", structured_outputs=StructuredOutputs(choice=["a"]), min_tokens=9)
        assert rules.is_complete

    def test_where_only_the_end_would_be_left_and_is_forbidden_it_is_complete(self) -> None:
        (a,) = TOKENIZER.encode("a")
        rules = rules_of(structured_outputs=StructuredOutputs(regex="a(b+)?"), allowed_token_ids=[a], min_tokens=9)
        rules.accept(a)
        assert not rules.is_complete
        assert allowed(rules, [a]) == [set()]
        assert rules.is_complete
        assert rules.error is None

    def test_where_nothing_is_left_in_the_middle_it_is_an_error(self) -> None:
        (a,) = TOKENIZER.encode("a")
        rules = rules_of(structured_outputs=StructuredOutputs(choice=["ab"]), allowed_token_ids=[a])
        rules.accept(a)
        assert allowed(rules, [a]) == [set()]
        assert not rules.is_complete
        assert rules.error is not None
        assert "structured_outputs" in rules.error

    def test_ignore_eos_lets_it_run_on(self) -> None:
        rules, outputs = self.follow("a", structured_outputs=StructuredOutputs(regex="a+"), ignore_eos=True)
        (ids,) = allowed(rules, outputs) or [set()]
        assert ids
        assert not ids & {1, 2}

    def test_bad_words_hold_within_it(self) -> None:
        z, _ = TOKENIZER.encode("zq")
        rules = rules_of(structured_outputs=StructuredOutputs(choice=["zq", "zz"]), bad_words=["zq"])
        rules.accept(z)
        assert allowed(rules, [z]) == [{z}]

    def test_a_failure_of_it_is_the_error(self) -> None:
        rules = rules_of(structured_outputs=StructuredOutputs(choice=["ab"]))
        rules.accept(TOKENIZER.encode("x")[0])
        assert rules.error is not None
        assert rules.error.startswith("the grammar failed")
        assert not rules.is_complete


def test_sam_10_ids_beyond_the_tokenizer_are_never_allowed(smollm2_path: Path) -> None:
    tokenizer = gguf_tokenizer(smollm2_path)
    vocab_size = tokenizer.vocab_size + 64
    compiler = GrammarCompiler(tokenizer, vocab_size)
    for params in (
        SamplingParams(min_tokens=1),
        SamplingParams(bad_words=["x"]),
        SamplingParams(structured_outputs=StructuredOutputs(json=True)),
        SamplingParams(structured_outputs=StructuredOutputs(regex="(?s:.*)")),
    ):
        form = params.structured_outputs
        rules = TokenRules.of(params, tokenizer, vocab_size, None if form is None else compiler.compile(form).start())
        assert rules is not None
        constraint = rules.constraint([], 0, 1)
        assert constraint is not None
        assert constraint.allowed is not None
        assert max(allowed_ids(constraint.allowed[0])) < tokenizer.vocab_size
