"""Options that several commands share, each declared once and added to a command's signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

# name -> (type, help). A default of None leaves the choice to EngineConfig or SamplingParams, whose own defaults and
# checks apply: nothing is said twice.
ENGINE = {
    "dtype": (str, "auto (bfloat16), float32 or bfloat16."),
    "weights_dtype": (str, "auto (as dtype), float32, bfloat16, int8, or gguf for a GGUF file's own blocks."),
    "max_model_len": (int, "Longest sequence in tokens, prompt and answer."),
    "max_num_seqs": (int, "Requests that run at once."),
    "max_num_batched_tokens": (int, "Most tokens that one step computes."),
    "page_size": (int, "Tokens per page of the KV cache."),
    "kv_cache_bytes": (int, "Memory for the KV cache."),
    "kv_cache_share": (float, "Share of the free memory for the KV cache."),
    "attention": (str, "auto, jax (plain JAX), pallas (the platform's own kernel) or native (a CPU's own)."),
    "min_input_pad": (int, "Smallest number of requests that a step is compiled for."),
    "num_tokens_paddings": (str, "Token sizes to compile, as in 64,256,512."),
    "num_reqs_paddings": (str, "Request sizes to compile, as in 8,32."),
    "max_compiled_variants": (int, "Most compiled steps that are kept."),
    "use_aot_forward": (bool, "Compile every step before serving, not at its first use."),
    "compile_guard": (str, "off, count or raise: what a compilation after warm-up leads to."),
    "debug": (bool, "Check the arguments of each step."),
    "prefix_caching": (bool, "Reuse what was computed for prompts that begin the same."),
    "max_queued_requests": (int, "Most requests that may wait to run."),
    "max_logprobs": (int, "Most log probabilities that a request may ask for at each place."),
    "logprobs_mode": (str, "Log probabilities of the model (raw), or of what is drawn from (processed)."),
    "overlap": (bool, "Give the device its next step before reading the tokens of the last."),
    "speculative_tokens": (int, "Most tokens of a request that a step checks ahead, guessed from its own text."),
    "prompt_lookup_max": (int, "Longest end of the text that is looked for in what is before it, in tokens."),
    "prompt_lookup_min": (int, "Shortest."),
    "tensor_parallel": (int, "Devices that share one copy of the model."),
    "data_parallel": (int, "Copies of the model, each with requests of its own."),
    "coordinator": (str, "HOST:PORT of process 0, where several processes serve one model."),
    "num_processes": (int, "How many processes serve the model."),
    "process_id": (int, "Which of them this one is, from 0; the others do as process 0 does."),
    "engine_seed": (int, "Seed of the draws of requests without a seed of their own."),
}
SAMPLING = {
    "max_tokens": (int, "Most tokens to generate."),
    "min_tokens": (int, "Nothing ends the answer within so many tokens."),
    "temperature": (float, "0 takes the most likely token."),
    "top_p": (float, "Keep the most likely tokens up to this probability."),
    "top_k": (int, "Keep this many of the most likely tokens."),
    "min_p": (float, "Drop tokens less likely than this times the most likely one."),
    "repetition_penalty": (float, "Divides the logits of tokens that are there already; 1 is off."),
    "presence_penalty": (float, "Taken off the logits of tokens that are in the answer."),
    "frequency_penalty": (float, "Taken off for each time that a token is in the answer."),
    "logit_bias": (list[str], "ID=VALUE: added to the logits of a token; may be given several times."),
    "allowed_token_ids": (list[int], "Token that may be sampled, instead of all; may be given several times."),
    "bad_words": (list[str], "Text that is not generated; may be given several times."),
    "json_schema": (Path, "File with a JSON schema that the answer has to fit."),
    "json_object": (bool, "The answer is a JSON object."),
    "regex": (str, "Regular expression that the answer has to match."),
    "choice": (list[str], "The answer is this text, or another that is given the same way."),
    "grammar": (Path, "File with a grammar, in llguidance's variant of Lark."),
    "stop": (list[str], "Text that ends the answer; may be given several times."),
    "stop_token_ids": (list[int], "Token that ends the answer; may be given several times."),
    "include_stop_str_in_output": (bool, "Show the text that ended the answer."),
    "skip_special_tokens": (bool, "Leave control tokens out of the answer, which is the default."),
    "ignore_eos": (bool, "Go on after the model's own end token."),
    "seed": (int, "Seed of the draws."),
}

# What `generate` alone offers.
RESULT = {
    "n": (int, "Answers to give, one after the other; several are not streamed."),
    "logprobs": (int, "Show each token's log-probability, and so many of the most likely tokens in its place."),
    "echo": (bool, "Show the prompt before the answer."),
    "truncate_prompt_tokens": (
        int,
        "Keep this many of the prompt's last tokens; -1: as many as fit.",
    ),
}

SERVER = {
    "host": (str, "Address to listen on; 0.0.0.0 for all."),
    "port": (int, "Port to listen on; 0 takes a free one."),
    "served_model_names": (list[str], "What clients may call the model; may be given several times."),
    "max_body_bytes": (int, "Longest request body."),
    "max_prompts": (int, "Most prompts of one request."),
    "max_n": (int, "Most choices for one prompt."),
    "max_stops": (int, "Most stop strings of one request."),
    "max_schema_chars": (int, "Longest schema, grammar or list of tools of one request."),
    "request_timeout_s": (float, "Seconds after which an unfinished request ends with an error."),
    "grace_s": (float, "Seconds that running requests may take after SIGTERM."),
    "step_timeout_s": (float, "Seconds after which a step that does not end counts as the engine's death."),
    "tool_parser": (str, "How the model writes tool calls: auto, hermes, llama3, mistral or json."),
    "separate_reasoning": (bool, "Return the model's reasoning apart from the answer."),
    "supervise": (bool, "Start the server anew, in a process of its own, when it dies."),
    "api_key": (list[str], "Key that clients have to show; may be given several times, or as HEADRACE_API_KEY."),
    "api_key_file": (Path, "File with such keys, one on each line."),
    "admin_key": (str, "Key of the routes below /admin/, which need one; or as HEADRACE_ADMIN_KEY."),
    "metrics_without_key": (bool, "Leave /metrics open where there are keys."),
    "cors_origins": (list[str], "Origin of web pages that may use the API, or *; may be given several times."),
    "allowed_hosts": (list[str], "Host name that URLs of requests may have, or *; may be given several times."),
    "log_format": (str, "text or json: a line for each request and for whatever else there is to say."),
    "log_level": (str, "debug, info, warning or error."),
    "otlp_traces_endpoint": (str, "URL that OpenTelemetry spans are sent to; needs headrace[otel]."),
}

Model = Annotated[str, typer.Argument(help="Known name, .gguf file, Hugging Face folder or hub id.")]

Command = Callable[..., None]


def with_options(
    table: dict[str, tuple[Any, str]], argument: str, defaults: type | None = None
) -> Callable[[Command], Command]:
    """Adds the options of a table to a command, which gets those that were given as the dict `argument`.

    Args:
        defaults: the class that they are fields of, whose defaults the help shows.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in table}
            command(**given, **{argument: {name: value for name, value in chosen.items() if value is not None}})

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != argument]
        added = [_parameter(name, kind, text + _default(defaults, name)) for name, (kind, text) in table.items()]
        parameters = [*own, *added]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _default(owner: type | None, name: str) -> str:
    value = getattr(owner, name, None)
    return "" if isinstance(value, bool) or value in (None, ()) else f"  [default: {value}]"


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        flag += "/--no-" + name.replace("_", "-")
    annotation = Annotated[kind | None, typer.Option(flag, help=text, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def sizes(name: str, text: str) -> list[int]:
    """A list of sizes given as "8,16,32"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 8,16,32", param_hint=name) from None
