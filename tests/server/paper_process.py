"""A server with an engine on paper, as a process: `python paper_process.py GGUF SECONDS_PER_STEP GRACE_S`.

As a supervised child too; then a prompt of the one token 13 kills the engine, and one of the token 14 the process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.server.listener import bind
from headrace.server.options import ServerOptions
from headrace.server.run import serve
from headrace.server.supervisor import inherited_listener
from headrace.text.tokenizer import Tokenizer
from server.scripted import scripted_engine
from server.test_company import Pace
from smol import RIVER
from text.vocabularies import gguf_definition


def answer(prompt: list[int]) -> list[int]:
    """The same for all but two prompts."""
    if prompt == [13]:
        raise RuntimeError("the engine dies")
    if prompt == [14]:
        os._exit(3)
    return [RIVER] * 1000


def main() -> Any:
    gguf, seconds, grace = sys.argv[1:]
    engine = scripted_engine(Tokenizer(gguf_definition(Path(gguf))), answer)
    Pace(engine, float(seconds))
    options = ServerOptions(port=0, grace_s=float(grace))
    inherited = inherited_listener()
    listener = inherited or bind(options)
    print(listener.getsockname()[1], flush=True)
    return serve(engine, options, listener, is_supervised=inherited is not None)


if __name__ == "__main__":
    sys.exit(main())
