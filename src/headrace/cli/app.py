"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import ENGINE, SAMPLING, sizes, with_options
from headrace.errors import HeadraceError, RequestError

if TYPE_CHECKING:
    from headrace.engine.engine import TokenOutput
    from headrace.llm import LLM

# Typer's own base of errors in the command line; which module it comes from depends on Typer's version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="LLM inference on JAX.", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
models_app = typer.Typer(help="Models that are fetched by name.")
bench_app = typer.Typer(help="Measurements.")
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")

Model = Annotated[str, typer.Argument(help="Known name, .gguf file, Hugging Face folder or hub id.")]


def main() -> None:
    """Runs the command line. An error is one line on stderr and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(level=logging.WARNING, format="headrace: %(message)s", stream=sys.stderr)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    # Until there is something to stop, Ctrl-C ends the process at once: an interrupt in the middle of an import may be
    # swallowed there, or end in a traceback.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except (HeadraceError, _UsageError) as error:
        text = error.format_message() if isinstance(error, _UsageError) else str(error)  # type: ignore[attr-defined]
        print(f"headrace: error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has left; Python must not complain about that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"headrace: error: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    finally:
        signal.signal(signal.SIGINT, interrupt)


@app.command()
@with_options(SAMPLING, "sampling")
@with_options(ENGINE, "engine")
def generate(
    model: Model,
    *,
    prompt: Annotated[str, typer.Option(help="What to answer, or with --raw to continue.")],
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Answer one prompt, streamed to the terminal."""
    from headrace.sampling.params import SamplingParams

    params = SamplingParams(**{"max_tokens": 256, "temperature": 0.0, **sampling})
    if raw and system is not None:
        raise RequestError("system", "cannot be given together with --raw, which uses no chat template")
    llm = _load(model, _for_one(engine))
    if raw or not llm.has_chat_template:
        if system is not None:
            raise RequestError("system", f"{model} has no chat template, so it cannot take a system message")
        outputs = llm.stream(prompt, params)
    else:
        outputs = llm.stream(llm.encode_chat(_conversation(system, prompt)), params)
    _print_stream(outputs)


@app.command()
@with_options(SAMPLING, "sampling")
@with_options(ENGINE, "engine")
def chat(
    model: Model,
    *,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Chat in the terminal. Ctrl-C stops an answer; /exit leaves."""
    from headrace.cli.chat import run_chat
    from headrace.sampling.params import SamplingParams

    params = SamplingParams(**{"max_tokens": 1024, "temperature": 0.7, **sampling})
    run_chat(_load(model, _for_one(engine)), params, system)


@models_app.command("list")
def list_models() -> None:
    """List the models that are known by name."""
    from headrace.weights.sources import KNOWN_MODELS, cached_path

    for name, known in KNOWN_MODELS.items():
        path = cached_path(name)
        print(f"{name:14} {known.description} ({known.licence}); {path or 'not fetched yet'}")


@models_app.command("pull")
def pull_model(model: Annotated[str, typer.Argument(help="Known name or hub id.")]) -> None:
    """Fetch a model into the cache and print its path."""
    _print_path(model)


@models_app.command("path")
def model_path(model: Model) -> None:
    """Print where a model lies, fetching it first if need be."""
    _print_path(model)


@bench_app.command()
@with_options(ENGINE, "engine")
def throughput(
    model: Model,
    *,
    batch_sizes: Annotated[str, typer.Option(help="Parallel requests, as in 1,8,32.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated for each prompt after the first.")] = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    engine: dict[str, Any],
) -> None:
    """Prefill and decode speed at several batch sizes."""
    from headrace.benchmark.throughput import format_report, measure

    if json_file is not None:
        _write(json_file, "")  # before the work, so that it is not done in vain
    report = measure(
        partial(_load, model),
        engine,
        sizes("--batch-sizes", batch_sizes),
        prompt_tokens,
        output_tokens,
    )
    print(format_report(report))
    if json_file is not None:
        _write(json_file, json.dumps(report, indent=2) + "\n")


@bench_app.command()
@with_options(ENGINE, "engine")
def steps(
    model: Model,
    *,
    requests: Annotated[int, typer.Option(min=1, help="Parallel requests.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=3, help="Tokens generated for each prompt.")] = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    engine: dict[str, Any],
) -> None:
    """What a step takes on the host and on the device, and what it moves between them."""
    from headrace.benchmark.steps import format_report, measure

    if json_file is not None:
        _write(json_file, "")
    report = measure(partial(_load, model), engine, requests, prompt_tokens, output_tokens)
    print(format_report(report))
    if json_file is not None:
        _write(json_file, json.dumps(report, indent=2) + "\n")


@bench_app.command()
@with_options(ENGINE, "engine")
def startup(
    model: Model,
    *,
    runs: Annotated[int, typer.Option(min=1, help="Processes with an empty cache, and as many with a full one.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    engine: dict[str, Any],
) -> None:
    """Seconds from the start of a process until it could serve."""
    from headrace.benchmark.startup import format_report, measure
    from headrace.weights.sources import resolve

    if json_file is not None:
        _write(json_file, "")  # before the work, so that it is not done in vain
    report = measure(resolve(model), _engine_options(engine), runs)
    print(format_report(report))
    if json_file is not None:
        _write(json_file, json.dumps(report, indent=2) + "\n")


@bench_app.command()
@with_options(ENGINE, "engine")
def trace(
    model: Model,
    *,
    output: Annotated[Path, typer.Option(help="Write the trace to this file; ui.perfetto.dev shows it.")],
    requests: Annotated[int, typer.Option(min=1, help="Parallel requests.")] = 8,
    steps: Annotated[int, typer.Option(min=2, help="Decode steps to record.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 64,
    engine: dict[str, Any],
) -> None:
    """Trace of host and device with overlap on and off, or as --overlap says."""
    from headrace.benchmark.trace import format_report, record

    _write(output, "")
    overlaps = [engine["overlap"]] if "overlap" in engine else [True, False]
    recorded = record(partial(_load, model), engine, requests, steps, prompt_tokens, overlaps)
    _write(output, json.dumps(recorded) + "\n")
    print(format_report(recorded))


def _for_one(engine: dict[str, Any]) -> dict[str, Any]:
    """Options for one request at a time, where a quick start is worth more than prefill without padding: fewer steps
    are compiled."""
    few = {} if "max_num_batched_tokens" in engine else {"num_tokens_paddings": "64,512"}
    return {"max_num_seqs": 1, **few, **engine}


def _load(model: str, engine: dict[str, Any]) -> LLM:
    """The model, with bars while it loads and a summary, on stderr."""
    options = _engine_options(engine)
    with _gloo_on_stderr() if "coordinator" in options else contextlib.nullcontext():
        if options.get("process_id"):
            from headrace.config import EngineConfig
            from headrace.engine.build import follow

            follow(EngineConfig.from_options(model, options), progress=True)
            raise typer.Exit
        from headrace.llm import LLM

        llm = LLM(model, progress=True, **options)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(llm.built.describe(), file=sys.stderr)
    return llm


def _engine_options(engine: dict[str, Any]) -> dict[str, Any]:
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HeadraceError(f"{path}: cannot be written: {error.strerror}") from None


def _conversation(system: str | None, prompt: str) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": prompt}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _print_stream(outputs: Iterator[TokenOutput]) -> None:
    last = None
    for last in outputs:
        print(last.text, end="", flush=True)
    print()
    if last is not None and last.error is not None:
        raise HeadraceError(last.error)


def _print_path(model: str) -> None:
    from headrace.weights.sources import resolve

    print(resolve(model))
