"""The interactive chat."""

from __future__ import annotations

import contextlib
import sys

from headrace.errors import ModelError, RequestError
from headrace.llm import LLM
from headrace.sampling.params import SamplingParams


def run_chat(llm: LLM, params: SamplingParams, system: str | None) -> None:
    """Reads turns from stdin and streams answers to stdout until /exit or the end of input.

    Ctrl-C during an answer stops it and keeps what was said; at the prompt it leaves.

    Raises:
        ModelError: the model has no chat template.
    """
    if not llm.has_chat_template:
        raise ModelError(f"{llm.engine.config.model} has no chat template, so it cannot chat; use generate --raw")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history for input())

    history = [] if system is None else [{"role": "system", "content": system}]
    print("Ctrl-C stops an answer, /exit leaves.", file=sys.stderr)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/exit":
            return
        if not line:
            continue
        history.append({"role": "user", "content": line})
        try:
            answer = _answer(llm, params, history)
        except RequestError as error:
            print(f"headrace: {error}", file=sys.stderr)
            history.pop()
        else:
            history.append({"role": "assistant", "content": answer})


def _answer(llm: LLM, params: SamplingParams, history: list[dict[str, str]]) -> str:
    """Streams one answer and returns what of it was shown."""
    shown = []
    outputs = llm.stream(llm.encode_chat(history), params)
    try:
        for output in outputs:
            shown.append(output.text)
            print(output.text, end="", flush=True)
            if output.error is not None:
                print(f"\nheadrace: {output.error}", file=sys.stderr)
    except KeyboardInterrupt:
        outputs.close()  # type: ignore[attr-defined]  # a generator; closing it ends the request
    print()
    return "".join(shown)
