"""From the command line's options to a loaded model."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.options import sizes

if TYPE_CHECKING:
    from headrace.llm import LLM


def load(model: str, engine: dict[str, Any], *, describe: bool = True) -> LLM:
    """The model, with bars while it loads and a summary on stderr; without `describe` that is in the log alone."""
    options = engine_options(engine)
    with _gloo_on_stderr() if "coordinator" in options else contextlib.nullcontext():
        if options.get("process_id"):
            from headrace.config import EngineConfig
            from headrace.engine.build import follow

            follow(EngineConfig.from_options(model, options), progress=True)
            raise typer.Exit
        from headrace.llm import LLM

        llm = LLM(model, progress=True, **options)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if describe:
        print(llm.built.describe(), file=sys.stderr)
    return llm


def engine_options(engine: dict[str, Any]) -> dict[str, Any]:
    """Fields of `EngineConfig` from the command line's options."""
    options = dict(engine)
    for name in ("num_tokens_paddings", "num_reqs_paddings"):
        if isinstance(options.get(name), str):
            options[name] = sizes("--" + name.replace("_", "-"), options[name])
    if "engine_seed" in options:
        options["seed"] = options.pop("engine_seed")
    return options


@contextlib.contextmanager
def _gloo_on_stderr() -> Iterator[None]:
    """Keeps stdout for answers: Gloo, which carries what processes on CPUs tell each other, reports its connections
    there."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
