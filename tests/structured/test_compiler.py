from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured import state as state_module
from headrace.structured.compiler import MAX_GRAMMARS, GrammarCompiler
from headrace.structured.trial import GRAMMAR_ITEMS, limits_of
from headrace.text.tokenizer import Tokenizer
from structured.walks import Walker, allowed_ids
from text.vocabularies import byte_level_backend, gguf_tokenizer, wrap


@pytest.fixture
def tokenizer() -> Tokenizer:
    return wrap(byte_level_backend())


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def test_the_grammars_used_last_are_kept(compiler: GrammarCompiler) -> None:
    first, second = StructuredOutputs(choice=["first"]), StructuredOutputs(choice=["second"])
    grammars = compiler.compile(first), compiler.compile(second)
    for i in range(MAX_GRAMMARS - 2):
        compiler.compile(StructuredOutputs(choice=[str(i)]))
    assert compiler.compile(first) is grammars[0]
    compiler.compile(StructuredOutputs(choice=["one more"]))
    assert compiler.compile(first) is grammars[0]
    assert compiler.compile(second) is not grammars[1]


def test_refusals_take_no_room_from_grammars(compiler: GrammarCompiler) -> None:
    good = StructuredOutputs(choice=["good"])
    grammar = compiler.compile(good)
    for i in range(MAX_GRAMMARS + 1):
        with pytest.raises(RequestError):
            compiler.compile(StructuredOutputs(regex=f"({i}"))
    assert compiler.compile(good) is grammar


def test_a_refusal_is_remembered_and_raised_each_time_as_a_new_error(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is raised again keeps every caller's frames, and what is in them."""
    outputs, errors = StructuredOutputs(regex="(a"), []
    for _ in range(3):
        with pytest.raises(RequestError, match=r"^structured_outputs.regex: .*unclosed group") as raised:
            compiler.compile(outputs)
        errors.append(raised.value)
        monkeypatch.setattr(compiler, "_compile", None)  # is not asked again
    assert len({id(error) for error in errors}) == 3
    assert len({str(error) for error in errors}) == 1
    assert {error.param for error in errors} == {"structured_outputs.regex"}
    assert all(error.__context__ is None for error in errors)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError("no more processes")])
def test_who_waits_for_a_thread_that_fails_compiles_it_itself(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    outputs, compile = StructuredOutputs(choice=["a"]), compiler._compile
    is_begun, may_end, calls = threading.Event(), threading.Event(), []

    def fails_once(outputs: StructuredOutputs) -> object:
        calls.append(outputs)
        if len(calls) > 1:
            return compile(outputs)
        is_begun.set()
        may_end.wait()
        raise failure

    monkeypatch.setattr(compiler, "_compile", fails_once)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(compiler.compile, outputs)
        is_begun.wait()
        others = [threads.submit(compiler.compile, outputs) for _ in range(2)]
        may_end.set()
        assert first.exception() is failure
        assert others[0].result() is others[1].result()
    assert len(calls) == 2


def test_threads_that_ask_at_once_get_the_same_grammar(smollm2_path: Path) -> None:
    tokenizer = gguf_tokenizer(smollm2_path)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    forms = [StructuredOutputs(json={"const": i}) for i in range(4)]
    start = threading.Barrier(16)

    def compile(i: int) -> object:
        start.wait()
        return compiler.compile(forms[i % 4])

    with ThreadPoolExecutor(16) as threads:
        grammars = [*threads.map(compile, range(16))]
    assert len({id(grammar) for grammar in grammars}) == 4


def test_outputs_of_one_grammar_do_not_disturb_each_other(smollm2_path: Path) -> None:
    """The same walks at once, in eight threads, as one after the other."""
    tokenizer = gguf_tokenizer(smollm2_path)
    grammar = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(StructuredOutputs(json_object=True))

    def walk(seed: int) -> bytes:
        return Walker(tokenizer, tokenizer.vocab_size, seed).walk(grammar, 60).text

    alone = [walk(seed) for seed in range(24)]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(walk, range(24))] == alone


