"""Grammars that would keep the library busy for ever, exhaust memory or overflow the stack."""

from __future__ import annotations

import itertools
import json
import signal
import string
import sys
from typing import Any

import pytest

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured import trial as trial_module
from headrace.structured.compiler import GrammarCompiler
from headrace.structured.grammar import grammar_text
from headrace.structured.trial import SCHEMA_ITEMS, GrammarTrial
from text.vocabularies import byte_level_backend, wrap

NAMES = ["".join(letters) for letters in itertools.product(string.ascii_letters, repeat=3)]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = wrap(byte_level_backend())
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def chain(rule: str, length: int) -> str:
    return "start: r0\n" + "".join(rule.format(i, i + 1) for i in range(length)) + f'r{length}: "a"'


HOSTILE: dict[str, dict[str, Any]] = {
    "patterns in allOf": {"json": {"allOf": [{"pattern": f"a{i}"} for i in range(40)]}},
    "multiple of a large prime": {"json": {"type": "integer", "multipleOf": 999_983}},
    "thousands of properties": {"json": {"properties": {name: {} for name in NAMES[:12_000]}}},
    "thousands of objects": {"json": {"anyOf": [{"properties": {name: {}}} for name in NAMES[:5_000]]}},
    "a chain of references": {"json": {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(4_000)} | {"4000": {}},
    }},
    "deep nesting": {"json": json.loads('{"items":' * 300 + "{}" + "}" * 300)},
    "references that go round": {"json": {
        "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    }},
    "optional letters": {"regex": r"\w?" * 50_000},
    "nested repetitions": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "a chain of rules": {"grammar": chain("r{}: r{}\n", 15_000)},
    "a chain of options": {"grammar": chain("r{}: r{}?\n", 15_000)},
    "a rule that never ends": {"grammar": 'start: start "a"'},
    "brackets": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "doubled terminals": {
        "grammar": "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(60)) + 'R60: "a"',
    },
}  # fmt: skip


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused_and_the_next_one_is_not(fields: dict[str, Any], compiler: GrammarCompiler) -> None:
    (field,) = fields
    with pytest.raises(RequestError, match=f"structured_outputs.{field}: "):
        compiler.compile(StructuredOutputs(**fields))
    compiler.compile(StructuredOutputs(choice=[*HOSTILE][: [*HOSTILE.values()].index(fields) + 1]))


def test_nesting_of_any_depth_is_refused_by_name(compiler: GrammarCompiler) -> None:
    """Also where the interpreter's own stack ends, and it has less left than when the schema was read."""

    def deeper(frames: int, outputs: StructuredOutputs) -> None:
        if frames:
            deeper(frames - 1, outputs)
        else:
            compiler.compile(outputs)

    for depth in (*range(860, 1000, 4), 5_000):
        schema = '{"exclusiveMinimum":1,"items":' * depth + "{}" + "}" * depth
        with pytest.raises(RequestError, match=r"structured_outputs.json: "):
            deeper(20, StructuredOutputs(json=schema))


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"enum": NAMES[:20_000]}},
        {"json": {"type": "object", "properties": {name: {"type": "integer"} for name in NAMES[:300]}}},
        {"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 100_000}},
        {"json": {"type": "string", "minLength": 100_000, "maxLength": 200_000}},
        {"regex": "(a|b)*a(a|b){200}"},  # whose automaton has 2^200 states
        {"regex": "(a*)*b"},
        {"choice": NAMES[:4_096]},
        {"choice": ["x" * length for length in range(1, 700)]},
        {"grammar": 'start: "a" | start start'},
    ],
    ids=["enum", "properties", "items", "length", "exponential", "stars", "choices", "prefixes", "ambiguous"],
)
def test_what_is_only_large_is_taken(fields: dict[str, Any], compiler: GrammarCompiler) -> None:
    compiler.compile(StructuredOutputs(**fields))


GOOD = grammar_text(StructuredOutputs(json=True))
BAD = grammar_text(StructuredOutputs(regex="(a"))


def test_a_process_that_was_killed_is_replaced_and_its_pipes_closed() -> None:
    trial = GrammarTrial()
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
    process = trial._process
    assert process is not None
    process.kill()
    process.wait()
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
    assert process.stdin is not None
    assert process.stdin.closed
    assert process.stdout is not None
    assert process.stdout.closed


class Interrupted:
    """A pipe whose next line does not come before an interrupt."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.is_interrupted = pipe, False

    def readline(self) -> bytes:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        line: bytes = self.pipe.readline()
        return line

    def close(self) -> None:
        self.pipe.close()


def test_an_interrupted_trial_does_not_answer_for_the_next() -> None:
    trial = GrammarTrial()
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
    assert trial._process is not None
    trial._process.stdout = Interrupted(trial._process.stdout)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        trial.refusal(BAD, SCHEMA_ITEMS)
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
    refusal = trial.refusal(BAD, SCHEMA_ITEMS)
    assert refusal is not None
    assert "unclosed group" in refusal


def test_a_process_that_ends_or_stands_still_when_it_is_asked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = GrammarTrial()
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
    ask = trial._ask

    for fault in (signal.SIGKILL, signal.SIGSTOP):
        sent = []

        def faulty(question: Any, fault: int = fault, sent: list[int] = sent) -> Any:
            assert trial._process is not None
            if not sent:
                sent.append(fault)
                trial._process.send_signal(fault)
            return ask(question)

        with monkeypatch.context() as patch:
            patch.setattr(trial, "_ask", faulty)
            patch.setattr(trial_module, "WALL_SECONDS", 5.0)
            assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
        assert sent


def test_a_process_that_does_not_start_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = GrammarTrial()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RuntimeError, match="does not start"):
            trial.refusal(GOOD, SCHEMA_ITEMS)
    assert trial.refusal(GOOD, SCHEMA_ITEMS) is None
