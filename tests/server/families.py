"""Tokenizers of model families: SmolLM2's vocabulary, with a family's chat template and markers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend

from headrace.text.tokenizer import Tokenizer
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
