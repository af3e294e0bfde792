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
MEMORY_BYTES = 1 << 29
# Half of what threads have, so that who compiles and uses the grammar afterwards has room.
STACK_BYTES = 1 << 22
# How far a random output is followed. A grammar that compiles may still be too large for its first tokens.
STEPS = 32

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarTrial:
    """Tries grammars, one at a time, in a process that is started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None

    def refusal(self, grammar: str) -> str | None:
        """Why a grammar cannot be used: it is wrong, too slow or too large. None if it can."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _start()
                self._end = weakref.finalize(self, _stop, self._process)
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            if answer:
                refusal: str | None = json.loads(answer)
                return refusal
            self._process = None
            if self._end() == -signal.SIGPROF:
                return f"is too complex: it takes more than {CPU_SECONDS:g} s to compile"
            return "is too complex: it is nested too deeply, or takes too much memory"


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-P", str(Path(__file__))]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=null, env=environment)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ends the process, which does so itself where nothing more can come; its exit code."""
    with process:  # closes the pipes and waits
        assert process.stdin is not None
        process.stdin.close()
    return process.returncode


class _Bytes:
    """A vocabulary of the 256 bytes, and an end."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _fault(tokenizer: LLTokenizer, grammar: str) -> str | None:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
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
    for line in sys.stdin:
        print(json.dumps(_within_limits(tokenizer, json.loads(line))), flush=True)


def _within_limits(tokenizer: LLTokenizer, grammar: str) -> str | None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(_fault(tokenizer, grammar)))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # whose signal, SIGPROF, ends the process
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    return answers[0]


if __name__ == "__main__":
    _main()
