"""`headrace serve`."""

from __future__ import annotations

import logging
import os
import sys
import threading
from importlib import import_module
from typing import Any

import typer

from headrace.cli.load import load
from headrace.server.keys import API_KEY_VARIABLE, keys_of
from headrace.server.listener import bind
from headrace.server.logs import configure
from headrace.server.options import ServerOptions
from headrace.server.supervisor import inherited_listener, supervise_this_program

log = logging.getLogger(__name__)

# As many requests may wait by default: at some hundred per minute the last one still has its turn.
MAX_QUEUED_REQUESTS = 1024


def run_server(model: str, server: dict[str, Any], engine: dict[str, Any]) -> None:
    """Loads a model and serves it until a signal ends it; or, with `supervise`, has a child do so again and again."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in server.items()}
    supervise = given.pop("supervise", False)
    options = ServerOptions(**keys_of(given, os.environ))
    configure(options.log_format, options.log_level)
    inherited = inherited_listener()
    is_supervisor = supervise and inherited is None
    if options.otlp_traces_endpoint is not None and not is_supervisor:
        from headrace.server.tracing import exporter_type

        exporter_type(options.otlp_traces_endpoint)
    listener = inherited or bind(options)
    if is_supervisor:
        raise typer.Exit(supervise_this_program(listener, options.grace_s))
    # What serving needs besides is imported while the model loads: half a second. It needs JAX, which a supervisor does
    # without; and what the model needs comes before, so that two threads never import the same.
    import_module("headrace.llm")
    threading.Thread(target=import_module, args=("headrace.server.run",), name="imports", daemon=True).start()
    llm = load(model, {"max_queued_requests": MAX_QUEUED_REQUESTS, **engine}, describe=False)
    from headrace.server.run import serve

    host, port = listener.getsockname()[:2]
    name, base = (options.served_model_names or (model,))[0], _base(host, port)
    if options.log_format == "json":
        log.info("serving", extra={"fields": {"model": name, "url": base}})
    else:
        print(_ready(base, name, llm.has_chat_template, bool(options.api_keys)), file=sys.stderr)
    raise typer.Exit(serve(llm.engine, options, listener, is_supervised=inherited is not None))


def _base(host: str, port: int) -> str:
    """The server's address as this machine sees it."""
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else f'[{host}]' if ':' in host else host}:{port}"


def _ready(base: str, model: str, chats: bool, needs_key: bool) -> str:
    """The ready line and a request that works as it is printed."""
    path, what = "/v1/completions", '"prompt": "The capital of France is"'
    if chats:
        path = "/v1/chat/completions"
        what = '"messages": [{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{model}", {what}, "temperature": 0, "max_tokens": 32}}'
    key = f' -H "authorization: Bearer ${API_KEY_VARIABLE}"' if needs_key else ""
    return (
        f"headrace: serving {model} at {base}; Ctrl-C ends it. Try:\n"
        f"curl {base}{path} -H 'content-type: application/json'{key} -d '{body}'"
    )
