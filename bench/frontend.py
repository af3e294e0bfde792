"""What a server's front costs: processor time per request and per streamed token.

PYTHONPATH=tests python bench/frontend.py MODEL [--json FILE]      our server over an engine that answers at once
python bench/frontend.py --url URL --pid PID [--json FILE]         any other; PID is its process that speaks HTTP

The server has core 0, the load generator core 1 (put other processes of another server there too). Four loads, three
rounds each, medians: answers of one token, plain and streamed, and of 256 tokens, the same; always 64 requests at once.
The processor time is that of the server's process alone. Of another server whose engine has processes of its own that
engine is not counted, and requests per second say nothing of its front as long as the front waits for the engine.

Our engine here is all of the host's work but the policy and the device: intake, detokenising, stop strings, outputs.
Every step gives each request a token, and waits until the loop has sent it, so that every token is an event of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from headrace.benchmark.serve.datasets import WORDS, Dataset
from headrace.benchmark.serve.load import run
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.report import machine
from headrace.benchmark.serve.statistics import figures

LOADS = [(1, False, 2000), (1, True, 2000), (256, False, 128), (256, True, 128)]  # tokens, streamed, requests
AT_ONCE = 64
ROUNDS = 3


def measure(url: str, pid: int, api: str) -> list[dict[str, Any]]:
    """The figures of each load: medians of the rounds."""
    found = []
    for tokens, stream, requests in LOADS:
        rounds = [_round(url, psutil.Process(pid), api, tokens, stream, requests) for _ in range(ROUNDS)]
        medians = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
        found.append({"api": api, "tokens": tokens, "stream": stream, **medians})
        print(found[-1], flush=True)
    return found


def _round(url: str, process: psutil.Process, api: str, tokens: int, stream: bool, requests: int) -> dict[str, float]:
    options = LoadOptions(
        url=url,
        api=api,
        concurrency=AT_ONCE,
        num_requests=requests,
        warmup=AT_ONCE,
        stream=stream,
        temperature=0.0,
        ignore_eos=True,
        dataset=Dataset(input_tokens=32, max_tokens=tokens),
    )
    before = _processor_time(process)
    done = run(options)
    seconds = _processor_time(process) - before  # the warm-up's too
    f = figures(done.records, (50.0, 99.0), {})
    if f["errors"]:
        raise SystemExit(f"errors: {f['error_kinds']}")
    return {
        "requests_per_s": f["requests_per_s"],
        "tokens_per_s": f["output_tokens_per_s"],
        "server_us_per_request": 1e6 * seconds / (requests + AT_ONCE),
        "server_us_per_token": 1e6 * seconds / (requests + AT_ONCE) / tokens,
        "events_per_answer": statistics.fmean(len(r.chunks) for r in done.records),
        "ttft_ms_p50": f["ttft"]["p50"],
        "ttft_ms_p99": f["ttft"]["p99"],
        "client_share": done.cpu_share,
    }


def _processor_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def own_server(model: str, profile: Path | None) -> Iterator[tuple[str, int]]:
    """Our server in a process of its own: its URL and process."""
    command = [sys.executable, __file__, model, "--serve", *(["--profile", str(profile)] if profile else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.terminate()


def serve(model: str, profile: Path | None) -> None:
    """That process."""
    from engine.paper import PaperManager
    from headrace.config import EngineConfig
    from headrace.engine.engine import Engine, TokenOutput
    from headrace.server.listener import bind
    from headrace.server.options import ServerOptions
    from headrace.server.run import HTTPServer, serve_on
    from headrace.text.tokenizer import Tokenizer
    from headrace.weights.gguf import GGUFFile
    from headrace.weights.sources import resolve

    tokenizer = Tokenizer.from_gguf(GGUFFile.open(resolve(model)).metadata)
    words = tokenizer.encode(" " + " ".join(WORDS), add_bos=False)

    class InstantEngine(Engine):
        """Knows the next token of every request at once."""

        loop: asyncio.AbstractEventLoop

        def step(self) -> list[TokenOutput]:
            sent = threading.Event()
            # Behind the delivery of the last tokens, and behind the tasks that it wakes.
            self.loop.call_soon_threadsafe(self.loop.call_soon, self.loop.call_soon, sent.set)
            sent.wait()
            for request in [request for choices in self._requests.values() for request in choices]:
                self._take_token(request, words[request.num_tokens % len(words)], None)
            return self._take_outputs()

    geometry = {"pages": 4096, "page_size": 16, "length": 1024, "seqs": 128, "budget": 512}
    manager = PaperManager(vocab=tokenizer.vocab_size, **geometry)
    config = EngineConfig(model="m", seed=0, max_model_len=1024)
    engine = InstantEngine(config, tokenizer, manager)  # type: ignore[arg-type]
    options = ServerOptions(port=0, grace_s=0.0, log_level="warning")
    listener = bind(options)

    def started(http: HTTPServer) -> None:
        engine.loop = http.loop
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    import uvloop

    if profile is None:
        uvloop.run(serve_on(engine, options, listener, started))
        return
    from cProfile import Profile

    with Profile() as profiler:
        uvloop.run(serve_on(engine, options, listener, started))
    profiler.dump_stats(profile)


def main() -> None:
    """Measures what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="whose tokenizer and chat template our server has")
    parser.add_argument("--url", help="of another server")
    parser.add_argument("--pid", type=int, help="of its process that speaks HTTP")
    parser.add_argument("--api", default="completions,chat")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="write what cProfile sees of our server's loop to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        os.sched_setaffinity(0, {0})
        serve(args.model, args.profile)
        return
    apis = args.api.split(",")
    if args.url:
        os.sched_setaffinity(args.pid, {0})
        os.sched_setaffinity(0, {1})
        found = [row for api in apis for row in measure(args.url, args.pid, api)]
    else:
        with own_server(args.model, args.profile) as (url, pid):
            os.sched_setaffinity(0, {1})
            found = [row for api in apis for row in measure(url, pid, api)]
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine(), "loads": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
