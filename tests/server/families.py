"""Servers that answer as model families do: SmolLM2's vocabulary, with a family's chat template and markers."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from text.vocabularies import gguf_definition

TEMPLATES = json.loads((Path(__file__).parents[1] / "text" / "data" / "chat_templates.json").read_text())["templates"]
# In the manner of Mistral's: ids have nine characters, and tools stand before the last user message.
MISTRAL = """{{ bos_token }}{% for m in messages %}
{%- if loop.last and tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.tool_calls is defined %}[TOOL_CALLS][
{%- for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- c.function | tojson }}{% endfor %}]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""
LLAMA3 = TEMPLATES["llama3"]["source"] + "{# <|python_tag|> #}"
QWEN3 = TEMPLATES["qwen3"]["source"]
THINKING = QWEN3 + "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"


def family_tokenizer(path: Path, template: str, *markers: str) -> Tokenizer:
    """Markers are control tokens."""
    definition = gguf_definition(path)
    backend = Backend.from_str(definition.backend.to_str())
    backend.add_special_tokens([*markers])
    return Tokenizer(replace(definition, backend=backend, chat_template=template))


class Families:
    """Starts a server for each template and its markers, and keeps it for the next test."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._servers: dict[Any, tuple[Running, Tokenizer]] = {}
        self._said: list[list[int]] = []

    def says(self, said: str, template: str | None, *markers: str) -> tuple[Running, dict[str, Any]]:
        """A server, and the message to which it answers with a text, after a control token that does not show."""
        key = (template, markers)
        if key not in self._servers:
            source = gguf_definition(self._path).chat_template if template is None else template
            assert source is not None
            tokenizer = family_tokenizer(self._path, source, *markers)
            engine = scripted_engine(tokenizer, lambda ids: self._answer(tokenizer.decode(ids)))
            self._servers[key] = self._stack.enter_context(running(engine)), tokenizer
        server, tokenizer = self._servers[key]
        self._said.append(tokenizer.encode("<|im_start|>" + said, add_bos=False))
        return server, {"role": "user", "content": f"Case #{len(self._said) - 1}#"}

    def _answer(self, prompt: str) -> list[int]:
        return self._said[int(re.findall(r"#(\d+)#", prompt)[-1])]
