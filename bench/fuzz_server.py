"""Requests that schemathesis makes from the server's own description of its API, on a tiny model: no answer may be a
5xx, nothing may hang, and afterwards nothing may be left.

`make fuzz` runs it for some minutes: python bench/fuzz_server.py --seconds 300 [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from headrace import LLM
from headrace.weights.sources import pull
from server.running import Running, running
from smol import write_smol
from text.vocabularies import gguf_definition

KEY, ADMIN = "sk-fuzz", "sk-operator"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)
ANSWER_S = 60  # longer is a hang


def tiny_llm(folder: Path) -> LLM:
    """A tiny random model with SmolLM2's tokenizer and template."""
    gguf = pull("smollm2")
    write_smol(folder / "model", gguf, max_position_embeddings=512)
    path = folder / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": gguf_definition(gguf).chat_template}))
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "min_input_pad": 8, "max_model_len": 512, "seed": 0}
    return LLM(str(folder / "model"), dtype="float32", num_tokens_paddings=[64], max_queued_requests=256, **options)


# What makes a request acceptable, as far as the description does not say it, so that many reach the engine. What is
# outside is tried as well.
BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, 3),
    "max_tokens": (0, 20),
    "max_completion_tokens": (1, 20),
    "max_output_tokens": (1, 20),
    "min_tokens": (0, 3),
    "temperature": (0, 2),
    "top_p": (0.01, 1),
    "top_k": (-1, 1000),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.5, 2),
    "top_logprobs": (0, 5),
    "prompt_logprobs": (0, 5),
    "priority": (-5, 5),
    "truncate_prompt_tokens": (-1, 64),
}


def description(server: Running, folder: Path) -> Path:
    """The server's description of its API as a file, with values that it accepts."""
    schema = server.client.get("/openapi.json", headers={"x-api-key": KEY}).json()
    for component in schema["components"]["schemas"].values():
        for name, field in component.get("properties", {}).items():
            for form in (field, *field.get("anyOf", ())):
                if name == "model" and form.get("type") == "string":
                    form["enum"] = ["tiny"]
                if name in BOUNDS and form.get("type") in ("integer", "number"):
                    form["minimum"], form["maximum"] = BOUNDS[name]
    path = folder / "openapi.json"
    path.write_text(json.dumps(schema))
    return path


def schemathesis(server: Running, schema: Path, key: str, seconds: float, seed: int, *more: str) -> int:
    """Runs it for a while and returns its exit code."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(schema), "--url", server.url]
    command += ["--checks", CHECKS, "--max-time", str(max(1, int(seconds))), "--seed", str(seed), "--workers", "1"]
    command += ["--request-timeout", str(ANSWER_S), "--header", f"Authorization: Bearer {key}", "--no-color"]
    command += [
        "--suppress-health-check",
        "all",
        "--continue-on-failure",
        "--max-failures",
        "20",
        "--output-truncate",
        "true",
    ]
    return subprocess.run([*command, *more], check=False, cwd=schema.parent).returncode


def resumed(server: Running, stop: threading.Event) -> None:
    """Ends every pause, or all would wait for ever."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        while not stop.wait(0.5):
            client.post("/admin/resume", timeout=30)


def left(server: Running) -> dict[str, int]:
    """What is not as it was, after some seconds."""
    until = time.monotonic() + 30
    while True:
        now = server.server.bridge.snapshot
        found = {"running": now.running, "waiting": now.waiting, "pages": now.pages - now.free_pages}
        found |= {"compilations": now.compilations, "generations": len(server.server.bridge._generations)}
        if not any(found.values()) or time.monotonic() > until:
            return {name: value for name, value in found.items() if value}
        time.sleep(0.1)


def main() -> int:
    """Returns 0 when nothing was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        llm = tiny_llm(Path(folder))
        with running(llm.engine, api_keys=(KEY,), admin_key=ADMIN, grace_s=5.0) as server:
            stop = threading.Event()
            resuming = threading.Thread(target=resumed, args=(server, stop))
            resuming.start()
            try:
                # Weights are left alone: a path that is made up may be the name of a model to fetch.
                admin = ("--include-path-regex", "^/admin/", "--exclude-path", "/admin/weights")
                others = ("--exclude-path-regex", "^/admin/")
                schema, seed = description(server, Path(folder)), given.seed
                codes = [
                    schemathesis(server, schema, ADMIN, given.seconds * 0.1, seed, *admin),
                    schemathesis(server, schema, KEY, given.seconds * 0.3, seed, "--phases", "coverage", *others),
                    schemathesis(server, schema, KEY, given.seconds * 0.6, seed, "--phases", "fuzzing", *others),
                ]
            finally:
                stop.set()
                resuming.join()
            rest = left(server)
            health = server.client.get("/health").status_code
    print(f"exit codes {codes}, health {health}, left over: {rest or 'nothing'}")
    return int(any(codes) or health != 200 or bool(rest))


if __name__ == "__main__":
    sys.exit(main())