def test_a_mask_stays_until_a_token_is_accepted(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    state = compiler.compile(StructuredOutputs(choice=["ab", "ac", "b"])).start()
    (a,) = tokenizer.encode("a")
    before = state.mask()
    assert state.mask() is before
    state.accept(a)
    assert {tokenizer.token_bytes(id) for id in allowed_ids(state.mask())} == {b"b", b"c"}
    assert state.mask() is state.mask()
    assert a in allowed_ids(before)


def test_a_token_that_the_grammar_does_not_allow_is_an_error(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    state = compiler.compile(StructuredOutputs(choice=["ab"])).start()
    state.accept(tokenizer.encode("x")[0])
    assert state.error is not None
    assert state.error.startswith("the grammar failed: ")
    assert "\n" not in state.error
    assert not state.mask().any()
    state.accept(tokenizer.encode("a")[0])  # nothing more becomes of it
    assert not state.is_stopped


class Panic(BaseException):
    """Like those of Rust, no Exception."""


@pytest.mark.parametrize("failure", [ValueError("no\nmask"), Panic("no\nmask")])
@pytest.mark.parametrize("where", ["mask", "token"])
def test_whatever_fails_within_is_the_error_of_one_output(
    tokenizer: Tokenizer, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, failure: BaseException, where: str
) -> None:
    def fail(*_: object) -> None:
        raise failure

    grammar, (a,) = compiler.compile(StructuredOutputs(regex="a*")), tokenizer.encode("a")
    state, neighbour = grammar.start(), grammar.start()
    with monkeypatch.context() as patch:
        if where == "mask":
            patch.setattr(state_module, "compute_mask", fail)
        else:
            patch.setattr(state, "_matcher", SimpleNamespace(consume_token=fail))
        state.accept(a)
        assert not state.mask().any()
    assert state.error == f"the grammar failed: {type(failure).__name__}: no mask"
    assert not state.is_accepting
    assert not state.is_stopped
    state.accept(a)
    assert not state.mask().any()
    neighbour.accept(a)
    assert neighbour.error is None
    assert a in allowed_ids(neighbour.mask())


@pytest.mark.parametrize("where", ["mask", "token"])
def test_an_interrupt_is_none(
    tokenizer: Tokenizer, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    state, (a,) = compiler.compile(StructuredOutputs(regex="a*")).start(), tokenizer.encode("a")
    with monkeypatch.context() as patch:
        if where == "mask":
            patch.setattr(state, "_mask", Future())
            patch.setattr(Future, "result", interrupt)
        else:
            patch.setattr(state, "_matcher", SimpleNamespace(consume_token=interrupt))
        with pytest.raises(KeyboardInterrupt):
            state.accept(a)
    assert state.error is None
    state.accept(a)
    assert a in allowed_ids(state.mask())


@pytest.mark.parametrize(
    "rule", ['"a" | start start', '"a" | "b" | start start | start start start', '"a" start | "a"']
)
def test_a_grammar_whose_work_grows_with_each_token_fails(
    tokenizer: Tokenizer, compiler: GrammarCompiler, rule: str
) -> None:
    """By the parser's limits, which bound each of its steps: it never comes to the thousand items of a slow one."""
    limits = limits_of(GRAMMAR_ITEMS)
    assert limits.max_items_in_row <= 300
    assert limits.step_max_items <= 5_000
    state, (a,) = compiler.compile(StructuredOutputs(grammar=f"start: {rule}")).start(), tokenizer.encode("a")
    count = 0
    while a in allowed_ids(state.mask()):
        state.accept(a)
        count += 1
        assert count <= 300
    assert count > 32  # so many are tried when it is compiled
    assert state.error is not None
    assert " items" in state.error


@pytest.mark.parametrize("rule", ['"a" | start "a"', 'ITEM ("a" ITEM)*\nITEM: "a"', '"a"+', '"(" start ")" | "a"'])
def test_a_grammar_whose_work_does_not_grow_runs_on(tokenizer: Tokenizer, compiler: GrammarCompiler, rule: str) -> None:
    state = compiler.compile(StructuredOutputs(grammar=f"start: {rule}")).start()
    (a,), (bracket,) = tokenizer.encode("a"), tokenizer.encode("(")
    for _ in range(1_000):
        state.accept(bracket if bracket in allowed_ids(state.mask()) else a)
        assert state.error is None
