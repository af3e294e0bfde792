"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from typing import Annotated, Any

import typer

from headrace.cli import bench
from headrace.cli.load import load
from headrace.cli.options import ENGINE, RESULT, SAMPLING, SERVER, Model, with_options
from headrace.cli.params import sampling_params
from headrace.errors import HeadraceError, RequestError
from headrace.server.options import ServerOptions

# Typer's own base of errors in the command line; which module it comes from depends on Typer's version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="LLM inference on JAX.", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
models_app = typer.Typer(help="Models that are fetched by name.")
app.add_typer(models_app, name="models")
app.add_typer(bench.app, name="bench")


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
@with_options({**SAMPLING, **RESULT}, "sampling")
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
    from headrace.cli.answers import print_answers

    params = sampling_params(sampling, max_tokens=256, temperature=0.0)
    if raw and system is not None:
        raise RequestError("system", "cannot be given together with --raw, which uses no chat template")
    llm = load(model, _for_one(engine, params.n))
    if raw or not llm.has_chat_template:
        if system is not None:
            raise RequestError("system", f"{model} has no chat template, so it cannot take a system message")
        print_answers(llm, prompt, params)
    else:
        print_answers(llm, llm.encode_chat(_conversation(system, prompt)), params)


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

    params = sampling_params(sampling, max_tokens=1024, temperature=0.7)
    run_chat(load(model, _for_one(engine)), params, system)


@app.command()
@with_options(SERVER, "server", ServerOptions)
@with_options(ENGINE, "engine")
def serve(model: Model, *, server: dict[str, Any], engine: dict[str, Any]) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    from headrace.cli.serve import run_server

    run_server(model, server, engine)


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


def _for_one(engine: dict[str, Any], n: int = 1) -> dict[str, Any]:
    """Options for one request at a time, where a quick start is worth more than prefill without padding: fewer steps
    are compiled."""
    few = {} if "max_num_batched_tokens" in engine else {"num_tokens_paddings": "64,512"}
    return {"max_num_seqs": max(min(n, 32), 1 + engine.get("speculative_tokens", 0)), **few, **engine}


def _conversation(system: str | None, prompt: str) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": prompt}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _print_path(model: str) -> None:
    from headrace.weights.sources import resolve

    print(resolve(model))
