"""`headrace bench serve` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmark.serve.scripted_server import Asked, ScriptedServer, Step, completion, document, scripted
from cli.command import Cli, cli
from headrace.benchmark.serve.plot import draw

__all__ = ["cli"]


def sometimes_full(asked: Asked) -> Iterator[Step]:
    """Refuses a request of two tokens."""
    if asked.body.get("max_tokens") == 2:
        yield document({"error": {"message": "queue <full>"}}, "429 Too Many Requests")
    else:
        yield from completion(asked)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted(sometimes_full) as server:
        yield server


def test_report_table_and_picture(
    cli: Cli, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    file, picture = tmp_path / "run.json", tmp_path / "run.svg"
    lengths = ("--max-tokens", 4, "--output-spread", 0.5, "--input-tokens", 6)
    rate = ("--request-rate", 300, "--num-requests", 40, "--percentiles", "50,95", "--goodput", "ttft:60000")
    outcome = cli(
        "bench", "serve", server.url, *lengths, *rate, "--seed", 3, "--warmup", 0, "--json", file, "--plot", picture
    )
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(file.read_text())
    assert set(report) == {"settings", "began", "machine", "figures", "client", "warnings", "requests"}
    asked = [request["max_tokens"] for request in report["requests"]]
    assert set(asked) == {2, 3, 4, 5, 6}
    refused = asked.count(2)
    figures = report["figures"]
    assert (figures["ok"], figures["errors"]) == (40 - refused, refused)
    assert figures["error_kinds"] == {"HTTP 429": {"count": refused, "examples": ["queue <full>"]}}
    assert figures["output_tokens"] == sum(asked) - 2 * refused
    assert set(figures["ttft"]) == {"mean", "std", "min", "max", "p50", "p95"}
    assert figures["goodput"]["good"] == 40 - refused
    assert report["settings"]["model"] == "m"
    assert report["settings"]["request_rate"] == 300
    assert {request.headers["authorization"] for request in server.asked} == {"Bearer sk-secret"}
    assert "sk-secret" not in file.read_text() + outcome.out
    for text in (
        f"{40 - refused} answered",
        f"{refused} x HTTP 429",
        "queue <full>",
        "TTFT",
        "ITL",
        "TPOT",
        "E2E",
        "loop lag",
    ):
        assert text in outcome.out
    root = ElementTree.parse(picture).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for title in ("time to first token", "inter-token latency", "time per output token", "end-to-end latency"):
        assert title in texts
    assert draw(report) == picture.read_text()  # from the file as well


def test_a_run_in_which_nothing_was_answered(cli: Cli, server: ScriptedServer, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    options = ("--max-tokens", 2, "--num-requests", 3, "--warmup", 0, "--plot", picture)
    outcome = cli("bench", "serve", server.url, *options)
    assert outcome.code == 0
    assert "0 answered" in outcome.out
    assert "warning: no request was answered" in outcome.out
    ElementTree.parse(picture)
    assert "a warm-up request to" in cli("bench", "serve", server.url, "--max-tokens", 2).error


def test_conversations_from_a_file(cli: Cli, server: ScriptedServer, tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "What is a headrace?"}, {"from": "gpt", "value": "A channel to a mill."}]
    file.write_text(json.dumps([{"conversations": turns}]))
    before = len(server.asked)
    outcome = cli("bench", "serve", server.url, "--dataset", "sharegpt", "--dataset-file", file, "--num-requests", 2)
    assert outcome.code == 0
    bodies = [asked.body for asked in server.asked[before:] if asked.method == "POST"]
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == [("What is a headrace?", 5)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--extra-body", "{"], "extra_body: no JSON: "),
        (["--extra-body", "[]"], "extra_body: no JSON object"),
        (["--goodput", "500"], "goodput: '500' is not NAME:MS as in ttft:500"),
        (["--goodput", "ttft:fast"], "goodput: 'fast' is no number"),
        (["--goodput", "itl:5"], "goodput: itl:5 is none of ttft, tpot, e2e"),
        (["--percentiles", "50,x"], "percentiles: '50,x' is no number, or list of them as in 50,90,99"),
        (["--percentiles", "inf"], "percentiles: 'inf' is no number"),
        (["--num-requests", "0"], "num_requests: 0 is too small"),
        (["--warmup", "-1"], "warmup: -1 is too small"),
        (["--prefixes", "0"], "prefixes: 0 is too small"),
        (["--dataset", "other"], "dataset: 'other' is none of"),
        (["--json", "/nowhere/at/all"], "/nowhere/at/all: cannot be written: No such file or directory"),
        (["--plot", "/nowhere/at/all"], "/nowhere/at/all: cannot be written: No such file or directory"),
    ],
)
def test_a_wrong_option(cli: Cli, options: list[str], message: str) -> None:
    assert message in cli("bench", "serve", "http://127.0.0.1:1", *options).error


def test_it_does_without_jax() -> None:
    code = "from headrace.benchmark.serve import load, plot, report; import sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
