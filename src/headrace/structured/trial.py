"""A process in which grammars are compiled first, so that one that takes too long or too much harms only itself.

llguidance bounds its work in many ways, but not in all: thirty patterns under `allOf` keep it busy for ever, and a
chain of some thousand rules overflows the stack, which ends the process. This file is also the program of that process,
and imports nothing but llguidance and the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_SECONDS = 2.0
# Of one answer, for a process that neither computes nor ends.
WALL_SECONDS = 30.0
MEMORY_BYTES = 1 << 29
# Half of what threads have, so that who compiles and uses the grammar afterwards has room.
STACK_BYTES = 1 << 22
# How far a random output is followed. A grammar that compiles may still be too large for its first tokens.
STEPS = 32
_TRIES = 2

# What a token of an ambiguous grammar costs grows with the square or the cube of what is written; so few items keep a
# token and a mask at some ten milliseconds. A schema has no such ambiguity, but four items for each optional property.
SCHEMA_ITEMS, GRAMMAR_ITEMS = 2_000, 300


def limits_of(items: int) -> LLParserLimits:
    """Of a parser with at most so many items after a token."""
    return LLParserLimits(max_items_in_row=items, step_max_items=5_000, max_lexer_states=50_000, verbose_errors=False)


class GrammarTrial:
    """Tries grammars, one at a time, in a process that is started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        self._number = 0

    def refusal(self, grammar: str, items: int) -> str | None:
        """Why a grammar cannot be used with `limits_of(items)`: it is wrong, too slow or too large. None if it can.

        Raises:
            RuntimeError: the process does not start, which is no fault of the grammar's.
        """
        with self._lock:
            try:
                return self._refusal(grammar, items)
            except BaseException:
                self._end_process()  # which may still answer, and would be one answer behind ever after
                raise

    def _refusal(self, grammar: str, items: int) -> str | None:
        for _ in range(_TRIES):  # who was ended from outside did not fail by the grammar
            if not self._starts():
                continue
            self._number += 1
            answer = self._ask([self._number, grammar, items])
            if answer is not None and answer[0] == self._number:
                refusal: str | None = answer[1]
                return refusal
            if self._end_process() == -signal.SIGPROF:
                return f"is too complex: it takes more than {CPU_SECONDS:g} s to compile"
        if not self._starts():
            raise RuntimeError("the process that tries grammars does not start")
        return "is too complex: it is nested too deeply, or takes too much memory or time"

    def _starts(self) -> bool:
        """Starts the process unless it runs. Whether it is there to be asked."""
        if self._process is not None and self._process.poll() is None:
            return True
        self._end_process()
        self._process = _start()
        self._end = weakref.finalize(self, _stop, self._process)
        if self._ask(None) is not None:
            return True
        self._end_process()
        return False

    def _ask(self, question: Any) -> list[Any] | None:
        """The answer to a question, or with None what the process says first; None if it ended instead."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(WALL_SECONDS, process.kill)
        limit.daemon = True
        limit.start()
        try:
            if question is not None:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line.endswith(b"\n"):
                process.wait()
                return None
            answer: list[Any] = json.loads(line)
            return answer
        except BrokenPipeError:
            process.wait()
            return None
        finally:
            limit.cancel()

    def _end_process(self) -> int | None:
        """Ends the process and forgets it; its exit code."""
        end, self._process, self._end = self._end, None, None
        return None if end is None else end()


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-P", str(Path(__file__))]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=null, env=environment)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ends the process, which holds nothing worth keeping; its exit code."""
    process.kill()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # of what was not yet written
        process.stdin.close()
    with process:  # closes the other pipe and waits
        pass
    return process.returncode


class _Bytes:
    """A vocabulary of the 256 bytes, and an end."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _fault(tokenizer: LLTokenizer, grammar: str, items: int) -> str | None:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits_of(items))
    draw = random.Random(0)
    for _ in range(STEPS):
        if matcher.is_stopped():
            break
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if not allowed or not matcher.consume_token(draw.choice(allowed)):
            break
    return matcher.get_error() or None


def _main() -> None:
    import resource  # which not every system has

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=256)
    threading.stack_size(STACK_BYTES)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all; the parent's end ends this too
    print(json.dumps([0, None]), flush=True)
    for line in sys.stdin:
        number, grammar, items = json.loads(line)
        print(json.dumps([number, _within_limits(tokenizer, grammar, items)]), flush=True)


def _within_limits(tokenizer: LLTokenizer, grammar: str, items: int) -> str | None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(_fault(tokenizer, grammar, items)))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # whose signal, SIGPROF, ends the process
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    return answers[0]


if __name__ == "__main__":
    _main()
