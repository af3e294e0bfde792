"""`headrace bench …`: measurements."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.bench_serve import DATASET, LOAD, load_options
from headrace.cli.load import engine_options, load
from headrace.cli.options import ENGINE, Model, sizes, with_options
from headrace.errors import HeadraceError

app = typer.Typer(help="Measurements.")

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@app.command()
@with_options(ENGINE, "engine")
def throughput(
    model: Model,
    *,
    batch_sizes: Annotated[str, typer.Option(help="Parallel requests, as in 1,8,32.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated for each prompt after the first.")] = 64,
    json_file: JsonFile = None,
    engine: dict[str, Any],
) -> None:
    """Prefill and decode speed at several batch sizes."""
    from headrace.benchmark.throughput import format_report, measure

    _check_writable(json_file)
    batches = sizes("--batch-sizes", batch_sizes)
    report = measure(partial(load, model), engine, batches, prompt_tokens, output_tokens)
    _publish(format_report(report), report, json_file)


@app.command()
@with_options(ENGINE, "engine")
def steps(
    model: Model,
    *,
    requests: Annotated[int, typer.Option(min=1, help="Parallel requests.")] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=3, help="Tokens generated for each prompt.")] = 64,
    json_file: JsonFile = None,
    engine: dict[str, Any],
) -> None:
    """What a step takes on the host and on the device, and what it moves between them."""
    from headrace.benchmark.steps import format_report, measure

    _check_writable(json_file)
    report = measure(partial(load, model), engine, requests, prompt_tokens, output_tokens)
    _publish(format_report(report), report, json_file)


@app.command()
@with_options(ENGINE, "engine")
def roofline(
    model: Model,
    *,
    batch_sizes: Annotated[str, typer.Option(help="Parallel requests, as in 1,8,32.")] = "1,8,32",
    contexts: Annotated[str, typer.Option(help="Tokens in the cache of each request before it decodes.")] = "128",
    prefill: Annotated[str, typer.Option(help="Tokens of prompts whose first token is timed, or nothing.")] = "512",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps to measure for each figure.")] = 32,
    json_file: JsonFile = None,
    engine: dict[str, Any],
) -> None:
    """What share of the machine's memory bandwidth or arithmetic decode and prefill reach."""
    from headrace.benchmark.roofline import format_report, measure

    _check_writable(json_file)
    batches, lengths = sizes("--batch-sizes", batch_sizes), sizes("--contexts", contexts)
    prompts = sizes("--prefill", prefill) if prefill else []
    report = measure(model, partial(load, model), engine_options(engine), batches, lengths, prompts, steps)
    _publish(format_report(report), report, json_file)


@app.command()
@with_options(ENGINE, "engine")
def startup(
    model: Model,
    *,
    runs: Annotated[int, typer.Option(min=1, help="Processes with an empty cache, and as many with a full one.")] = 3,
    json_file: JsonFile = None,
    engine: dict[str, Any],
) -> None:
    """Seconds from the start of a process to its first token, and its memory."""
    from headrace.benchmark.startup import format_report, measure
    from headrace.weights.sources import resolve

    _check_writable(json_file)
    report = measure(resolve(model), engine_options(engine), runs)
    _publish(format_report(report), report, json_file)


@app.command()
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

    _check_writable(output)
    overlaps = [engine["overlap"]] if "overlap" in engine else [True, False]
    recorded = record(partial(load, model), engine, requests, steps, prompt_tokens, overlaps)
    _write(output, json.dumps(recorded) + "\n")
    print(format_report(recorded))


@app.command()
@with_options(DATASET, "dataset_given")
@with_options(LOAD, "load_given")
def serve(
    url: Annotated[str, typer.Argument(help="Of any OpenAI-compatible server, as in http://127.0.0.1:8000.")],
    *,
    dataset: Annotated[str, typer.Option(help="random, sharegpt or shared-prefix.")] = "random",
    dataset_file: Annotated[Path | None, typer.Option(help="JSON file of conversations, for sharegpt.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=["HEADRACE_API_KEY", "OPENAI_API_KEY"], show_envvar=True)
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object whose fields are sent too; null leaves a field out.")
    ] = None,
    percentiles: Annotated[str, typer.Option(help="To report.")] = "50,90,99",
    goodput: Annotated[
        list[str] | None, typer.Option(help="ttft:MS, tpot:MS or e2e:MS that an answer must keep; several times.")
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions and the run to this SVG file.")] = None,
    load_given: dict[str, Any],
    dataset_given: dict[str, Any],
) -> None:
    """Load for a server, and what its clients saw: latencies, throughput, errors."""
    options = load_options(
        url,
        load_given,
        dataset_given,
        name=dataset,
        file=dataset_file,
        api_key=api_key,
        extra_body=extra_body,
        percentiles=percentiles,
        goodput=goodput or [],
    )
    _check_writable(json_file)
    _check_writable(plot)

    from headrace.benchmark.serve.load import run
    from headrace.benchmark.serve.plot import draw
    from headrace.benchmark.serve.report import format_report, report

    full = report(options, run(options))
    _publish(format_report(full), full, json_file)
    if plot is not None:
        _write(plot, draw(full))


def _publish(text: str, report: dict[str, Any], json_file: Path | None) -> None:
    print(text)
    if json_file is not None:
        _write(json_file, json.dumps(report, indent=2) + "\n")


def _check_writable(path: Path | None) -> None:
    """Before the work, so that it is not done in vain."""
    if path is not None:
        _write(path, "", "a")


def _write(path: Path, text: str, mode: str = "w") -> None:
    try:
        with path.open(mode) as file:
            file.write(text)
    except OSError as error:
        raise HeadraceError(f"{path}: cannot be written: {error.strerror}") from None
