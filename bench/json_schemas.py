"""Answers to 500 JSON schemas at temperature 1: how many are valid, and what a step costs beside one without a form.

PYTHONPATH=tests python bench/json_schemas.py smollm2 --requests 500
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.validators import validator_for

from headrace import LLM, RequestError, SamplingParams, StructuredOutputs
from structured.schemas import COLLECTION, Schema, random_schema

MAX_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first schema")
    parser.add_argument("--compare", action="store_true", help="run the same prompts without forms too")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    llm = LLM(args.model, max_num_seqs=args.batch, max_model_len=1024)
    last = args.first + args.requests
    schemas = [*COLLECTION, *map(random_schema, range(last))][args.first : last]
    prompts = [prompt(llm, schema) for schema in schemas]
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, seed=seed, structured_outputs=StructuredOutputs(json=schema))
        for seed, schema in enumerate(schemas, args.first)
    ]
    outputs, seconds, steps = run(llm, prompts, params)
    verdicts = [verdict(schema, output) for schema, output in zip(schemas, outputs, strict=True)]
    counts = {name: verdicts.count(name) for name in ("valid", "length", "failed")}
    num_tokens = [len(output.outputs[0].token_ids) for output in outputs]
    print(f"{len(schemas)} requests: {counts['valid']} valid, {counts['length']} cut off, {counts['failed']} failed")
    report("with forms", num_tokens, seconds, steps)
    if args.compare:  # the same prompts and lengths with nothing asked of the output
        free = [
            replace(one, structured_outputs=None, max_tokens=count, ignore_eos=True)
            for one, count in zip(params, num_tokens, strict=True)
        ]
        llm.engine.reset_prefix_cache()
        report("without", num_tokens, *run(llm, prompts, free)[1:])


def prompt(llm: LLM, schema: Schema) -> list[int]:
    """A chat that asks for a document, cut short where the schema is long."""
    ask = f"Write one JSON document that fits this JSON schema: {json.dumps(schema, ensure_ascii=False)[:800]}"
    return llm.encode_chat([{"role": "user", "content": ask}])


def run(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[list[Any], float, int]:
    """The results, the seconds and the steps."""
    before, start = llm.engine.metrics.counters.steps, time.perf_counter()
    outputs = llm.generate(prompts, params)
    return outputs, time.perf_counter() - start, llm.engine.metrics.counters.steps - before


def verdict(schema: Schema, output: Any) -> str:
    """Whether an answer is "valid", "length" (cut off) or "failed"."""
    choice = output.outputs[0]
    if choice.finish_reason == "length":
        return "length"
    validator = validator_for(schema)
    try:
        if choice.finish_reason != "stop":
            raise RequestError("structured_outputs", str(choice.error))
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(choice.text))
    except (ValueError, ValidationError) as error:
        print(f"failed: {schema}\n  {choice.text!r}\n  {error}")
        return "failed"
    return "valid"


def report(name: str, num_tokens: list[int], seconds: float, steps: int) -> None:
    print(
        f"{name}: {sum(num_tokens)} tokens in {seconds:.1f} s, {sum(num_tokens) / seconds:.1f} tok/s, {steps} steps of "
        f"{1e3 * seconds / steps:.1f} ms"
    )


if __name__ == "__main__":
    main()
