"""`headrace chat`: the history, how it is left, and Ctrl-C."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.command import QUICK, Cli, cli, finish, start
from headrace import LLM, ModelError, RequestError, SamplingParams
from headrace.cli.chat import run_chat
from headrace.engine.engine import TokenOutput
from tiny import write_model

__all__ = ["cli"]

TEMPLATE = "{{ messages|length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]"
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
HINT = "Ctrl-C stops an answer, /exit leaves.\n"


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def llm(chat_folder: Path) -> LLM:
    """With the options of the command line."""
    return LLM(str(chat_folder), dtype="float32", max_num_batched_tokens=64, max_num_seqs=1)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def chat(model: Any, system: str | None = None) -> None:
    """Runs a chat in which Ctrl-C must not come through, or it would end the test run."""
    try:
        run_chat(model, GREEDY, system)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C ended the chat")


def test_each_answer_sees_what_was_said_before(cli: Cli, chat_folder: Path, llm: LLM) -> None:
    history: list[dict[str, str]] = [{"role": "system", "content": "Be brief"}]
    shown = "> "
    for text in ("One", "Two", "Three"):
        history.append(user(text))
        answer = llm.chat(history, GREEDY).text
        history.append({"role": "assistant", "content": answer})
        shown += answer + "\n> "
    options = (*QUICK, "--temperature", 0, "--max-tokens", 10, "--ignore-eos", "--system", "Be brief")
    outcome = cli("chat", chat_folder, *options, stdin="One\n\n  Two  \nThree\n/exit\nnever read\n")
    assert outcome.code == 0
    # An empty line asks nothing, and is prompted for again.
    assert outcome.out.replace("> > ", "> ") == shown
    assert outcome.err.endswith(HINT)


@pytest.mark.parametrize(("stdin", "out"), [("/exit\n", "> "), ("", "> \n"), ("\n \n", "> > > \n")])
def test_exit_and_the_end_of_input_leave(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: str, out: str
) -> None:
    type_in(monkeypatch, stdin)
    chat(llm)
    assert capsys.readouterr() == (out, HINT)


def test_a_turn_that_does_not_fit_is_dropped_and_the_chat_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "x" * 300 + "\nHi\n")
    chat(llm)
    out, err = capsys.readouterr()
    assert out == f"> > {llm.chat([user('Hi')], GREEDY).text}\n> \n"
    assert "headrace: prompt: has 3" in err


def test_without_a_template_there_is_no_chat(cli: Cli, tiny_folder: Path) -> None:
    error = cli("chat", tiny_folder, *QUICK).error
    assert error.endswith("has no chat template, so it cannot chat; use generate --raw")


class PressesCtrlC(io.StringIO):
    """A terminal whose user presses Ctrl-C when the n-th piece of the answer shows."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._left = pieces

    def write(self, text: str) -> int:
        written = super().write(text)
        if text not in ("> ", "\n", ""):
            self._left -= 1
            if self._left == 0:
                signal.raise_signal(signal.SIGINT)
        return written


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests run in the background of a shell, which lets it be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_an_answer_and_the_chat_goes_on_with_what_was_shown(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = PressesCtrlC(pieces=3)
    type_in(monkeypatch, "One\nTwo\n")
    monkeypatch.setattr(sys, "stdout", screen)
    chat(llm)
    first, second = screen.getvalue().removeprefix("> ").removesuffix("\n> \n").split("\n> ")
    whole = llm.chat([user("One")], GREEDY).text
    assert whole.startswith(first)
    assert 0 < len(first) < len(whole)
    history = [user("One"), {"role": "assistant", "content": first}, user("Two")]
    assert second == llm.chat(history, GREEDY).text
    assert not llm.engine.has_unfinished


class Scripted:
    """A model that says what it is told to, and keeps the chats that it was given."""

    has_chat_template = True

    def __init__(self, *answers: list[TokenOutput | BaseException]) -> None:
        self.engine = SimpleNamespace(config=SimpleNamespace(model="scripted"))
        self.chats: list[list[str]] = []
        self._answers = iter(answers)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        self.chats.append([message["content"] for message in messages])
        return [1]

    def stream(self, prompt: list[int], params: SamplingParams) -> Iterator[TokenOutput]:
        for item in next(self._answers):
            if isinstance(item, BaseException):
                raise item
            yield item


def says(text: str, error: str | None = None) -> TokenOutput:
    return TokenOutput("r", 5, text, "error" if error else None, error)


def test_an_interrupt_inside_the_engine_keeps_what_was_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = Scripted([says("On"), KeyboardInterrupt()], [says("Two")])
    type_in(monkeypatch, "a\nb\n")
    chat(model, "s")
    assert model.chats == [["s", "a"], ["s", "a", "On", "b"]]
    assert capsys.readouterr().out == "> On\n> Two\n> \n"


def test_an_answer_that_fails_is_said_and_a_refused_turn_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = Scripted([says("", "the model broke")], [RequestError("prompt", "too long")], [says("C")])
    type_in(monkeypatch, "a\nb\nc\n")
    chat(model)
    assert model.chats == [["a"], ["a", "", "b"], ["a", "", "c"]]
    err = capsys.readouterr().err
    assert "headrace: the model broke\n" in err
    assert "headrace: prompt: too long\n" in err


def test_a_scripted_model_without_a_template_is_refused() -> None:
    model: Any = Scripted()
    model.has_chat_template = False
    with pytest.raises(ModelError, match="scripted has no chat template"):
        chat(model)


def test_bytes_that_are_no_text_and_a_terminal_without_unicode_end_nothing(chat_folder: Path) -> None:
    options = (*QUICK, "--max-tokens", 40, "--ignore-eos", "--temperature", 5, "--seed", 1)
    outcome = finish(start("chat", chat_folder, *options, PYTHONIOENCODING="ascii"), b"\xff\xfe hi\n/exit\n")
    assert outcome.code == 0
    assert "Traceback" not in outcome.err
    assert outcome.out.isascii()
    assert outcome.out.startswith("> ")
